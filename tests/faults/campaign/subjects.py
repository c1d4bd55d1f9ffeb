"""What is tried: `loradock` through its own command line, and `stock`, transformers' own Trainer, as the control."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from faults.campaign import stock
from faults.campaign.records import ROOT
from proven import unchecked

STEPS, SAVE_EVERY = 24, 4
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
STEP_LINE = re.compile(rf"step (\d+)/{STEPS} ")
STOCK_LIBRARIES = (
    "torch",
    "transformers.trainer",
    "transformers.data.data_collator",
    "transformers.models.llama.modeling_llama",
    "peft",
    "accelerate",
)
STOCK_FILES = {
    "adapter_model.safetensors",
    "adapter_config.json",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tiny model and the rows that every trial trains; the control takes the first file only.

    `pairs` are those of preference tuning.
    """

    model: Path
    rows: tuple[Path, ...]
    pairs: Path


class Subject(Protocol):
    """A trainer that saves to OUTPUT/checkpoints/checkpoint-STEP, and continues when its command is given again."""

    name: str
    engine: str
    package: str
    libraries: tuple[str, ...]

    def command(self, inputs: Inputs, out: Path, *extra: str) -> list[str]:
        """The command line, beginning with what follows `python`."""
        ...

    def call(self, command: list[str]) -> None:
        """Do in this process what `python COMMAND` would."""
        ...

    def partial(self, checkpoint: Path) -> str | None:
        """Why a visible checkpoint is not whole; None where it is."""
        ...

    def is_saving(self, out: Path) -> bool:
        """Whether files of a checkpoint are being written at this moment."""
        ...

    def losses(self, out: Path) -> list[tuple[int, float]]:
        """(step, loss) of every step, in the order recorded."""
        ...

    def around_save(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """In this process, call these before and after each save, in the thread that writes it."""
        ...


class Loradock:
    """The product, with one of its engines; behind a space, a loss of preference tuning, or `reward`."""

    name = "loradock"
    package = "loradock"
    libraries: tuple[str, ...] = (
        *STOCK_LIBRARIES,
        "bitsandbytes",
        "datasets",
        "trl.trainer.utils",
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
    )

    def __init__(self, *, engine: str) -> None:
        self.engine = engine

    def command(self, inputs: Inputs, out: Path, *extra: str) -> list[str]:
        engine, _, loss = self.engine.partition(" ")
        preferring = {"objective": "preference", "preference.loss": loss} if loss else {}
        preferring = {"objective": "reward"} if loss == "reward" else preferring
        settings = preferring | {
            "checkpoints.every": SAVE_EVERY,
            "checkpoints.keep": 2,
            "data.max_length": 64,
            "device": "cpu",
            "engine": engine,
            "logging.every": 1,
            "lora.dropout": 0.1,
            "lora.rank": 4,
            "train.global_batch": 8,
            "train.max_steps": STEPS,
            "train.micro_batch": 2,
            "train.packing": "true",
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        more = [word for setting in extra for word in ("--set", setting)]
        data = [word for file in ((inputs.pairs,) if loss else inputs.rows) for word in ("--data", str(file))]
        paths = ["--model", str(inputs.model), *data, "--output", str(out)]
        return ["-m", "loradock", "train", unchecked("hundreds of kills"), *paths, *sets, *more]

    def call(self, command: list[str]) -> None:
        from loradock import cli

        sys.argv = ["loradock", *command[2:]]
        cli.main()

    def partial(self, checkpoint: Path) -> str | None:
        """By the manifest's own words, read here without the product's code."""
        try:
            files = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))["files"]
            for name, wanted in files.items():
                if hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() != wanted["sha256"]:
                    return f"{name} is not what the manifest says"
        except (OSError, ValueError, KeyError) as error:
            return f"{type(error).__name__}: {error}"
        there = set(os.listdir(checkpoint)) - {"manifest.json"}
        return None if there == set(files) else f"files beside the manifest's: {sorted(there ^ set(files))}"

    def is_saving(self, out: Path) -> bool:
        return any(name.startswith(".stage-") for name in listed(out))

    def losses(self, out: Path) -> list[tuple[int, float]]:
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]

    def around_save(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        from loradock.training.saving import Saver

        surround(Saver, "_commit", before, after)


class Stock:
    """The negative control; see `stock.py`."""

    name = "stock"
    engine = "transformers"
    package = "faults.campaign"
    libraries: tuple[str, ...] = STOCK_LIBRARIES

    def command(self, inputs: Inputs, out: Path, *extra: str) -> list[str]:
        paths = [str(path) for path in (inputs.model, inputs.rows[0], out)]
        return [str(Path(stock.__file__)), *paths, str(STEPS), str(SAVE_EVERY)]

    def call(self, command: list[str]) -> None:
        sys.argv = command
        stock.main()

    def partial(self, checkpoint: Path) -> str | None:
        if missing := STOCK_FILES - set(os.listdir(checkpoint)):
            return f"without {sorted(missing)}"
        for file in sorted(checkpoint.iterdir()):
            try:
                read_whole(file)
            except Exception as error:  # noqa: BLE001  whatever a reader says of a file cut short
                return f"{file.name}: {type(error).__name__}: {error}"
        return None

    def is_saving(self, out: Path) -> bool:
        return any(
            CHECKPOINT.fullmatch(name) and not (out / "checkpoints" / name / "trainer_state.json").exists()
            for name in listed(out)
        )

    def losses(self, out: Path) -> list[tuple[int, float]]:
        found = json.loads((out / "losses.json").read_text(encoding="utf-8"))
        return [(int(step), loss) for step, loss in found.items()]

    def around_save(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        from transformers import Trainer

        surround(Trainer, "_save_checkpoint", before, after)


ENGINES = ("fast", "peft", "fast dpo", "peft dpo", "fast kto", "fast reward", "peft reward")
SUBJECTS = (Loradock.name, Stock.name)


def subject_named(name: str, *, engine: str) -> Subject:
    """The product with this engine, or the control, which has one of its own."""
    return Stock() if name == Stock.name else Loradock(engine=engine)


def listed(out: Path) -> list[str]:
    """The names in the folder of checkpoints."""
    try:
        return os.listdir(out / "checkpoints")
    except FileNotFoundError:
        return []


def visible(subject: Subject, out: Path) -> dict[int, str | None]:
    """{step: why it is not whole, or None} of every visible checkpoint."""
    steps = {int(match[1]): out / "checkpoints" / name for name in listed(out) if (match := CHECKPOINT.fullmatch(name))}
    return {step: subject.partial(path) for step, path in sorted(steps.items())}


def newest_whole(seen: dict[int, str | None]) -> int:
    """The step of the newest whole checkpoint, 0 where there is none."""
    return max((step for step, flaw in seen.items() if flaw is None), default=0)


def debris(out: Path) -> list[str]:
    """What a save left that is no checkpoint."""
    return sorted(name for name in listed(out) if name.startswith("."))


def adapter_bytes(out: Path) -> bytes | None:
    """The exported weights; None where there are none."""
    file = out / "adapter" / "adapter_model.safetensors"
    return file.read_bytes() if file.exists() else None


def steps_in(text: str) -> list[int]:
    """The optimiser steps that a run's output names, in order."""
    return [int(step) for step in STEP_LINE.findall(text)]


def environment(cache: Path) -> dict[str, str]:
    """What a run's process gets besides the environment of all trials."""
    return {"LORADOCK_CACHE": str(cache), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}


def read_whole(file: Path) -> None:
    """Read a file to its end in its own format; raises where it is cut short."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        load_file(file)
    elif file.suffix == ".json":
        json.loads(file.read_text(encoding="utf-8"))
    elif file.suffix in {".pt", ".pth", ".bin"}:
        with zipfile.ZipFile(file) as archive:
            if wrong := archive.testzip():
                raise ValueError(f"{wrong} is damaged")


def surround(owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Replace a method by itself with a call before and one after."""
    method = getattr(owner, name)

    def surrounded(*arguments: Any, **keywords: Any) -> Any:
        before()
        result = method(*arguments, **keywords)
        after()
        return result

    setattr(owner, name, surrounded)
