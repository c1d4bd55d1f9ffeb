"""What Slurm and SkyPilot say of a task becomes what torchrun would say of it. Values as srun and sky set them."""

from __future__ import annotations

import pytest

from loradock.distributed.schedulers import first_host, meeting, rank_of_step

STEP = {
    "SLURM_JOB_ID": "4711042",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_a_task_of_a_step_has_its_rank_and_the_first_node_as_meeting_place() -> None:
    assert rank_of_step(STEP) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "29542",
    }
    assert meeting(STEP) == "gpu07:29542"


@pytest.mark.parametrize(
    "change",
    [{"RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}, {"SLURM_STEP_NODELIST": ""}],
    ids=["a launcher said it", "one task", "a shell of salloc", "no nodes"],
)
def test_elsewhere_nothing_is_said(change: dict[str, str]) -> None:
    assert rank_of_step({**STEP, **change}) == {}


def test_skypilot_names_the_first_of_several_nodes() -> None:
    assert meeting({"SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.9"}) == "10.0.0.4:29500"
    assert meeting({"SKYPILOT_NODE_IPS": "10.0.0.4"}) is None
    assert meeting({}) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a1", "a1"), ("a1,b[2-3]", "a1"), ("gpu[07-09,12],cpu1", "gpu07"), ("r[1-2]n[3,5]", "r1n3"), ("n[8]", "n8")],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
