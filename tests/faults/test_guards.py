"""P8: nothing non-finite is stepped with, and nothing non-finite is committed.

The value is put where it comes up in real runs (see `seams`): into the loss of one micro-batch, into one element of a
gradient, of a weight or of the optimiser's state, or into the evaluation's loss. Everything else is the run itself, in
this process, by the fast engine and by TRL's.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.conftest import Trial
from faults.seams import CHOSEN, SEAMS
from safetensors.torch import load_file
from whole_runs import adapter_bytes, train

from loradock.errors import Diverged
from loradock.model.adapters import trainable
from loradock.training import guards
from loradock.training.cadence import Flow
from loradock.training.checkpoint.store import visible

pytestmark = pytest.mark.thin(1)

RUN = (
    "train.max_steps=6",
    "train.global_batch=8",
    "train.micro_batch=4",
    "train.learning_rate=1e-2",
    "lora.rank=4",
    "data.validation=8",
    "evaluation.every=4",
    "checkpoints.every=2",
    "checkpoints.keep=9",
)
NAN, INF = math.nan, math.inf
ADAMW, DORA = ("train.optimizer=adamw",), ("lora.dora=true",)
PEFT_ONLY = (ADAMW, DORA)


@dataclass(frozen=True)
class Fault:
    """`value` comes up at `place` in this step; the run ends at step `noticed` and says `what`."""

    place: str
    value: float
    step: int
    noticed: int
    what: str
    settings: tuple[str, ...] = ()


FEW = [
    Fault("loss", NAN, 1, 1, "the loss is nan"),
    Fault("gradient", INF, 3, 3, "the gradient norm is"),
    Fault("weight", NAN, 2, 2, "a weight is not finite"),
    Fault("exp_avg_sq", INF, 4, 4, "the optimiser's state is not finite"),
    Fault("evaluation", NAN, 4, 4, "the evaluation loss is nan"),
]
MANY = [
    Fault("loss", INF, 4, 4, "the loss is inf"),
    Fault("loss", NAN, 6, 6, "the loss is nan"),
    Fault("loss", -INF, 3, 3, "the loss is -inf"),
    Fault("gradient", NAN, 1, 1, "the gradient norm is nan"),
    Fault("gradient", NAN, 4, 4, "the gradient norm is", ("train.max_grad_norm=0",)),
    Fault("gradient", -INF, 6, 6, "the gradient norm is", ("train.packing=true", "data.max_length=64")),
    Fault("gradient", NAN, 4, 4, "the gradient norm is nan", ("train.checkpointing=true",)),
    Fault("weight", INF, 2, 2, "a weight is not finite"),
    Fault("weight", NAN, 4, 4, "the evaluation loss is nan"),
    Fault("weight", NAN, 3, 4, "the loss is nan"),
    Fault("weight", -INF, 6, 6, "the evaluation loss is", ADAMW),
    Fault("exp_avg", NAN, 2, 2, "the optimiser's state is not finite"),
    Fault("exp_avg", NAN, 1, 2, "a weight is not finite"),
    Fault("gradient", INF, 2, 2, "the gradient norm is", ("model.compute_dtype=bfloat16",)),
    Fault("weight", -INF, 2, 2, "a weight is not finite", ("model.compute_dtype=bfloat16",)),
    Fault("exp_avg_sq", INF, 3, 4, "the optimiser's state is not finite"),
    Fault("exp_avg_sq", NAN, 6, 6, "the optimiser's state is not finite", DORA),
    Fault("evaluation", INF, 6, 6, "the evaluation loss is inf"),
]


@dataclass
class Seen:
    """The loop of the run, and its weights and optimiser before the faulty step."""

    loop: Any = None
    before: Any = None


def state_of(loop: Any) -> Any:
    weights = [parameter.detach().clone() for parameter in trainable(loop.job.model)]
    return weights, copy.deepcopy(loop.backend.optimizer.state_dict()["state"])


def with_one(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """A copy whose middle element is the value."""
    changed = tensor.detach().clone()
    changed.view(-1)[changed.numel() // 2] = value
    return changed


def plant(fault: Fault, engine: str, monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen, seams, patch, real_after = Seen(), SEAMS[engine], monkeypatch.setattr, Flow.after

    def made(loop: Any, _: Any, make: Any) -> Any:
        if loop.step + 1 == fault.step:
            seen.loop, seen.before = loop, state_of(loop)
        return make()

    def loss(value: torch.Tensor, step: int, is_training: bool) -> torch.Tensor:
        place = "loss" if is_training else "evaluation"
        return value * fault.value if (place, step) == (fault.place, fault.step) else value

    def gradient(value: torch.Tensor, step: int) -> torch.Tensor:
        return with_one(value, fault.value) if (fault.place, fault.step) == ("gradient", step) else value

    def after(self: Flow, step: int) -> Any:
        if step == fault.step:
            spoil(seen.loop, fault)
        return real_after(self, step)

    seams.step(made, patch=patch)
    seams.loss(loss, patch=patch)
    seams.gradient(gradient, patch=patch)
    patch(Flow, "after", after)
    return seen


def spoil(loop: Any, fault: Fault) -> None:
    """Put the value into a weight, or into the optimiser's moments, where the fault is there."""
    if fault.place == "weight":
        tensor = trainable(loop.job.model)[CHOSEN].data
    elif fault.place.startswith("exp_"):
        tensor = list(loop.backend.optimizer.state_dict()["state"].values())[CHOSEN][fault.place]
    else:
        return
    tensor.copy_(with_one(tensor, fault.value))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nest of mappings and sequences."""
    if torch.is_tensor(value):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for each in inner for tensor in tensors_in(each)]


def not_finite(run: Path) -> list[str]:
    """Whatever is not finite in the files of a run."""
    found = []
    for _, checkpoint in visible(run / "checkpoints"):
        state = torch.load(io.BytesIO((checkpoint / "training_state.pt").read_bytes()), weights_only=True)
        tensors = [*load_file(checkpoint / "adapter_model.safetensors").values(), *tensors_in(state)]
        found += [str(checkpoint) for tensor in tensors if not tensor.isfinite().all()]
    metrics = run / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return found + [
        f"{line}" for line in lines if not all(map(math.isfinite, (v for v in line.values() if isinstance(v, float))))
    ]


def diverges(
    fault: Fault, engine: str, run: Path, monkeypatch: pytest.MonkeyPatch, *, model: Path, data: Path
) -> dict[str, Any]:
    """Let the fault come up; what was wrong with how the run ended, by name."""
    with monkeypatch.context() as patch:
        seen = plant(fault, engine, patch)
        with pytest.raises(Diverged) as ended:
            train(run, *RUN, f"engine={engine}", *fault.settings, model=model, data=data)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    committed = [step for step, _ in visible(run / "checkpoints")]
    flaws: dict[str, Any] = {}
    if f"at step {fault.noticed}: {fault.what}" not in ended.value.what:
        flaws["said"] = ended.value.what
    if (record["status"], record["exit_code"]) != ("failed", 79):
        flaws["recorded"] = (record["status"], record["exit_code"])
    if committed != [step for step in (4, 2) if step < fault.step]:
        flaws["committed"] = committed
    if (run / "adapter").exists():
        flaws["exported"] = True
    if found := not_finite(run):
        flaws["not finite"] = found
    assert isinstance(seen.loop.backend, SEAMS[engine].backend)
    if fault.place in ("loss", "gradient"):
        after = state_of(seen.loop)
        pairs = zip(tensors_in(list(seen.before)), tensors_in(list(after)), strict=True)
        if not all(torch.equal(one, other) for one, other in pairs):
            flaws["stepped"] = True
    return flaws


def cases() -> list[Any]:
    """Every fault with each engine that has it; in CI those that only the fast engine's own code can miss."""
    found = []
    for fault, engine in itertools.product((*FEW, *MANY), SEAMS):
        is_quick = fault in FEW and (engine == "fast" or fault.place in ("loss", "gradient"))
        name = f"{engine}-{fault.place}-{fault.value}-at-{fault.step}"
        if engine == "peft" or fault.settings not in PEFT_ONLY:
            found.append(pytest.param(fault, engine, id=name, marks=[] if is_quick else pytest.mark.full))
    return found


