"""Mixtures of experts in NF4 with adapters on the experts, against plain PEFT on transformers' class in float64.

By the peft engine, and by the fast one where it has the family.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from bitsandbytes import functional
from bitsandbytes.nn import Linear4bit
from jobs import assert_close, gradients, job_of, loop_of
from peft import PeftModel
from tiny import copy_tree
from transformers import AutoModelForCausalLM
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from whole_runs import Silent, adapter_bytes, losses, train

from loradock.errors import ModelError
from loradock.model.experts import forward, loading, peft_layers
from loradock.model.experts.storage import NF4Experts
from loradock.training.job import Job
from loradock.training.objectives.supervised import balancing_of
from loradock.training.passes import MicroStep

pytestmark = pytest.mark.thin(1)

EXPERTS = "lora.targets=[all-linear,experts]"
RUN = ("train.max_steps=20", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2", "checkpoints.every=10")
ONE_PASS = ("train.micro_batch=8", "train.checkpointing=false", "model.compute_dtype=float32")

FACTORS, PRODUCT = peft_layers.factors, forward.product

Mixture = Callable[[str], Path]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """A model of each kind, made once."""
    place = tmp_path_factory.mktemp("mixtures")

    def make(kind: str) -> Path:
        return place / kind if (place / kind).exists() else mixtures.make(place / kind, kind)

    return make


def passed(job: Job) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first step."""
    backend: Any = loop_of(job).backend
    backend.begin_step()
    step = job.steps[0]
    batches = [backend.tensors(batch)[0] for batch in step.micro_batches]
    loss = sum(
        float(
            backend.forward_backward(
                batch, scale=1 / step.supervised_tokens, at=MicroStep(step=0, index=index, count=len(batches))
            )
        )
        for index, batch in enumerate(batches)
    )
    if job.plan.engine.value == "peft":
        return loss, gradients(job.model)
    flat = backend.model.adapters
    named = [(name, each) for name, each in job.model.named_parameters() if each.requires_grad]
    return loss, {name: flat.view(flat.gradient, [each], each.shape) for name, each in named}


def dense(model: Any) -> dict[str, torch.Tensor]:
    """The base's weights by name in float64, dequantised."""
    weights: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, NF4Experts):
                value = parameter.dense()
            elif isinstance(module, Linear4bit) and key == "weight":
                value = functional.dequantize_4bit(parameter.data, parameter.quant_state)
            else:
                value = parameter.data
            weights[f"{name}.{key}"] = value.double()
    return weights


def twin_of(job: Job, base: Path, place: Path) -> Any:
    """Plain PEFT with the job's adapter on transformers' own class and eager experts, in float64."""
    job.model.save_pretrained(place)
    bare = job.model.unload()
    weights = dense(bare)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, experts_implementation="eager")
    for name, parameter in plain.named_parameters():
        parameter.data.copy_(weights[name])
    return PeftModel.from_pretrained(plain, place, is_trainable=True, autocast_adapter_dtype=False).double()


def padded(job: Job) -> dict[str, torch.Tensor]:
    """The first step as a model's own inputs."""
    (batch,) = job.steps[0].micro_batches
    return job.objective.tensors(
        replace(batch, is_packed=False), pad_token_id=job.tokenizer.pad_token_id, pad_to_multiple=1
    )[0]


def assert_equal_to_twin(engine: str, kind: str, mixture: Mixture, rows: Path, place: Path) -> None:
    packing = f"train.packing={str(engine == 'fast').lower()}"
    job = job_of(place, f"engine={engine}", EXPERTS, *ONE_PASS, packing, model=mixture(kind), data=rows)
    loss, found = passed(job)
    twin = twin_of(job, mixture(kind), place / "adapter")
    out = twin(**padded(job), output_router_logits=True) if balancing_of(twin) else twin(**padded(job))
    out.loss.backward()
    assert loss == pytest.approx(out.loss.item(), rel=1e-5)
    assert any(".experts." in name for name in found)
    assert_close(found, {name: gradient.float() for name, gradient in gradients(twin).items()})


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("engine", "kind"), [*(("peft", kind) for kind in mixtures.KINDS), *(("fast", kind) for kind in mixtures.FAST)]
)
def test_loss_and_gradients_are_those_of_plain_peft_in_float64(
    engine: str, kind: str, mixture: Mixture, rows: Path, tmp_path: Path
) -> None:
    assert_equal_to_twin(engine, kind, mixture, rows, tmp_path)


