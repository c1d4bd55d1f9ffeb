"""ZeRO-2 and ZeRO-3 with DeepSpeed itself: two and three processes (gloo on the CPU) beside one without it.

DeepSpeed is in no lock that the tests are run from: it is put beside them from the optional one. transformers looks for
it when it is imported, so each process here starts from nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from loradock.engine.checkpoints import visible
from loradock.errors import Diverged, EnvironmentUnfit

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[3]
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
    "data.max_length=64",
    "logging.every=1",
    "logging.monitor_seconds=0",
    "lora.rank=3",
    "engine=trl",
)
# A tiny model's weights are all smaller than what stays whole by default.
ALL_CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
OFFLOADED = {
    "zero_optimization": {
        "stage3_param_persistence_threshold": 0,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
}
SLOW = """
import time
from loradock.engine.flow import Flow
real = Flow.after
def after(self, step):
    time.sleep(0.5)
    return real(self, step)
Flow.after = after
"""
# As transformers or accelerate would pass over what they were told.
REPLACED = """
from loradock.engine.trl import zero
zero.settings = lambda job: None
"""
INFINITE = """
import torch
from loradock.engine.trl.zero_trainer import ZeroTrainer
real = ZeroTrainer.backward
class Spoilt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("inf")
def backward(self, model, loss):
    real(self, model, Spoilt.apply(loss) if self.step == 4 and self.job.rank == 1 else loss)
ZeroTrainer.backward = backward
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

    def losses(self) -> list[float]:
        lines = map(json.loads, (self.folder / "out" / "metrics.jsonl").read_text("utf-8").splitlines())
        return [line["loss"] for line in lines if line["kind"] == "train"]

    def share(self) -> dict[str, int]:
        record = json.loads((self.folder / "out" / "run.json").read_text(encoding="utf-8"))
        return next(each["value"] for each in record["engine"] if each["name"] == "share of the model")


Start = Callable[..., Group]


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def start(layer: str, llama: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    compiled = tmp_path_factory.mktemp("operations")

    def begin(
        folder: Path,
        *settings: str,
        count: int = 2,
        stage: int = 0,
        own: Any = ALL_CUT,
        code: str = "",
        allowed: Sequence[str] = (),
    ) -> Group:
        folder.mkdir(exist_ok=True)
        (folder / "zero.json").write_text(json.dumps(own), encoding="utf-8")
        mode = (f"train.parallel=zero{stage}", f"train.deepspeed={folder / 'zero.json'}") if stage else ()
        sets = [word for setting in (*RUN, *mode, *settings) for word in ("--set", setting)]
        sets += [word for field in allowed for word in ("--allow-change", field)]
        inputs = ["train", "--model", str(llama), "--data", str(rows), "--output", "out", "--skip-env-check"]
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
        return Group(folder, processes, logs)

    return begin


@pytest.fixture(scope="module")
def alone(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Group:
    """The run of one process, without DeepSpeed."""
    group = start(tmp_path_factory.mktemp("alone"), count=1)
    assert group.finish() == [0], group.text()
    return group


def assert_same(group: Group, alone: Group) -> None:
    """But for the order of additions."""
    assert len(group.losses()) == STEPS
    assert group.losses() == pytest.approx(alone.losses(), rel=1e-5)
    mine, other = load(group.adapter()), load(alone.adapter())
    assert mine.keys() == other.keys()
    assert all(torch.allclose(mine[name], other[name], atol=1e-5) for name in mine)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("stage", [2, 3])
def test_processes_train_what_one_does_and_each_holds_its_share(
    stage: int, count: int, tmp_path: Path, start: Start, alone: Group
) -> None:
    """Three processes have not the same number of micro-batches, and weights that no three parts are equal of."""
    group = start(tmp_path, stage=stage, count=count)
    assert group.finish() == [0] * count, group.text()
    assert_same(group, alone)
    share = group.share()
    assert share["stage"] == stage
    assert share["processes"] == count
    assert share["local_trained"] == pytest.approx(share["trained"] / count, rel=0.02)
    assert share["local_weights"] == pytest.approx(share["weights"] / (count if stage == 3 else 1), rel=0.02)


@pytest.mark.parametrize(("stage", "own"), [(2, ALL_CUT), (3, ALL_CUT), (3, OFFLOADED)])
def test_a_run_that_a_signal_ended_continues_to_the_same_bits(
    stage: int, own: Any, tmp_path: Path, start: Start
) -> None:
    dropout = "lora.dropout=0.1"
    whole = start(tmp_path / "whole", dropout, stage=stage, own=own)
    assert whole.finish() == [0, 0], whole.text()
    first = start(tmp_path / "cut", dropout, stage=stage, own=own, code=SLOW)
    first.reach(2)
    for each in first.processes:
        each.send_signal(signal.SIGTERM)
    assert first.finish() == [75, 75], first.text()
    step, _ = visible(first.folder / "out" / "checkpoints")[0]
    assert step % 4, "it was committed because of the signal"
    again = start(tmp_path / "cut", dropout, stage=stage, own=own)
    assert again.finish() == [0, 0], again.text()
    assert f"continuing from checkpoint-{step}" in again.text()
    assert again.adapter() == whole.adapter()


def test_a_run_goes_on_without_deepspeed_on_another_number_of_processes(
    tmp_path: Path, start: Start, alone: Group
) -> None:
    first = start(tmp_path, stage=3, code=SLOW)
    first.reach(3)
    for each in first.processes:
        each.send_signal(signal.SIGTERM)
    assert first.finish() == [75, 75], first.text()
    again = start(tmp_path, count=1, allowed=["train.parallel", "train.deepspeed", "world_size", "plan"])
    assert again.finish() == [0], again.text()
    assert "continuing from checkpoint-" in again.text()
    assert_same(again, alone)


def test_a_mode_that_was_silently_replaced_is_an_error_that_names_it(tmp_path: Path, start: Start) -> None:
    group = start(tmp_path, stage=2, code=REPLACED)
    assert group.finish() == [EnvironmentUnfit.exit_code] * 2
    assert "train.parallel zero2 was silently replaced: the model came out as DistributedDataParallel" in group.text()
    assert group.losses() == []


@pytest.mark.parametrize("stage", [2, 3])
def test_a_gradient_that_is_not_finite_on_one_process_ends_all_before_the_step(
    stage: int, tmp_path: Path, start: Start
) -> None:
    group = start(tmp_path, stage=stage, code=INFINITE)
    assert group.finish() == [Diverged.exit_code] * 2
    assert "training diverged at step 5: the gradient norm is inf" in group.text()
    assert [step for step, _ in visible(group.folder / "out" / "checkpoints")] == [4]
    assert len(group.losses()) == 4


def test_a_file_that_contradicts_the_run_ends_every_process_with_its_problems(tmp_path: Path, start: Start) -> None:
    group = start(tmp_path, stage=2, own={"train_batch_size": 99, "optimizer": {}})
    assert group.finish() == [78, 78]
    assert "train_batch_size is 99, and the run's is 8 (--set train.global_batch=99)" in group.text()
    assert "optimizer is not DeepSpeed's to decide here" in group.text()
