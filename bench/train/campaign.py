"""Which slices are run, in which order: every arm once, then every arm again, for each model and row set."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.floor.machine import ROOT
from bench.train import arithmetic, models, rows, slices
from bench.train.arms import ARMS
from bench.train.arms.base import Arm
from bench.train.lines import Key, append, has, read

UNSLOTH = "unsloth"
OURS = "loradock"
CPU_FLOOR = ("--tokens", "256", "--shrink", "4")
GPU_FLOOR = ("--tokens", "4096", "16384")
SHAPE = ("steps", "samples", "budget_tokens", "attention", "threads", "seed", "dropout")


def machine_of(device: str) -> dict[str, Any]:
    """The machine, the commit and the packages of this Python, asked of a process that then lets go of the card."""
    command = [sys.executable, "-m", "bench.floor.machine", device]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


class Campaign:
    """The slices that the options ask for."""

    def __init__(self, options: argparse.Namespace, *, machine: dict[str, Any], file: Path) -> None:
        self.options = options
        self.machine = machine
        self.file = file
        self.began = time.monotonic()
        self.log = options.work / "log.txt"

    @property
    def peak_flops(self) -> float | None:
        """The published peak of the card, in FLOP/s; None for a CPU and for a card that is not in our table."""
        from loradock.env_check.known import peak

        known = peak(self.machine["device"]) if self.machine["kind"] == "cuda" else None
        return known.tflops * 1e12 if known else None

    def keys(self) -> Iterator[Key]:
        """Every slice in order."""
        options = self.options
        for model, name in itertools.product(options.models, options.rows):
            for repeat in range(options.repeats):
                for arm in options.arms:
                    yield Key(model=model, rows=name, arm=arm, repeat=repeat, shape=self.shape)

    @property
    def shape(self) -> dict[str, Any]:
        """The size of a run."""
        shape = {name: getattr(self.options, name) for name in SHAPE}
        shape |= {"set": " ".join(self.options.switches)} if self.options.switches else {}
        return shape | ({"checkpoint_peers": True} if self.options.checkpoint_peers else {})

    def run(self) -> int:
        """Run what was not run yet and fits in the time; how many slices are left."""
        self.options.work.mkdir(parents=True, exist_ok=True)
        todo = [
            key for key in self.keys() if not has(read(self.file), key, counts_failed=not self.options.retry_failed)
        ]
        for arm in {key.arm for key in todo if self.is_missing(ARMS[key.arm])}:
            print(f"{arm} is left out: --unsloth-python PATH says where unsloth is installed", file=sys.stderr)
        todo = [key for key in todo if not self.is_missing(ARMS[key.arm])]
        measured_floor = set[tuple[str, str, int]]()
        for index, key in enumerate(todo):
            if not self.has_time():
                return len(todo) - index
            data = self.made(key)
            if self.options.make_only:
                continue
            turn = (key.model, key.rows, key.repeat)
            if turn not in measured_floor and self.options.floor_seconds:
                self.floor()
                measured_floor.add(turn)
            if not self.has_time():
                return len(todo) - index
            self.slice(key, data=data)
        return 0

    def is_missing(self, arm: Arm) -> bool:
        """True where the arm's packages are nowhere to be found."""
        return arm.kind == UNSLOTH and not self.options.unsloth_python

    def has_time(self) -> bool:
        """True while a slice that takes all the time it may would end in time."""
        total = self.options.total_seconds
        return not total or time.monotonic() - self.began + self.options.slice_seconds <= total

    def made(self, key: Key) -> tuple[Path, Path]:
        """The directories of the model and of the rows, made where they are not there."""
        options = self.options
        command = [sys.executable, "-m", "bench.train.models", key.model, str(options.work / "models")]
        target = options.work / "models" / f"{key.model}-{self.machine['kind']}"
        if not (target / "made.json").exists():
            print(f"making {key.model} ...", file=sys.stderr)
            subprocess.run([*command, self.machine["kind"]], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        folder = rows.make(
            key.rows,
            model=target,
            folder=options.work / "rows",
            steps=options.steps,
            samples=options.samples,
            seed=options.seed,
        )
        return target, folder

    def floor(self) -> None:
        """Measure the machine's ceiling and keep the line."""
        shape = GPU_FLOOR if self.machine["kind"] == "cuda" else CPU_FLOOR
        with tempfile.TemporaryDirectory() as folder:
            seconds = ("--seconds", str(self.options.floor_seconds), "--results", folder)
            command = [sys.executable, "-m", "bench.floor", "--device", self.machine["kind"], *shape, *seconds]
            place = slices.Place(log=self.log)
            variables = place.variables(Path(folder), threads=self.options.threads)
            with self.log.open("ab") as log:
                subprocess.run(command, cwd=ROOT, env=variables, stdout=log, stderr=log, check=True)
            record = json.loads(next(Path(folder).glob("*.json")).read_text(encoding="utf-8"))
        append(self.file, {"kind": "floor", **record})

    def slice(self, key: Key, *, data: tuple[Path, Path]) -> None:
        """Run one slice and keep the line."""
        options, (model, folder) = self.options, data
        known = rows.Rows.load(folder / "rows.npz")
        operations = arithmetic.operations(
            models.settings(key.model), lengths=known.lengths, supervised_tokens=int(known.supervised.sum())
        )
        arm, place = self.arm_of(key), self.place_of(key)
        task = {
            "arm": key.arm,
            "device": self.machine["kind"],
            "model": str(model),
            "rows": str(folder),
            "adapter": str(options.work / "adapters" / f"{model.name}-seed{options.seed}.safetensors"),
            "longest": int(known.lengths.max()),
            "limit_seconds": options.slice_seconds,
            **{name: self.shape[name] for name in SHAPE},
            "command": ["--skip-env-check"] if options.skip_env_check else [],
        }
        print(f"{key.model} {key.rows} {key.arm} {key.repeat} ...", file=sys.stderr, flush=True)
        found = slices.run(arm, task, place=place)
        reason = f": {found['reason']}" if "reason" in found else ""
        print(f"  {found['status']}, {len(found['steps']['step'])} steps{reason}", file=sys.stderr, flush=True)
        each = {"operations_per_token": operations / known.lengths.sum(), "machine": self.machine}
        append(self.file, {"kind": "slice", **key.__dict__, **found, **each})

    def arm_of(self, key: Key) -> Arm:
        """The arm, with the switches that are set for our own and with what is forced on the peers."""
        arm = ARMS[key.arm]
        if arm.kind == OURS:
            return replace(arm, settings={"set": [*self.options.switches, *arm.settings["set"]]})
        if self.options.checkpoint_peers:
            return replace(arm, settings={**arm.settings, "checkpointing": True})
        return arm

    def place_of(self, key: Key) -> slices.Place:
        """The Python that runs the arm."""
        if ARMS[key.arm].kind != UNSLOTH:
            return slices.Place(log=self.log)
        packages = (self.options.unsloth_packages,) if self.options.unsloth_packages else ()
        return slices.Place(python=self.options.unsloth_python, packages=packages, is_apart=True, log=self.log)
