"""Jobs as the stages make them, up to the engine: for tests that look at what an engine computes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from loradock.config.load import Loaded, load
from loradock.data.corpus import prepare_corpus
from loradock.distributed.watchdog import Limits, Watchdog
from loradock.machine import Host, probe
from loradock.model import adapters, shape, source, tokenizer
from loradock.model import load as loading
from loradock.plan import planner
from loradock.training.backends import backend_named
from loradock.training.checkpoint.store import Checkpoints
from loradock.training.events import Event
from loradock.training.job import Job, Outcome
from loradock.training.loop import Loop, train
from loradock.training.meter import Meter
from loradock.training.objectives import objective_of
from loradock.training.saving import Saver

NO_LIMITS = Limits(setup_seconds=0, step_seconds=0, save_seconds=0)


def job_of(directory: Path, *settings: str, model: Path, data: Path | list[Path], max_length: int = 64) -> Job:
    """Everything up to the backend, as `training.preparation` does it; B is not zero, so that A has a gradient."""
    gc.freeze()  # what is here is not looked through again by each collection of a loop, of TRL's or of its own accord
    overrides = ["train.global_batch=8", "lora.rank=4", f"data.cache={directory}", *settings]
    files = [str(each) for each in (data if isinstance(data, list) else [data])]
    loaded: Loaded = load(None, overrides=overrides, shortcuts={"--model": str(model), "--data": files})
    facts = probe.gather(Host())
    base = source.find(loaded.config.model)
    words = tokenizer.open_tokenizer(base, add_tokens=loaded.config.tokenizer.add_tokens)
    found = shape.inspect(base, loaded.config)
    config = loaded.config
    corpus = prepare_corpus(config, tokenizer=words, max_length=max_length, facts=facts)
    plan = planner.make(config, facts=facts, model=found, data=corpus.facts)
    whole, _ = loading.load(base, config.model, plan=plan, local_rank=0)
    adapted = adapters.attach(whole, config, base=base)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(7)
        for parameter in adapters.trainable(adapted):
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.device) * 0.02)
    return Job(
        config=config,
        plan=plan,
        objective=objective_of(config),
        model=adapted,
        tokenizer=words,
        steps=corpus.steps(plan, facts=facts),
        evaluation=corpus.evaluation(plan, facts=facts),
        directory=directory,
        checkpoints=Checkpoints(directory / "checkpoints", run_id="test", fingerprint={}, keep=1),
        resume=None,
        watchdog=Watchdog(NO_LIMITS, heartbeat=None, on_hang=lambda _: None),
        world_size=facts.world_size,
        rank=facts.rank,
    )


def loop_of(job: Job, **more: Any) -> Loop:
    """A loop of the job's backend that is ready for its first step; `more` is the backend's own."""
    backend = backend_named(job.plan.engine.value)(job, **more)
    loop = Loop(job, backend, lambda _: None, Saver(job, lambda _: None))
    loop.begin()
    loop.meter = Meter()
    return loop


def trained(job: Job, **more: Any) -> tuple[Outcome, list[Event]]:
    """Train the job to its end; `more` is its backend's own."""
    events: list[Event] = []
    return train(job, backend_named(job.plan.engine.value)(job, **more), events.append), events


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all adapter gradients by name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def assert_close(
    first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], *, relative: float = 2e-4, absolute: float = 2e-6
) -> None:
    """Every tensor of both, by name. The defaults are for float32 on a CPU: sums of thousands in another order."""
    assert first
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(
            tensor, second[name], rtol=relative, atol=absolute, msg=lambda text, name=name: f"{name}: {text}"
        )
