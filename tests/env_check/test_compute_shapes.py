"""The checks that compute, for the attention of published models: the tiny twin, and the kernels of a run."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from loradock.env_check.base import Intent
from loradock.env_check.compute import attention_kernels, tiny_model, training
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import nf4
from loradock.model.attention_shape import AttentionShape
from loradock.plan.plan import Decision, draft

# Query heads over key-value heads, and head size, as published: SmolLM2-135M, Qwen2.5-0.5B and 7B, Phi-2, Falcon-7B.
PUBLISHED = [(9, 3, 64), (14, 2, 64), (28, 4, 128), (32, 32, 80), (71, 1, 64)]


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("head_size", [32, 64, 80, 96, 100, 112, 120, 128, 192, 256])
def test_transformers_takes_the_twin_and_its_rows_are_whole_blocks(group: int, head_size: int) -> None:
    for shared, window, softcap in itertools.product((1, 2, 3, 8), (None, 8), (None, 30.0)):
        shape = AttentionShape(
            heads=shared * group, key_value_heads=shared, head_size=head_size, window=window, softcap=softcap
        )
        config = tiny_model.architecture(shape)
        config.validate()
        inputs = config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim
        assert not any(width % nf4.BLOCK for width in inputs)
        assert config.hidden_size % config.num_attention_heads == 0
        if not shared * group * head_size % nf4.BLOCK:
            assert config.num_attention_heads == group * config.num_key_value_heads
        assert (config.num_key_value_heads == 1) == (shared == 1)


@pytest.mark.thin(4)
@pytest.mark.parametrize(("heads", "shared", "size"), PUBLISHED)
def test_the_twin_of_a_published_shape_trains_as_in_float64(heads: int, shared: int, size: int, tmp_path) -> None:
    shape = AttentionShape(heads=heads, key_value_heads=shared, head_size=size)
    plan = Intent(output=tmp_path, cache=tmp_path, scratch=tmp_path, attention=shape)
    facts = Facts(platform="", python="", cpus=1, memory_bytes=2**34, in_container=False)
    found = training.look(Host(), facts, plan)
    assert [each.severity for each in found] == ["ok"], found


def test_capped_scores_are_judged_by_the_attention_that_a_run_would_use(tmp_path) -> None:
    gemma2 = AttentionShape(heads=8, key_value_heads=4, head_size=256, window=4096, softcap=50.0)
    plan = Intent(output=tmp_path, cache=tmp_path, scratch=tmp_path, attention=gemma2)
    facts = Facts(platform="", python="", cpus=1, memory_bytes=2**34, in_container=False)
    for made in (None, draft([Decision(name="attention", value="eager", why="a test")])):
        found = attention_kernels.look(Host(), facts, replace(plan, plan=made))
        assert {each.severity for each in found} == {"ok"}, found
    (*_, refused) = [
        each
        for each in attention_kernels.look(
            Host(), facts, replace(plan, plan=draft([Decision(name="attention", value="sdpa", why="a test")]))
        )
        if each.severity == "error"
    ]
    assert refused.what.startswith("sdpa attention does not support this model's attention (no softcap)")
    assert refused.remedy == "loradock train --set model.attention=eager ..."
