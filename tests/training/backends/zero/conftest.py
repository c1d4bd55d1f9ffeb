"""Processes of a run under DeepSpeed (gloo on the CPU).

DeepSpeed is in no lock that the tests are run from: it is put beside them from the optional one. transformers looks for
it when it is imported, so each process here starts from nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from proven import unchecked

ROOT = Path(__file__).parents[4]
LOCK = ROOT / "docker" / "requirements-deepspeed.lock"
ADDED = ("deepspeed", "hjson", "msgpack", "ninja", "py-cpuinfo")
STEPS, LIMIT_SECONDS = 6, 600
RUN = (
    f"train.max_steps={STEPS}",
    "checkpoints.every=4",
    "checkpoints.keep=9",
    "train.global_batch=8",
    "train.micro_batch=2",
    "train.workers=0",
    "train.learning_rate=1e-3",
    "train.betas=[0.8,0.99]",
    "train.eps=1e-6",
    "data.max_length=64",
    "logging.every=1",
    "logging.monitor_seconds=0",
    "lora.rank=3",
)
# A tiny model's weights are all smaller than what stays whole by default.
ALL_CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
DROPOUT = "lora.dropout=0.1"
SLOW = """
import time
from loradock.training.cadence import Flow
real = Flow.after
def after(self, step):
    time.sleep(0.5)
    return real(self, step)
Flow.after = after
"""


@dataclass(frozen=True)
class Group:
    """The processes of a run in `folder`, and what it left there."""

    folder: Path
    processes: Sequence[subprocess.Popen[bytes]]
    logs: Sequence[Path]

    def text(self) -> str:
        return "".join(log.read_text(encoding="utf-8") for log in self.logs)

    def finish(self) -> list[int]:
        return [each.wait(LIMIT_SECONDS) for each in self.processes]

    def reach(self, step: int) -> None:
        until = time.monotonic() + LIMIT_SECONDS
        while f"step {step}/{STEPS}" not in self.text():
            assert time.monotonic() < until
            assert self.processes[0].poll() is None, self.text()
            time.sleep(0.05)

    def adapter(self) -> bytes:
        return (self.folder / "out" / "adapter" / "adapter_model.safetensors").read_bytes()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "out" / "metrics.jsonl").read_text("utf-8").splitlines())
        return [line for line in lines if line["kind"] == kind]

    def losses(self) -> list[float]:
        return [line["loss"] for line in self.lines("train")]

    def steps(self, kind: str) -> list[int]:
        return [line["step"] for line in self.lines(kind)]

    def share(self) -> dict[str, int]:
        record = json.loads((self.folder / "out" / "run.json").read_text(encoding="utf-8"))
        return next(each["value"] for each in record["engine"] if each["name"] == "share of the model")


Start = Callable[..., Group]


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where DeepSpeed can be imported from; empty where it is installed."""
    if importlib.util.find_spec("deepspeed"):
        return ""
    folder = tmp_path_factory.mktemp("deepspeed")
    entries = re.split(r"\n(?=[a-z0-9])", LOCK.read_text(encoding="utf-8"))
    wanted = folder / "wanted.txt"
    wanted.write_text("\n".join(each for each in entries if each.partition("==")[0] in ADDED), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    command += ["--target", str(folder / "site"), "--no-deps", "--no-build-isolation", "--require-hashes"]
    done = subprocess.run([*command, "-r", str(wanted)], env={**os.environ, "DS_BUILD_OPS": "0"}, capture_output=True)
    if done.returncode:
        pytest.skip("DeepSpeed cannot be fetched here")
    return str(folder / "site")


@pytest.fixture(scope="session")
def start(layer: str, llama: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    compiled = os.environ.get("TORCH_EXTENSIONS_DIR") or tmp_path_factory.mktemp("operations")
    started: list[subprocess.Popen[bytes]] = []

    def begin(
        folder: Path,
        *settings: str,
        count: int = 2,
        stage: int = 0,
        own: Any = ALL_CUT,
        code: str = "",
        allowed: Sequence[str] = (),
        model: Path = llama,
        data: Path = rows,
    ) -> Group:
        folder.mkdir(exist_ok=True)
        (folder / "zero.json").write_text(json.dumps(own), encoding="utf-8")
        sharded = (f"train.parallel=zero{stage}", f"train.deepspeed={folder / 'zero.json'}")
        mode = sharded if stage else ("engine=peft",)
        sets = [word for setting in (*RUN, *mode, *settings) for word in ("--set", setting)]
        sets += [word for field in allowed for word in ("--allow-change", field)]
        inputs = ["train", "--model", str(model), "--data", str(data), "--output", "out"]
        inputs.append(unchecked("two processes at once"))
        command = [sys.executable, "-c", f"{code}\nfrom loradock import cli\ncli.main()", *inputs, *sets]
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        paths = [each for each in (layer, str(ROOT / "src")) if each]
        shared = {
            "PYTHONPATH": os.pathsep.join(paths),
            "TORCH_EXTENSIONS_DIR": str(compiled),
            "LORADOCK_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        logs = [folder / f"{len(list(folder.glob('*.log')))}-{rank}.log" for rank in range(count)]
        processes: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(logs):
            environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            with log.open("wb") as stream:
                processes.append(
                    subprocess.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT)
                )
        started.extend(processes)
        return Group(folder, processes, logs)

    yield begin
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def alone(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """The run of one process, without DeepSpeed."""
    group = start(tmp_path_factory.mktemp("alone"), count=1)
    assert group.finish() == [0], group.text()
    return group


@pytest.fixture(scope="session")
def undisturbed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Group]:
    """Makes the run of two processes, with dropout, that nobody disturbs; each once."""
    made: dict[str, Group] = {}

    def finished(stage: int, own: Any = ALL_CUT) -> Group:
        key = json.dumps([stage, own])
        if key not in made:
            made[key] = start(tmp_path_factory.mktemp("undisturbed"), DROPOUT, stage=stage, own=own)
            assert made[key].finish() == [0, 0], made[key].text()
        return made[key]

    return finished
