"""What the fast engine's layers keep of each kind of dense decoder, against its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from facts.recorded import decision, machine, models, planned
from families import make_model
from jobs import job_of
from plan.test_memory_experts import SETTING, kept_by_a_layer

from loradock.plan.memory.fast import FastMemory
from loradock.plan.memory.widths import widths
from loradock.training.backends.fast import self_check
from loradock.training.backends.fast.backend import build


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((each, {}) for each in ("qwen3", "olmo3", "exaone4", "glm4", "hunyuan_v1_dense", "gemma4_text")),
        *((each, {}) for each in ("gemma4_small", "glm", "youtu")),
        pytest.param("youtu", {"qk_nope_head_dim": 56, "v_head_dim": 16}, id="values a quarter as wide as keys"),
    ],
)
def test_what_a_decoders_layers_keep_is_what_the_plan_counts(
    family: str, settings: dict[str, int], tmp_path: Path, rows: Path
) -> None:
    base = make_model(tmp_path / "base", family, intermediate_size=512, **settings)
    job = job_of(tmp_path, "engine=fast", "model.compute_dtype=bfloat16", model=base, data=rows)
    engine, _ = build(job)
    batch = self_check.learned(engine, self_check.first_rows(job))
    if engine.token_inputs:
        x = engine._embed(batch)
        carried = engine.token_inputs.forward(x, batch.ids, keys=batch.keys)
        object.__setattr__(batch, "carried", carried)
        read = sum(each.nbytes for each in (carried.inputs, carried.unnormed) if each is not None)
        assert read == 2 * 16 * len(engine.layers) * batch.tokens * 2
    planned = FastMemory(job.plan.model, SETTING).kept_by_layer(batch.tokens)
    assert kept_by_a_layer(engine, batch) == pytest.approx(planned, rel=0.05)


def test_narrow_values_are_as_wide_as_keys_in_the_kernels_and_narrow_in_what_is_kept(
    tmp_path: Path, rows: Path
) -> None:
    base = make_model(tmp_path / "base", "youtu", qk_nope_head_dim=56, v_head_dim=16)
    model = job_of(tmp_path, "engine=fast", model=base, data=rows).plan.model
    found = widths(model, rank=16)
    assert (found.attended, found.values) == (model.heads * (56 + 8), model.heads * 16)


def test_no_graph_is_made_where_a_layers_heads_are_wider_than_flash_kernels_take() -> None:
    model = replace(models()["tinyllama-1.1b"], decoder="Gemma4TextModel", heads=32)
    first = next(each for each in model.linears if each.name.endswith("o_proj"))
    wide = replace(first, columns=512 * model.heads)
    assert "document by document" not in decision(planned(facts=machine("h200"), model=model), "cuda_graphs").why
    plan = planned(
        facts=machine("h200"),
        model=replace(model, linears=tuple(wide if each is first else each for each in model.linears)),
    )
    assert (plan.engine.value, plan.cuda_graphs.value) == ("fast", False)
    assert "document by document" in decision(plan, "cuda_graphs").why