def shifted(wrapper: Any, adapter: str) -> forward.Factors:
    right = FACTORS(wrapper, adapter)
    return forward.Factors(a=(*right.a[1:], right.a[0]), b=(*right.b[1:], right.b[0]), scaling=right.scaling)


def without_bias(module: Any, key: str, inputs: torch.Tensor, expert: int, **more: Any) -> torch.Tensor:
    return PRODUCT(module, key, inputs, expert, **more) - (
        getattr(module, f"{key}_bias")[expert] if key == "down_proj" else 0
    )


def test_an_adapter_on_the_wrong_expert_and_a_lost_bias_differ_from_it(
    mixture: Mixture, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, name, wrong in ((peft_layers, "factors", shifted), (forward, "product", without_bias)):
        with monkeypatch.context() as patch:
            patch.setattr(at, name, wrong)
            with pytest.raises(AssertionError):
                assert_equal_to_twin("peft", "gpt_oss", mixture, rows, tmp_path)


def loads(run: Any) -> list[tuple[float, ...]]:
    names = ("expert_entropy", "unused_expert_share", "tokens_per_expert")
    return [tuple(line[name] for name in names) for line in run.metrics]


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [("glm4_moe", "fast"), ("qwen2_moe", "fast"), ("gpt_oss", "fast"), ("granitemoe", "fast"), ("llama4_text", "fast")],
)
def test_twenty_steps_fall_and_a_resume_and_a_recomputation_give_the_same_bits(
    kind: str, engine: str, mixture: Mixture, rows: Path, tmp_path: Path
) -> None:
    view = Silent()
    whole = train(tmp_path / "whole", *RUN, EXPERTS, model=mixture(kind), data=rows, view=view)
    assert losses(whole)[-1] < losses(whole)[0] - 0.5
    covered = whole.record["coverage"]
    assert covered["missed_weights"] <= 0.01 * (covered["quantised_weights"] + covered["missed_weights"])
    (plan,) = view.plans
    assert plan.engine.value == engine
    cut = copy_tree(whole.directory, tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "checkpoint-20")
    shutil.rmtree(cut / "adapter")
    again = train(cut, *RUN, EXPERTS, model=mixture(kind), data=rows)
    assert again.record["resumed_from"] == "checkpoint-10"
    settings = (*RUN, EXPERTS, "train.checkpointing=true")
    recomputed = train(tmp_path / "recomputed", *settings, model=mixture(kind), data=rows)
    for other in (again, recomputed):
        assert losses(other) == losses(whole)
        assert loads(other) == loads(whole)
        assert adapter_bytes(other) == adapter_bytes(whole)


def test_experts_that_stay_in_16_bit_are_refused(
    mixture: Mixture, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do where transformers' own quantiser reads them."""
    monkeypatch.setattr(loading, "quantizer_class", lambda: Bnb4BitHfQuantizer)
    with pytest.raises(ModelError, match=r"6 weight\(s\) were not quantised: model\.layers\.0\.mlp\.experts"):
        job_of(tmp_path, *ONE_PASS, model=mixture("qwen3_moe"), data=rows)


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_the_balancing_loss_of_a_step_is_a_mean_over_its_micro_batches(
    engine: str, mixture: Mixture, tmp_path: Path
) -> None:
    """Eight times one row: as one batch, and as eight."""
    data = tmp_path / "rows.jsonl"
    data.write_text(
        8 * '{"instruction": "Write the words backwards.", "input": "river apple", "output": "apple river"}\n'
    )
    found = []
    for size in (8, 1):
        packing = f"train.packing={str(engine == 'fast').lower()}"
        settings = (EXPERTS, packing, f"train.micro_batch={size}", f"engine={engine}")
        job = job_of(tmp_path, *settings, model=mixture("mixtral"), data=data)
        job.model.config.router_aux_loss_coef = 1.0
        found.append(passed(job))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert_close(found[0][1], found[1][1])


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")  # PEFT's own, of what it rewrote
def test_what_peft_adapts_by_rules_of_its_own_is_refused(
    mixture: Mixture, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the names that it rewrites, PEFT puts adapters on experts and router in the place of linear layers."""
    monkeypatch.setattr(peft_layers, "taken_for_experts", lambda _: frozenset())
    with pytest.raises(ModelError, match=r"PEFT adapts \d+ layers of .*, and \d+ were planned: .* has"):
        job_of(tmp_path, *ONE_PASS, model=mixture("glm4_moe"), data=rows)