@pytest.mark.thin(4)
@pytest.mark.parametrize(("fault", "engine"), cases())
def test_a_value_that_is_not_finite_ends_the_run_before_it_is_stepped_with_or_committed(
    fault: Fault, engine: str, tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    flaws = diverges(fault, engine, tmp_path / "run", monkeypatch, model=llama, data=rows)
    trial("P8", not flaws, engine=engine, place=fault.place, value=str(fault.value), step=fault.step, flaws=flaws)


def test_a_run_that_diverged_by_a_fluke_goes_on_from_its_last_commit_as_if_nothing_had_been(
    tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*RUN, "engine=fast")
    whole = train(tmp_path / "whole", *settings, model=llama, data=rows)
    assert not diverges(FEW[3], "fast", tmp_path / "run", monkeypatch, model=llama, data=rows)
    resumed = train(tmp_path / "run", *settings, model=llama, data=rows)
    assert resumed.record["resumed_from"] == "checkpoint-2"
    assert adapter_bytes(resumed) == adapter_bytes(whole)


def test_a_gradient_scaler_may_look_for_its_scale_but_not_below_one() -> None:
    """A real GradScaler, a real weight and an infinite gradient: float16's own training needs a card."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    weight.register_hook(lambda gradient: with_one(gradient, INF))

    def step(number: int) -> None:
        loss = (weight * 2).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        guards.check_step(loss.detach(), norm, step=number, scale=scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    for number in (1, 2):
        step(number)
        assert torch.equal(weight, torch.ones(3)), "the scaler skips such a step"
    assert scaler.get_scale() == guards.LOWEST_SCALE
    with pytest.raises(Diverged, match="step 3: the gradient norm is inf"):
        step(3)
    with pytest.raises(Diverged, match="the loss is nan"):
        guards.check_step(torch.tensor(NAN), torch.tensor(1.0), step=4, scale=65536.0)
