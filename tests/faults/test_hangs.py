"""P12, on whole runs: what never answers ends with 82 within its limit, and nothing of the run is left behind.

A data worker, a step or a write to the disk sleeps for ever: `code` that the process runs first puts the sleep where
the work would be done (see `seams`). The hub is a real socket that accepts and never answers.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from faults.conftest import Trial
from faults.forking import Command, Forking
from faults.seams import SEAMS
from jobs import NO_LIMITS, job_of, trained
from proven import unchecked

from loradock.distributed.watchdog import Phase, Watchdog
from loradock.errors import Hung

LIMIT_SECONDS, SLACK_SECONDS = 2.0, 6.0
SLOW_SECONDS = 0.7
"""For each of the six files of a model: more than LIMIT_SECONDS together."""
REVISION = "0" * 40
RUN = ("--set", "train.max_steps=6", "--set", "train.global_batch=8", "--set", "lora.rank=4")
# What hangs writes the time to `hangs` first; the test holds the end of the process against it.
HANG = """
import time
from pathlib import Path
from loradock.files import atomic_io
from faults.seams import SEAMS
from jobs import NO_LIMITS, job_of
from loradock.training import batches
def hang():
    Path("hangs").write_text(str(time.time()))
    while True: time.sleep(60)
"""
WORKER = f"""{HANG}
real = batches.StepItems.__getitem__
batches.StepItems.__getitem__ = lambda self, index: hang() if index == 3 else real(self, index)
"""
STEP = f"""{HANG}
SEAMS["ENGINE"].loss(lambda loss, step, is_training: hang() if is_training and step == 4 else loss)
"""
EVALUATION = f"""{HANG}
SEAMS["ENGINE"].loss(lambda loss, step, is_training: loss if is_training else hang())
"""
SAVE = f"""{HANG}
real = atomic_io.write
def write(file, content, **more):
    if file.parent.name.startswith(".stage-") and (file.parents[1] / "checkpoint-2").exists(): hang()
    return real(file, content, **more)
atomic_io.write = write
"""
EXPORT = f"""{HANG}
from loradock.model import export
export.export = lambda *rest, **more: hang()
"""
SETUP = f"""{HANG}
from loradock.model import load
load.load = lambda *rest, **more: hang()
"""
HANGS = {
    "worker": (WORKER, "step", ("--set", "train.workers=2"), ["checkpoint-2"]),
    "step": (STEP, "step", (), ["checkpoint-2"]),
    "save": (SAVE, "save", (), ["checkpoint-2"]),
    "evaluation": (EVALUATION, "step", ("--set", "data.validation=8", "--set", "evaluation.every=4"), ["checkpoint-2"]),
    "export": (EXPORT, "save", (), ["checkpoint-6", "checkpoint-4"]),
    "base": (SETUP, "setup", (), []),
}
OF_ENGINES = ("step", "evaluation")
"""Cases in which the engine's own code has to give signs of life; the others are the same for every engine."""
IN_CI = (("worker", "fast"), ("save", "fast"), ("step", "fast"), ("step", "peft"))
CASES = [(case, engine) for case in HANGS for engine in (SEAMS if case in OF_ENGINES else ("fast",))]


def limits(phase: str) -> tuple[str, ...]:
    """A short limit for this phase, and long ones for the others."""
    each = {name: LIMIT_SECONDS if name == phase else 100.0 for name in ("setup", "step", "save")}
    return tuple(word for name, value in each.items() for word in ("--set", f"limits.{name}_seconds={value}"))


def judged(run: Path, *, code: int, took_seconds: float, left: list[int]) -> dict[str, object]:
    """What is wrong with the end of a run that hung."""
    record, status = (json.loads((run / name).read_text(encoding="utf-8")) for name in ("run.json", "status.json"))
    flaws: dict[str, object] = {}
    if code != Hung.exit_code:
        flaws["code"] = code
    if not LIMIT_SECONDS - 1 < took_seconds < LIMIT_SECONDS + SLACK_SECONDS:
        flaws["took_seconds"] = took_seconds
    found = (record["status"], record["exit_code"], status["state"], status["exit_code"])
    if found != ("failed", code, "failed", code):
        flaws["recorded"] = found
    if "no progress for" not in record["error"]:
        flaws["error"] = record["error"]
    if left:
        flaws["left"] = left
    return flaws


