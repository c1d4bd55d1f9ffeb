"""Where processes meet, and by which interface: from options and the environment, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from faults.pairs import two_hosts

from loradock.commands.launch import launch
from loradock.errors import UsageError
from loradock.launching.place import Place, address, interface_to, interfaces, place_of


@pytest.mark.parametrize(
    ("text", "found"),
    [("node-0:29500", ("node-0", 29500)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[fd00::1]:29500", ("fd00::1", 29500))],
)
def test_a_meeting_place_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert address(text) == found


@pytest.mark.parametrize("text", ["node-0", ":29500", "node-0:", "node-0:http", "node-0:0", "node-0:65536"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        address(text)


def test_several_machines_have_to_be_told_where_and_which() -> None:
    with pytest.raises(UsageError, match="--nnodes 2 needs --node-rank"):
        place_of(processes=1, nodes=2, node=None, meeting="a:1")
    with pytest.raises(UsageError, match="--nnodes 2 needs --rdzv"):
        place_of(processes=1, nodes=2, node=1, meeting=None)
    with pytest.raises(UsageError, match=r"--node-rank 2 is none of 2 node\(s\)"):
        place_of(processes=1, nodes=2, node=2, meeting="a:1")


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
    look = f"from loradock.launching.place import interface_to; print(interface_to({host!r}, 29500))"
    with two_hosts() as hosts:
        done = subprocess.run(
            ["ip", "netns", "exec", hosts[0], sys.executable, "-c", look], capture_output=True, text=True, check=True
        )
    assert done.stdout == "cable\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--nproc", "two", "train"], "--nproc two is neither a number nor auto"),
        (["--nproc", "0", "train"], "--nproc 0 is neither a number nor auto"),
        (["--nnodes", "2", "train"], "--nnodes 2 needs --node-rank"),
        (["--rdzv", "here", "train"], "--rdzv here is not HOST:PORT"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], what: str) -> None:
    result = CliRunner().invoke(launch, arguments, env={"CUDA_VISIBLE_DEVICES": "", "JOB_COMPLETION_INDEX": None})
    assert isinstance(result.exception, UsageError)
    assert what in result.exception.what


def test_kubernetes_says_which_machine_this_is(tmp_path: Path) -> None:
    """An indexed Job by its completion index, Kubeflow's trainer by variables of its own; options go before both."""
    (tmp_path / "loradock").mkdir()
    (tmp_path / "loradock" / "__main__.py").write_text(
        "import os; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')))"
    )
    (tmp_path / "loradock" / "__init__.py").touch()
    start = "from loradock import cli; import os, sys; os.environ['PYTHONPATH'] = sys.argv.pop(1); cli.main()"
    kubeflow = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "29400", "PET_NPROC_PER_NODE": "1"}
    environment = {**os.environ, **kubeflow, "PET_NNODES": "2", "PET_NODE_RANK": "1", "JOB_COMPLETION_INDEX": ""}
    command = [sys.executable, "-c", start, str(tmp_path), "launch"]
    found = [
        subprocess.run([*command, *options, "train"], env=environment, capture_output=True, text=True)
        for options in ([], ["--nnodes", "1", "--node-rank", "0", "--rdzv", "127.0.0.1:7"])
    ]
    assert [each.stdout for each in found] == ["1 2 127.0.0.1 29400\n", "0 1 127.0.0.1 7\n"], found[0].stderr
    del environment["PET_NODE_RANK"]
    environment["JOB_COMPLETION_INDEX"] = "1"
    done = subprocess.run([*command, "train"], env=environment, capture_output=True, text=True)
    assert done.stdout == "1 2 127.0.0.1 29400\n", done.stderr


def test_the_launcher_imports_no_torch() -> None:
    """It stays for the whole run, once a machine."""
    look = "import sys; from loradock.commands import launch; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
