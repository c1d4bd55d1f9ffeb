"""`loradock` commands on the stand-in GPU: how they are started there, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakegpu.environment import HERE, environment
from faults.campaign.processes import ENVIRONMENT
from faults.forking import Command, Forking
from faults.pairs import begun
from proven import unchecked

WHY_UNCHECKED = "env-check's own scenarios on the stand-in run it at every level"
MAY_FORK = "import torch; torch.cuda._is_in_bad_fork = lambda: False\n"
"""The parent asked for the number of devices, which holds nothing on the stand-in."""
COUNTING = """
import atexit, json, pathlib, gpu_on_cpu
atexit.register(lambda: pathlib.Path("counts.json").write_text(json.dumps(gpu_on_cpu.COUNTS.now())))
"""
SMALL = ("train.max_steps=3", "train.global_batch=8", "logging.every=1", "train.learning_rate=1e-3")
LIMIT_SECONDS = 400


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that ended: its exit code, what it wrote, and the folder that it wrote to."""

    exit_code: int
    text: str
    output: Path

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return json.loads((self.output / "run.json").read_text(encoding="utf-8"))

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [step["loss"] for step in self.steps]

    @property
    def peaks(self) -> list[int]:
        """The bytes that were reserved at most, by step."""
        return [step["memory_bytes"] for step in self.steps]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The line of each step in metrics.jsonl."""
        lines = map(json.loads, (self.output / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["kind"] == "train"]

    @property
    def counts(self) -> dict[str, int]:
        """What the device counted, over the whole command."""
        return json.loads((self.output.parent / "counts.json").read_text())

    @property
    def adapter(self) -> bytes:
        """The adapter's weights."""
        return (self.output / "adapter" / "adapter_model.safetensors").read_bytes()

    def decided(self, name: str) -> Any:
        """What the plan chose."""
        return self.decisions[name]["value"]

    def why(self, name: str) -> str:
        """The reason of what the plan chose."""
        return self.decisions[name]["why"]

    @property
    def decisions(self) -> dict[str, dict[str, Any]]:
        """Each decision of the plan."""
        return {each["name"]: each for each in self.record["plan"]["decisions"]}


class Gpus:
    """One stand-in H100, or several; commands are forked from a process that has everything imported."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        added = environment(devices=count)
        paths = added.pop("PYTHONPATH").split(os.pathsep)
        self.parent = Forking(*paths, **added, CUDA_VISIBLE_DEVICES=",".join(map(str, range(count))))

    def start(self, place: Path, *arguments: str, code: str = "", **device: object) -> Command:
        """Begin a command in `place`; `device` as `environment` takes it, but what torch reads once stays an H100's."""
        place.mkdir(exist_ok=True)
        assert not device.keys() & {"cc", "name", "devices", "compute"}
        changed = {name: value for name, value in environment(**device).items() if name.startswith("FAKEGPU_")}
        return self.parent.start(place, *arguments, code=MAY_FORK + COUNTING + code, **changed)

    def run(self, place: Path, *arguments: str, code: str = "", **device: object) -> Ended:
        """A command, to its end."""
        started = self.start(place, *arguments, code=code, **device)
        exit_code = started.finish(seconds=LIMIT_SECONDS)
        return Ended(exit_code=exit_code, text=started.text(), output=place / "out")

    def train(
        self, place: Path, *settings: str, model: Path, data: Path, code: str = "", **device: object
    ) -> Ended:  # fmt: skip
        """A training that ends well."""
        ended = self.run(place, *training(*settings, model=model, data=data), code=code, **device)
        assert ended.exit_code == 0, ended.text[-5000:]
        return ended

    def train_on_all(self, place: Path, *settings: str, model: Path, data: Path, code: str = "") -> Ended:
        """A training by a process for each device, in the environment that a launcher gives."""
        words = training(*settings, model=model, data=data)
        ranks = begun(self.parent, place, words, code=MAY_FORK + code, count=self.count)
        assert ranks.finish(seconds=LIMIT_SECONDS) == [0] * self.count, ranks.text()[-5000:]
        return Ended(exit_code=0, text=ranks.text(), output=place / "out")


def training(*settings: str, model: Path, data: Path) -> list[str]:
    """The arguments of a short training to `out`, where it runs."""
    sets = [word for setting in (*SMALL, *settings) for word in ("--set", setting)]
    given = ["--model", str(model), "--data", str(data), "--output", "out"]
    return ["train", *given, unchecked(WHY_UNCHECKED), *sets]


def run(place: Path, *arguments: str, **device: object) -> Ended:
    """A command in a process of its own, on any device: slower to start than a forked one."""
    place.mkdir(exist_ok=True)
    added = environment(**device)
    paths = os.pathsep.join((str(HERE / "preload"), *(str(HERE.parents[1] / name) for name in ("src", "tests"))))
    plain = {name: value for name, value in ENVIRONMENT.items() if name != "CUDA_VISIBLE_DEVICES"}
    settings = {"PYTHONPATH": paths, "LORADOCK_CACHE": str(place / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "loradock", *arguments],
        cwd=place,
        env=os.environ | plain | added | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    return Ended(exit_code=done.returncode, text=done.stdout, output=place / "out")
