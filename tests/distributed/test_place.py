"""Where processes meet, and by which interface: from options and the environment, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from faults.pairs import two_hosts

from loradock.cli import cli
from loradock.distributed.place import Place, address, continuing, interface_to, interfaces, mistakes, place_of
from loradock.errors import ConfigError, InputMissing, LoradockError, UsageError

pytestmark = pytest.mark.thin(2)


@pytest.mark.parametrize(
    ("text", "found"),
    [("node-0:29500", ("node-0", 29500)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[fd00::1]:29500", ("fd00::1", 29500))],
)
def test_a_meeting_place_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert address(text) == found


@pytest.mark.parametrize("text", ["node-0", ":29500", "node-0:", "node-0:http", "node-0:0", "node-0:65536"])
def test_anything_else_is_none(text: str) -> None:
    assert address(text) is None
    assert wrong(meeting=text) == [f"--rdzv {text} is not HOST:PORT"]


def wrong(*, processes: str = "2", nodes: int = 1, node: int | None = None, meeting: str | None = None) -> list[str]:
    return [each.what for each in mistakes(processes=processes, nodes=nodes, node=node, meeting=meeting)]


def test_several_machines_have_to_be_told_where_and_which() -> None:
    assert wrong(nodes=2, meeting="a:1") == ["--nnodes 2 needs --node-rank"]
    assert wrong(nodes=2, node=1) == ["--nnodes 2 needs --rdzv"]
    assert wrong(nodes=2, node=2, meeting="a:1") == ["--node-rank 2 is out of range for 2 node(s)"]
    assert wrong(nodes=2, node=0, meeting="a:1") == wrong(processes="auto") == []


def test_one_machine_needs_nothing() -> None:
    place = place_of(processes=2, nodes=1, node=None, meeting=None)
    assert (place.host, place.node) == ("127.0.0.1", 0)
    assert place.port > 1023


def test_one_machine_keeps_the_interface_that_libraries_choose() -> None:
    assert interfaces(Place(processes=2, nodes=1, node=0, host="127.0.0.1", port=1), {}) == {}


def test_the_interface_is_the_one_that_leads_to_the_meeting_place() -> None:
    place = Place(processes=1, nodes=2, node=0, host="127.0.0.1", port=29500)
    assert interfaces(place, {"NCCL_SOCKET_IFNAME": "ib0"}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert interface_to("no.such.host.invalid", 1) is None


@pytest.mark.parametrize("host", ["10.77.0.1", "10.77.0.2"])
def test_on_another_host_it_is_the_cable_and_on_the_host_itself_too(host: str) -> None:
    look = f"from loradock.distributed.place import interface_to; print(interface_to({host!r}, 29500))"
    with two_hosts() as hosts:
        done = subprocess.run(
            ["ip", "netns", "exec", hosts[0], sys.executable, "-c", look], capture_output=True, text=True, check=True
        )
    assert done.stdout == "cable\n", done.stderr


def refusal(*arguments: str) -> UsageError:
    """Why `loradock launch ARGUMENTS` starts nothing."""
    result = CliRunner().invoke(cli, ["launch", *arguments], env={"JOB_COMPLETION_INDEX": None})
    assert isinstance(result.exception, UsageError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--nproc", "two", "train", "--demo"], "--nproc two is not a number or auto"),
        (["--nproc", "0", "train", "--demo"], "--nproc 0 is not a number or auto"),
        (["--rdzv", "here", "train", "--demo"], "--rdzv here is not HOST:PORT"),
        (["--grace", "-1", "train", "--demo"], "Invalid value for '--grace': -1.0 is not in the range x>=0."),
        (["--nodes", "2", "train"], "unknown option of launch: --nodes"),
        (["ls"], "ls cannot be launched"),
        (["profile", "run.yaml"], "profile cannot be launched"),
        (["train", "--learning", "1"], "train: No such option '--learning'."),
        (["net-check", "--rounds", "1"], "net-check: Invalid value for '--rounds': 1 is not in the range 3<=x<=99."),
    ],
)
def test_the_command_refuses_what_makes_no_sense_before_it_starts_anything(arguments: list[str], what: str) -> None:
    assert refusal(*arguments).what == what


def test_every_option_that_is_unknown_is_told() -> None:
    refused = refusal("--nproc", "2", "train", "--demo", "--max-stepz", "4", "--nope")
    assert "--max-stepz: no key here does it" in refused.what
    assert "--nope: no key here does it" in refused.what


def test_what_is_wrong_with_the_configuration_is_told_with_the_rest() -> None:
    options = ["--nnodes", "2", "--node-rank", "2", "--rdzv", "node0"]
    refused = refusal(*options, "train", "--demo", "--set", "lora.rnak=3")
    assert any("rnak" in problem.what for problem in refused.problems)
    assert any("--rdzv node0" in problem.what for problem in refused.problems)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nofile.yaml"], InputMissing),
        (["--demo", "--set", "lora.rnak=3", "--set", "lora.alhpa=1"], ConfigError),
        (["--demo", "--resume", "--fresh"], UsageError),
    ],
)
def test_a_configuration_that_train_would_refuse_starts_nothing(
    arguments: list[str], error: type[LoradockError], tmp_path: Path
) -> None:
    stand_in(tmp_path, "print('a process was started')")
    done = subprocess.run([*by_hand(tmp_path), "--nproc", "2", "train", *arguments], capture_output=True, text=True)
    assert done.returncode == error.exit_code, done.stderr
    assert done.stdout == ""


def test_all_mistakes_are_told_at_once() -> None:
    refused = refusal("--nproc", "x", "--nnodes", "2", "--node-rank", "b", "--rdzv", "here", "trian", "run.yaml")
    assert refused.what == "5 wrong options; nothing was started"
    assert [problem.what for problem in refused.problems] == [
        "Invalid value for '--node-rank': 'b' is not a valid integer.",
        "--nproc x is not a number or auto",
        "--nnodes 2 needs --node-rank",
        "--rdzv here is not HOST:PORT",
        "trian cannot be launched",
    ]


def test_what_continues_a_run_is_started_as_the_run_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LORADOCK_LAUNCHER", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert continuing(Path("a run")) == "the same command, or loradock train --resume --output 'a run', continues"
    monkeypatch.setenv("LORADOCK_LAUNCHER", "loradock launch --nproc 2")
    assert "or loradock launch --nproc 2 train --resume --output out, continues" in continuing(Path("out"))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert continuing(Path("out")) == "the same command continues", "by torchrun, whose options are not known here"


def test_the_processes_are_told_how_the_launcher_was_called(tmp_path: Path) -> None:
    stand_in(tmp_path, "import os; print(os.environ['LORADOCK_LAUNCHER'])")
    options = ["--nproc", "1", "--nnodes", "1", "--logs", str(tmp_path / "my logs")]
    done = subprocess.run([*by_hand(tmp_path), *options, "train", "--demo"], capture_output=True, text=True)
    assert done.stdout == f"loradock launch --nproc 1 --nnodes 1 --logs '{tmp_path}/my logs'\n", done.stderr


def stand_in(folder: Path, code: str) -> None:
    """A package `loradock` whose command is `code`."""
    (folder / "loradock").mkdir()
    (folder / "loradock" / "__main__.py").write_text(code)
    (folder / "loradock" / "__init__.py").touch()


def by_hand(folder: Path) -> list[str]:
    """`loradock launch`, whose processes find the package in the folder."""
    start = "from loradock import cli; import os, sys; os.environ['PYTHONPATH'] = sys.argv.pop(1); cli.main()"
    return [sys.executable, "-c", start, str(folder), "launch"]


def test_kubernetes_says_which_machine_this_is(tmp_path: Path) -> None:
    """An indexed Job by its completion index, Kubeflow's trainer by variables of its own; options go before both."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    stand_in(tmp_path, f"import os; print(*(os.environ[name] for name in {names!r}))")
    kubeflow = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "29400", "PET_NPROC_PER_NODE": "1"}
    environment = {**os.environ, **kubeflow, "PET_NNODES": "2", "PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": ""}
    command = by_hand(tmp_path)
    found = [
        subprocess.run([*command, *options, "train", "--demo"], env=environment, capture_output=True, text=True)
        for options in ([], ["--nnodes", "1", "--node-rank", "0", "--rdzv", "127.0.0.1:7"])
    ]
    assert [each.stdout for each in found] == ["1 2 127.0.0.1 29400\n", "0 1 127.0.0.1 7\n"], found[0].stderr
    del environment["PET_NODE_RANK"]
    environment["JOB_COMPLETION_INDEX"] = "1"
    done = subprocess.run([*command, "train", "--demo"], env=environment, capture_output=True, text=True)
    assert done.stdout == "1 2 127.0.0.1 29400\n", done.stderr


def test_the_launcher_imports_no_torch() -> None:
    """It stays for the whole run, once a machine."""
    look = (
        "import sys; from loradock.cli import cli; cli(['launch', 'train', '--help'], standalone_mode=False);"
        "from loradock.distributed import processes; print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert "Fine-tune a QLoRA adapter" in done.stdout, "once, not by each process"
    assert done.stdout.endswith("set()\n")
