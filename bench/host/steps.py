"""What stands around the micro-steps of an optimiser step: the trainer's own work, TRL's and the fast engine's.

Both run whole optimiser steps of one micro-step on a CPU, and what forward and backward take is taken off. They are the
real trainers: TRL's SFTTrainer with its defaults and the fused optimiser, our `Loop.make_step` over the fast backend.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from bench.host.arms import Setting
from bench.host.launches import Launches
from bench.host.models import adapted
from bench.memory.models import flat_batch
from loradock.config.sections.train import TrainConfig
from loradock.distributed.stragglers import Pace
from loradock.training.backends.fast.attention.flash_cpu import FlashCpu
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.backends.fast.kernels import plain
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.loop import Loop
from loradock.training.meter import Meter
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import BatchInputs, StepInputs

WARM_UPS = 3


class Watch:
    """Milliseconds and launches of whole steps, less those of the functions that it wraps."""

    def __init__(self) -> None:
        self.launches: Launches | None = None
        self.milliseconds: list[float] = []
        self.counted: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """A step begins."""
        self.inside = (0.0, 0, 0)
        self.begin = self.now()

    def end(self) -> None:
        """A step ends."""
        spent = tuple(
            now - begin - inside for now, begin, inside in zip(self.now(), self.begin, self.inside, strict=True)
        )
        if self.launches is None:
            self.milliseconds.append(spent[0])
        else:
            self.counted = {"launches": int(spent[1]), "waits": int(spent[2])}

    def now(self) -> tuple[float, int, int]:
        """Milliseconds of this thread, launches and waits so far."""
        counted = (self.launches.total, self.launches.waits) if self.launches else (0, 0)
        return (1e3 * time.thread_time(), *counted)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time and launches are not the trainer's."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin = self.now()
            result = function(*args, **kwargs)
            gone = zip(self.inside, self.now(), begin, strict=True)
            self.inside = tuple(inside + now - before for inside, now, before in gone)
            return result

        return wrapped

    def figures(self) -> dict[str, float]:
        """The least milliseconds of a step after the first few, its launches and its waits."""
        return {"milliseconds": min(self.milliseconds[WARM_UPS:]), **self.counted}


def around_trl(setting: Setting, *, rounds: int) -> dict[str, float]:
    """TRL's and transformers' trainer: data loading, metrics, clipping, optimiser, callbacks."""
    import datasets
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    watch, launches = Watch(), Launches()

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.end()
            if watch.launches is not None:
                launches.__exit__(None, None, None)
                watch.launches = None
            elif state.global_step == WARM_UPS:
                watch.launches = launches.__enter__()
            watch.start()

    rows = [{"input_ids": [1] * setting.document, "labels": [1] * setting.document}]
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            folder, max_steps=WARM_UPS + rounds + 2, per_device_train_batch_size=1, use_cpu=True, bf16=False,
            report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True, optim="adamw_torch_fused",
            gradient_checkpointing=False, dataset_kwargs={"skip_prepare_dataset": True},
        )  # fmt: skip
        model = adapted(setting.values, dtype=setting.dtype, device="cpu", adapters=setting.dtype)
        trainer = SFTTrainer(
            model=model, args=config, train_dataset=datasets.Dataset.from_list(rows), callbacks=[Steps()],
            processing_class=tokenizer(),
        )  # fmt: skip
        model.forward = watch.wrap(model.forward)
        trainer.accelerator.backward = watch.wrap(trainer.accelerator.backward)
        trainer.train()
    return watch.figures()


def tokenizer() -> Any:
    """One that the trainer asks for and no text goes through."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


class BareBackend(FastBackend):
    """The fast backend without a job: only what a step needs."""

    def __init__(self, model: FastModel, parameters: list[Any], job: Any) -> None:
        self.job, self.model, self.device, self.scaler = job, model, torch.device("cpu"), None
        self.optimizer = FlatAdamW(model.adapters, [parameters], lr=1e-4, weight_decay=0.0)
        self.dropout_seed = self.graphs = None
        self.grown = 1.0


class BareLoop(Loop):
    """The loop around it."""

    def __init__(self, model: FastModel, parameters: list[Any]) -> None:
        config: Any = SimpleNamespace(train=TrainConfig())
        self.job: Any = SimpleNamespace(
            world_size=1,
            config=config,
            objective=Supervised(config),
            watchdog=SimpleNamespace(beat=lambda *_: None),
            peers=None,
        )
        self.backend = BareBackend(model, parameters, self.job)
        self.emit = lambda _: None
        self.pace = Pace(self.backend.device)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.backend.optimizer, lambda _: 1.0)
        self.meter, self.step = Meter(), 0
        self.losses, self.measured = torch.zeros(1), torch.zeros(1)


def around_fast(setting: Setting, *, rounds: int) -> dict[str, float]:
    """The loop over the fast backend."""
    watch, launches = Watch(), Launches()
    peft = adapted(setting.values, dtype=setting.dtype, device="cpu", adapters=torch.float32)
    attention = FlashCpu()
    model = FastModel(
        peft, positions=setting.document, dtype=setting.dtype, attention_of=lambda _: attention, kernels=plain
    )
    model.loss_and_gradients = watch.wrap(model.loss_and_gradients)
    loop = BareLoop(model, [each for each in peft.parameters() if each.requires_grad])
    batch = flat_batch(setting.tokens, document=setting.document, device="cpu", vocabulary=setting.values["vocab_size"])
    counts = dict.fromkeys(("tokens", "supervised_tokens", "samples", "slots"), 1)
    rows = BatchInputs([batch], samples=1, supervised_tokens=setting.tokens, documents=0, places=[], relations={})
    inputs = StepInputs({"rows": rows}, counts)
    with torch.no_grad():
        for _ in range(WARM_UPS + rounds):
            watch.start()
            loop.make_step(inputs)
            watch.end()
        with launches:
            watch.launches = launches
            watch.start()
            loop.make_step(inputs)
            watch.end()
    return watch.figures()
