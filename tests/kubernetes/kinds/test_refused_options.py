"""Options that contradict each other, have no effect, or give what --check refuses: all told, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes.kinds.conftest import IMAGE
from kubernetes.kinds.test_command import UNKNOWN, render
from kubernetes.kinds.test_site_options import HERE, refused


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--shm", "8Gi", "--memory", "4Gi"), "memory"),
        (("--deadline-seconds", "10"), "activeDeadlineSeconds"),
        (("--grace-seconds", "1"), "terminationGracePeriodSeconds"),
    ],
)
def test_what_its_own_check_refuses_is_not_written(options: tuple[str, ...], rule: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    assert rule in refused("job", *UNKNOWN, *HERE, *options, "-o", file)
    assert not file.exists()


def test_without_the_schemas_it_is_rendered_and_said_that_nothing_was_checked(tmp_path: Path) -> None:
    """A package of that name lies first on the path, and carries no schemas: as one that is too old."""
    (tmp_path / "kubernetes_validate").mkdir()
    (tmp_path / "kubernetes_validate" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "loradock", "render", "pod", "--demo", "--image", IMAGE],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "kind: Pod" in done.stdout
    assert "are not installed, so what is rendered was not checked (pip install 'kubernetes-validate" in done.stderr


def test_options_that_contradict_or_do_nothing_are_told_together() -> None:
    said = refused(
        "job", *UNKNOWN, *HERE, "--gpu", "h100", "--gpus", "0", "--memory", "64", "--storage", "50k",
        "--fetch-arg", "a", "--topology", "zone", "--secret-env", "A=b:c", "--env", "A=1",
        "--secret-env", "B=b:c", "--secret-env", "B=b:d",
    )  # fmt: skip
    for words in (
        "--gpu h100 and --gpus 0", "--memory 64Gi?", "--storage 64Gi", "--fetch-image REF", "there is one",
        "A is given by --env and by --secret-env", "--secret-env names B twice",
    ):  # fmt: skip
        assert words in said, words


def test_a_relative_path_that_reads_as_a_hub_id_is_told_how_to_be_written() -> None:
    error = render("job", "--model", "models/Llama-3-70B", "--data", "x", *HERE).exception
    assert "./models/Llama-3-70B" in str(error)


def test_all_that_a_pod_cannot_do_is_told_at_once() -> None:
    said = refused("pod", *UNKNOWN, *HERE, "--nodes", "2", "--ttl-seconds", "4")
    assert "one node, not 2" in said
    assert "--ttl-seconds" in said