def watched(run: Command, place: Path) -> tuple[int, float, list[int]]:
    """Its exit code, the seconds since it began to hang, and what is left of it."""
    code = run.finish()
    took_seconds = time.time() - float((place / "hangs").read_text())
    return code, took_seconds, run.left_behind()


@pytest.mark.parametrize(
    ("case", "engine"), [pytest.param(*each, marks=[] if each in IN_CI else pytest.mark.full) for each in CASES]
)
def test_what_hangs_ends_with_82_within_its_limit(
    case: str, engine: str, tmp_path: Path, llama: Path, rows: Path, forking: Forking, trial: Trial
) -> None:
    code, phase, settings, committed = HANGS[case]
    inputs = ("--model", str(llama), "--data", str(rows), "--output", "out", unchecked("hangs while it trains"))
    arguments = ("train", *inputs, *RUN, "--set", "checkpoints.every=2", *limits(phase), *settings)
    arguments = (*arguments, "--set", f"engine={engine}")
    run = forking.start(tmp_path, *arguments, code=code.replace("ENGINE", engine))
    ended, took_seconds, left = watched(run, tmp_path)
    flaws = judged(tmp_path / "out", code=ended, took_seconds=took_seconds, left=left)
    names = [each.name for each in (tmp_path / "out" / "checkpoints").glob("checkpoint-*")]
    if sorted(names, reverse=True) != committed:
        flaws["committed"] = names
    where = "in _try_get_data\n" if case == "worker" else "in hang\n"
    assert where in run.text(), "the stacks say where it hangs"
    tried = engine if case in OF_ENGINES else None
    trial("P12", not flaws, engine=tried, case=case, took_seconds=round(took_seconds, 2), flaws=flaws)
    if case == "save":
        again = forking.start(tmp_path, *arguments, *limits("none"))
        assert again.finish() == 0, again.text()
        assert "continuing from checkpoint-2" in again.text()


class Noted(Watchdog):
    """Notes every sign of life, and waits for none."""

    def __init__(self) -> None:
        super().__init__(NO_LIMITS, heartbeat=None, on_hang=print)
        self.seen: list[str] = []

    def beat(self, phase: Phase | None = None) -> None:
        self.seen.append("beat")


