"""A hub id without a commit, by the command line, against a hub on this machine that answers as the public one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.thin(2)

COMMITS = {"/api/models/owner/base": "a1" * 20, "/api/datasets/owner/rows": "b2" * 20}
SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN")


class Hub(BaseHTTPRequestHandler):
    """Tells the commits of two repositories."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        commit = COMMITS.get(self.path.partition("?")[0])
        body = json.dumps({"id": self.path.removeprefix("/api/").partition("/")[2], "sha": commit}).encode()
        self.send_response(200 if commit else 404)
        if not commit:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def shown(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`loradock config show` in a folder, with no other variable of the hub than these."""
    known = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    command = [sys.executable, "-m", "loradock", "config", "show", *words]
    env = known | {"HF_HOME": str(folder / "hf"), "NO_PROXY": "127.0.0.1"} | environment
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_the_latest_commit_of_model_and_data_is_taken_and_the_line_that_keeps_it_is_told(
    hub: str, tmp_path: Path
) -> None:
    done = shown(tmp_path, "--model", "owner/base", "--data", "hub:owner/rows", HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert config["model"]["revision"] == "a1" * 20
    assert config["data"]["sources"][0]["revision"] == "b2" * 20
    model, data = f"--set model.revision={'a1' * 20}", f"--set data.sources.0.revision={'b2' * 20}"
    assert f"owner/base is named without a commit: {model} is taken, and keeps it there" in done.stderr
    assert f"owner/rows is named without a commit: {data} is taken, and keeps it there" in done.stderr
    again = shown(
        tmp_path, "--model", "owner/base", "--data", "hub:owner/rows", *model.split(), *data.split(),
        HF_ENDPOINT="http://127.0.0.1:9",
    )  # fmt: skip
    assert (again.returncode, yaml.safe_load(again.stdout)) == (0, config)


def test_a_name_that_the_hub_does_not_know_is_told_as_that(hub: str, tmp_path: Path) -> None:
    done = shown(tmp_path, "--model", "owner/bse", "--data", "rows.jsonl", HF_ENDPOINT=hub)
    assert done.returncode == 69
    assert "the hub did not give the commit of owner/bse" in done.stderr
    assert "./owner/bse for the path of a directory" in done.stderr


@pytest.mark.parametrize(
    "variables", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, {}], ids=["off", "away", "asked"]
)
def test_a_directory_that_is_called_nearly_so_is_named(hub: str, tmp_path: Path, variables: dict[str, str]) -> None:
    (tmp_path / "owner" / "base").mkdir(parents=True)
    done = shown(tmp_path, "--model", "owner/bse", "--data", "rows.jsonl", **(variables or {"HF_ENDPOINT": hub}))
    assert ", or owner/base, a directory here" in done.stderr


@pytest.mark.thin(3)
@pytest.mark.parametrize("is_cached", [False, True], ids=["nothing fetched", "fetched before"])
@pytest.mark.parametrize(
    ("variables", "code", "why"),
    [
        ({"HF_HUB_OFFLINE": "1"}, 78, "needs a commit, and HF_HUB_OFFLINE switches the hub off"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, 69, "needs a commit, and http://127.0.0.1:9 cannot be reached"),
    ],
    ids=["switched off", "away"],
)
def test_without_the_hub_the_refusal_names_the_commit_that_is_here(
    variables: dict[str, str], code: int, why: str, is_cached: bool, tmp_path: Path
) -> None:
    refs = tmp_path / "hf" / "hub" / "models--owner--base" / "refs"
    refs.mkdir(parents=True)
    if is_cached:
        (refs / "main").write_text("c3" * 20)
    done = shown(tmp_path, "--model", "owner/base", "--data", "rows.jsonl", **variables)
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr
    pinned = f"--set model.revision={'c3' * 20 if is_cached else 'COMMIT'}"
    assert pinned in done.stderr
    pinned_again = shown(tmp_path, "--model", "owner/base", "--data", "rows.jsonl", *pinned.split(), **variables)
    assert pinned_again.returncode == 0


def test_the_same_command_again_takes_the_commit_of_its_run_though_the_hub_has_moved(hub: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    config = {
        "model": {"name": "owner/base", "revision": "d4" * 20},
        "data": {"sources": [{"path": "hub:owner/rows", "revision": "e5" * 20}]},
        "output": "out",
    }
    (tmp_path / "out" / "run.json").write_text(json.dumps({"config": config}))
    words = ("--model", "owner/base", "--data", "hub:owner/rows", "--output", "out")
    done = shown(tmp_path, *words, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    taken = yaml.safe_load(done.stdout)
    assert (taken["model"]["revision"], taken["data"]["sources"][0]["revision"]) == ("d4" * 20, "e5" * 20)
    elsewhere = shown(tmp_path, *words[:-1], "other", HF_ENDPOINT=hub)
    assert yaml.safe_load(elsewhere.stdout)["model"]["revision"] == "a1" * 20
