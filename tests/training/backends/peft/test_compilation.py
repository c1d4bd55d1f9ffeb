"""Compiled layers compute what eager ones do, keep their names, and go back to eager where the compiler fails.

Most tests stop short of Inductor's C++ (backend `aot_eager`: torch traces, differentiates and partitions all the same).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load
from tiny import make_llama
from torch._dynamo.backends.common import aot_autograd
from transformers import AutoModelForCausalLM

from loradock.plan.plan import Decision
from loradock.training.checkpoint.manifest import open_checkpoint
from loradock.training.checkpoint.store import Checkpoints
from loradock.training.events import Decided, Event, StepResult
from loradock.training.job import Job

STEPS = 4
pytestmark = [
    pytest.mark.thin(2, together=True),
    pytest.mark.filterwarnings(  # torch 2.10, of its own tracing of an autograd.Function
        "ignore:<class 'torch.autograd.function.Function'> should not be instantiated:DeprecationWarning"
    ),
]
ONE_GRAPH = ("train.checkpointing=true", "lora.targets=[q_proj]")
SETTINGS = (
    "engine=peft",
    f"train.max_steps={STEPS}",
    "train.micro_batch=4",
    "train.learning_rate=1e-3",
    "lora.dropout=0.1",
    "logging.every=1",
    "checkpoints.every=2",
    "data.validation=4",
    "evaluation.every=2",
    *ONE_GRAPH,
)


@pytest.fixture(autouse=True)
def a_compiler_that_remembers_nothing() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base"), num_hidden_layers=2)


def job_of(directory: Path, *settings: str, base: Path, rows: Path) -> Job:
    directory.mkdir(exist_ok=True)
    job = jobs.job_of(directory, *SETTINGS, *settings, model=base, data=rows)
    return replace(job, checkpoints=Checkpoints(directory / "checkpoints", run_id="test", fingerprint={}, keep=2))


def trained(job: Job, *, backend: str | Callable[..., Any] = "aot_eager") -> list[Event]:
    """The events of a whole attempt with this compiler."""
    _, events = jobs.trained(job, compiler=backend)
    return events


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepResult)]


def decisions(events: list[Event]) -> list[Decision]:
    """But for how checkpoints are saved."""
    told = [decision for event in events if isinstance(event, Decided) for decision in event.decisions]
    return [decision for decision in told if decision.name != "saving"]


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory, base: Path, rows: Path) -> tuple[Job, list[Event]]:
    job = job_of(tmp_path_factory.mktemp("eager"), base=base, rows=rows)
    return job, trained(job)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, base: Path, rows: Path) -> tuple[Job, list[Event]]:
    job = job_of(tmp_path_factory.mktemp("compiled"), "train.compile=default", base=base, rows=rows)
    return job, trained(job)


@pytest.mark.thin(4)
def test_losses_and_adapter_are_those_of_the_eager_run(
    eager: tuple[Job, list[Event]], compiled: tuple[Job, list[Event]]
) -> None:
    """Over NF4 weights, with dropout and checkpointing; bit by bit, since this backend runs the same operators."""
    assert losses(compiled[1]) == losses(eager[1])
    assert len(losses(eager[1])) == STEPS
    assert_same_adapter(compiled[0], eager[0])


def test_graphs_breaks_and_recompiles_are_told_once(compiled: tuple[Job, list[Event]]) -> None:
    """Evaluations and the look at the logits' dtype do not have the layers compiled again."""
    (told,) = decisions(compiled[1])
    assert told.name == "compiled graphs"
    assert told.value == {"graphs": 1, "graph_breaks": 0, "recompiles": 0}
    assert told.why.startswith("2 layers, one like the other, compiled in ")


def test_nothing_is_told_of_a_run_that_is_not_compiled(eager: tuple[Job, list[Event]]) -> None:
    assert decisions(eager[1]) == []


def test_a_checkpoint_names_its_weights_as_ever_and_its_adapter_loads_in_peft(
    compiled: tuple[Job, list[Event]], base: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(compiled[0].checkpoints.folder / f"checkpoint-{STEPS}")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / name).write_bytes(checkpoint.read(name))
    saved = load(checkpoint.read("adapter_model.safetensors"))
    assert not any("_orig_mod" in name for name in saved)
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path)
    found = dict(loaded.named_parameters())
    assert all(torch.equal(found[name.replace(".weight", ".default.weight")], saved[name]) for name in saved)


def test_a_run_is_left_uncompiled(compiled: tuple[Job, list[Event]]) -> None:
    model = compiled[0].model
    assert not any("forward" in vars(module) for module in model.modules() if "DecoderLayer" in type(module).__name__)
    assert torch._dynamo.config.optimize_ddp is True


@pytest.mark.thin(6)
def test_a_compiled_run_is_continued_from_its_checkpoint(
    compiled: tuple[Job, list[Event]], base: Path, rows: Path, tmp_path: Path
) -> None:
    first = compiled[0]
    job = job_of(tmp_path, "train.compile=default", base=base, rows=rows)
    middle = open_checkpoint(first.checkpoints.folder / f"checkpoint-{STEPS // 2}")
    events = trained(replace(job, resume=middle))
    assert losses(events) == losses(compiled[1])[STEPS // 2 :]
    assert_same_adapter(job, first)


def assert_same_adapter(first: Job, second: Job) -> None:
    one, two = ({n: p for n, p in job.model.named_parameters() if p.requires_grad} for job in (first, second))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def broken(graph: Any, inputs: Any) -> Any:
    """A compiler that cannot work at all."""
    raise OSError("no space for the cache")


BROKEN_BACKWARD = aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=broken)


@pytest.mark.thin(6)
@pytest.mark.parametrize("backend", [broken, BROKEN_BACKWARD], ids=["forward", "backward"])
def test_a_compiler_that_fails_leaves_an_eager_run_with_its_reason_and_the_same_numbers(
    eager: tuple[Job, list[Event]], base: Path, rows: Path, tmp_path: Path, backend: Callable[..., Any]
) -> None:
    job = job_of(tmp_path, "train.compile=default", "train.checkpointing=false", base=base, rows=rows)
    events = trained(job, backend=backend)
    (told,) = decisions(events)
    assert (told.name, told.value) == ("compile", "off")
    assert told.why == "compiling failed, so the layers run eagerly: OSError: no space for the cache"
    assert losses(events) == losses(eager[1])
    assert_same_adapter(job, eager[0])


@pytest.mark.thin(6)
def test_without_a_c_compiler_the_run_is_eager_and_says_so(
    base: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ("model.quantization=none", "train.checkpointing=false", "train.max_steps=2")
    plain = trained(job_of(tmp_path / "eager", *whole, base=base, rows=rows))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    job = job_of(tmp_path / "compiled", *whole, "train.compile=default", base=base, rows=rows)
    events = trained(job, backend="inductor")
    (told,) = decisions(events)
    assert (told.name, told.value) == ("compile", "off")
    assert "No working C++ compiler" in told.why
    assert losses(events) == losses(plain)


@pytest.mark.full
def test_inductors_own_kernels_give_the_loss_of_the_eager_run(
    eager: tuple[Job, list[Event]], base: Path, rows: Path, tmp_path: Path
) -> None:
    events = trained(job_of(tmp_path, "train.compile=default", base=base, rows=rows), backend="inductor")
    assert [told.name for told in decisions(events)] == ["compiled graphs"]
    assert losses(events) == pytest.approx(losses(eager[1]), rel=1e-6)