@pytest.mark.parametrize("engine", ["fast", pytest.param("peft", marks=pytest.mark.full)])
def test_every_pass_of_a_step_and_of_an_evaluation_is_a_sign_of_life(
    engine: str, tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of many passes may take longer than the limit."""
    settings = (f"engine={engine}", "train.max_steps=2", "train.micro_batch=1", "data.validation=8")
    job, noted = job_of(tmp_path, *settings, model=llama, data=rows), Noted()

    def passed(loss: torch.Tensor, step: int, is_training: bool) -> torch.Tensor:
        noted.seen.append("trained" if is_training else "evaluated")
        return loss

    SEAMS[engine].loss(passed, patch=monkeypatch.setattr)
    trained(replace(job, watchdog=noted))
    passes = [before for before, each in pairwise(noted.seen) if each != "beat"]
    assert {"trained", "evaluated"} < set(noted.seen)
    assert len(passes) > 10
    assert set(passes) == {"beat"}


@pytest.fixture
def silent_hub(tmp_path: Path) -> Iterator[str]:
    """The address of a server that accepts every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                if not (tmp_path / "hangs").exists():
                    (tmp_path / "hangs").write_text(str(time.time()))

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
        for each in connections:
            each.close()


@pytest.mark.thin(4)
def test_a_hub_that_never_answers_ends_with_82(
    tmp_path: Path, rows: Path, silent_hub: str, forking: Forking, trial: Trial
) -> None:
    """Started cold: the hub's library reads its address and its offline switch when it is imported."""
    arguments = ["train", "--model", "owner/name", "--set", f"model.revision={REVISION}", "--data", str(rows)]
    arguments += ["--output", "out", unchecked("a hang before any check"), *limits("setup")]
    code = f"""
import os, sys
os.environ.update({{"HF_ENDPOINT": {silent_hub!r}, "HF_HOME": "hub", "HF_HUB_OFFLINE": "0"}})
os.execv(sys.executable, [sys.executable, "-m", "loradock", *{arguments!r}])
"""
    run = forking.start(tmp_path, code=code, PYTHONPATH=os.pathsep.join(sys.path))
    ended, took_seconds, left = watched(run, tmp_path)
    flaws = judged(tmp_path / "out", code=ended, took_seconds=took_seconds, left=left)
    trial("P12", not flaws, case="silent hub", took_seconds=round(took_seconds, 2), flaws=flaws)


class SlowHub(http.server.BaseHTTPRequestHandler):
    """As much of a model hub as `snapshot_download` asks of one, over the files of `directory`; one file at a time."""

    directory: ClassVar[Path]
    one_at_a_time = threading.Lock()

    def do_HEAD(self) -> None:
        self.answer(self.content(), is_head=True)

    def do_GET(self) -> None:
        content = self.content()
        if "/resolve/" not in self.path:
            self.answer(content)
            return
        with self.one_at_a_time:
            time.sleep(SLOW_SECONDS)
            self.answer(content)

    def content(self) -> bytes:
        """What is asked for: the list of the files, or one of them."""
        if "/resolve/" in self.path:
            return (self.directory / self.path.rpartition("/")[2]).read_bytes()
        files = [{"type": "file", "path": each.name, "size": each.stat().st_size} for each in self.directory.iterdir()]
        for each in files:
            each["oid"] = hashlib.sha1(each["path"].encode()).hexdigest()
        return json.dumps(files if "/tree/" in self.path else {"id": "owner/name", "sha": REVISION}).encode()

    def answer(self, content: bytes, *, is_head: bool = False) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", hashlib.sha1(self.path.rpartition("/")[2].encode()).hexdigest())
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on the screen of the tests."""


@pytest.fixture
def slow_hub(llama: Path) -> Iterator[str]:
    """The address of a hub that has owner/name and takes a while for each of its files."""
    SlowHub.directory = llama
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowHub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(timeout=10)


FETCH = """
import sys
from transformers import AutoConfig, AutoTokenizer, LlamaConfig
import huggingface_hub.utils.tqdm
from loradock.config.sections.model import ModelConfig
from loradock.distributed.watchdog import Limits, Watchdog
from loradock.model import source
with Watchdog(Limits(setup_seconds=2.0, step_seconds=0, save_seconds=0), heartbeat=None, on_hang=print) as watchdog:
    on_bytes = watchdog.beat if sys.argv[2] == "told" else lambda: None
    base = source.find(ModelConfig(name="owner/name", revision=sys.argv[1]), on_bytes=on_bytes)
    print(base.directory)
"""


@pytest.mark.thin(4)
@pytest.mark.parametrize(("told", "code"), [("told", 0), pytest.param("not-told", 82, marks=pytest.mark.full)])
def test_a_hub_that_is_slow_is_waited_for_while_bytes_come(
    told: str, code: int, tmp_path: Path, slow_hub: str, llama: Path, trial: Trial
) -> None:
    """The same watchdog ends it where it is not told of them."""
    environment = os.environ | {"HF_ENDPOINT": slow_hub, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FETCH, REVISION, told], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    if code:
        return
    found = Path(done.stdout.strip())
    names = sorted(each.name for each in llama.iterdir())
    flaws = [name for name in names if (found / name).read_bytes() != (llama / name).read_bytes()]
    trial("P12", not flaws, case="slow hub", flaws=flaws)
