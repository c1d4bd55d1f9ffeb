"""`loradock launch train` as a user types it: cold, on one machine, and on two network namespaces as two hosts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from faults.forking import Forking
from faults.pairs import (
    ENDS_SECONDS,
    RUN_SECONDS,
    SAVE_EVERY,
    SLOW,
    STEPS,
    adapter,
    arguments,
    begun,
    cut,
    lines,
    read,
    two_hosts,
)
from safetensors.torch import load

from loradock.errors import Hung

PEER_SECONDS = 5.0
GIVES_UP_SECONDS = 25.0
"""That the launcher gives to what does not end."""
PATHS = os.pathsep.join(sys.path)


class Launcher:
    """One that runs, in a folder, on a host."""

    def __init__(self, folder: Path, words: Sequence[str], *options: str, host: str = "", name: str = "log") -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / name
        inside = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$0" "$@"']
        command = [sys.executable, "-m", "loradock", "launch", *options, *words]
        slow = folder / "slow"
        slow.mkdir(exist_ok=True)
        (slow / "sitecustomize.py").write_text(LATER)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(slow), PATHS]),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "LORADOCK_CACHE": str(folder / "cache"),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*(inside if host else []), *command],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def reached(self, step: int) -> None:
        until = time.monotonic() + RUN_SECONDS
        while f"step {step}/{STEPS}" not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < until, self.text()
            time.sleep(0.05)

    def ranks(self) -> dict[int, int]:
        """The processes that it started: rank -> process id."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = {}
        for child in children:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found[int(next(word[5:] for word in environment if word.startswith(b"RANK=")))] = int(child)
        return found

    def finish(self, *, seconds: float = RUN_SECONDS) -> int:
        """Wait for its end; one that does not end is killed with its processes, and fails the test."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"no end within {seconds} s:\n{self.text()[-3000:]}") from None


# The steps of a run are made slower once its engine is imported.
LATER = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "loradock.training.backends.fast.backend":
            sys.meta_path.remove(self)
            exec({SLOW!r}, {{}})
if "launch" not in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def words(llama: Path, rows: Path) -> list[str]:
    return arguments(llama, rows, f"limits.peer_seconds={PEER_SECONDS}", engine="fast")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, words: list[str], forking: Forking) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    pair = begun(forking, folder, words)
    assert pair.finish() == [0, 0], pair.text()
    return adapter(folder)


def on_both(folder: Path, words: list[str], hosts: tuple[str, str], *, name: str) -> list[Launcher]:
    """A launcher on each host, of one process; the folder is what they share."""
    options = ("--nproc", "1", "--nnodes", "2", "--rdzv", "10.77.0.1:29500", "--node-rank")
    return [
        Launcher(folder, words, *options, str(node), host=host, name=f"{name}-{node}")
        for node, host in enumerate(hosts)
    ]


@pytest.mark.thin(3)
def test_a_killed_process_ends_the_run_with_137_and_its_name(tmp_path: Path, words: list[str]) -> None:
    launcher = Launcher(tmp_path, words, "--nproc", "2")
    launcher.reached(SAVE_EVERY + 1)
    os.kill(launcher.ranks()[1], signal.SIGKILL)
    assert launcher.finish(seconds=ENDS_SECONDS) == 137, launcher.text()
    host = os.uname().nodename
    assert f"error: another rank of this run has ended: rank 1 on {host}, last heard of " in launcher.text()
    assert f"launch: rank 1 on {host} was killed by SIGKILL; then rank 0, for that reason;" in launcher.text()
    status = read(tmp_path, "status.json")
    assert (status["state"], status["exit_code"]) == ("failed", 137)
    assert "[Gloo]" not in launcher.text()


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_launcher_ends_with_75_and_the_same_command_continues_to_the_same_bits(
    sent: signal.Signals, tmp_path: Path, words: list[str], undisturbed: bytes
) -> None:
    launcher = Launcher(tmp_path, words, "--nproc", "2")
    launcher.reached(SAVE_EVERY + 1)
    launcher.process.send_signal(sent)
    assert launcher.finish() == 75, launcher.text()
    assert "or loradock launch --nproc 2 train --resume --output out, continues" in launcher.text()
    again = Launcher(tmp_path, words, "--nproc", "2", name="again")
    assert again.finish() == 0, again.text()
    assert "continuing from checkpoint-" in again.text()
    assert adapter(tmp_path) == undisturbed


@pytest.mark.full
def test_two_hosts_train_what_one_process_does(tmp_path: Path, words: list[str]) -> None:
    """But for the order of additions: its masks of dropout, too."""
    one = Launcher(tmp_path / "one", words, "--nproc", "1")
    assert one.finish() == 0, one.text()
    with two_hosts() as hosts:
        two = on_both(tmp_path / "two", words, hosts, name="log")
        assert [each.finish() for each in two] == [0, 0], two[0].text()
    losses = [[line["loss"] for line in lines(tmp_path / name, "train")] for name in ("one", "two")]
    weights = [load(adapter(tmp_path / name)) for name in ("one", "two")]
    assert len(losses[0]) == STEPS
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])
    assert "launch: GLOO_SOCKET_IFNAME=cable, which leads to 10.77.0.1" in two[1].text()


@pytest.mark.full
@pytest.mark.parametrize("fault", ["host a killed", "host b killed", "cut cable", "stopped"])
def test_what_is_lost_is_named_on_the_host_that_is_left_and_the_run_continues_to_the_same_bits(
    fault: str, tmp_path: Path, words: list[str], undisturbed: bytes
) -> None:
    with two_hosts() as hosts:
        both = on_both(tmp_path, words, hosts, name="log")
        both[0].reached(SAVE_EVERY + 1)
        lost = 0 if fault == "host a killed" else 1
        left = both[1 - lost]
        if fault == "cut cable":
            cut(hosts[1])
        elif fault == "stopped":
            os.kill(both[1].ranks()[1], signal.SIGSTOP)
        else:
            for process in (*both[lost].ranks().values(), both[lost].process.pid):
                os.kill(process, signal.SIGKILL)
        code = left.finish(seconds=ENDS_SECONDS + GIVES_UP_SECONDS)
        assert code == (71 if "killed" in fault else Hung.exit_code), left.text()
        assert re.search(rf"error: .* rank {lost} on {hosts[lost]}", left.text())
        if fault == "stopped":
            os.kill(both[1].ranks()[1], signal.SIGKILL)
        both[lost].finish()
    with two_hosts() as hosts:
        again = on_both(tmp_path, words, hosts, name="again")
        assert [each.finish() for each in again] == [0, 0], again[0].text()
    assert "continuing from checkpoint-" in again[0].text()
    assert adapter(tmp_path) == undisturbed
