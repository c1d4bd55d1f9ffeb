"""Models and data of a hub: cached or not, pinned or not, refused, and the token that nobody sees."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults

from loradock import demo

pytestmark = pytest.mark.thin(3)

BASE = Path(demo.__file__).parent / "base"
ROWS = BASE.parent / "train.jsonl"
QUICK = ("--level", "quick", "--only")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = {"name": "someone/tiny-7b", "revision": COMMIT}
Write = Callable[..., str]


def test_a_hub_model_that_is_not_cached_while_the_hub_is_off_is_refused(
    examined: Examine, written: Write, cache: dict[str, str | None], faults: Faults
) -> None:
    env = {**cache, "HF_HUB_OFFLINE": "1"}
    seen = examined(*QUICK, "model", "--config", written(model=HUB), env=env)
    faults.seen("hub off, model not cached", made="real", finding=seen.one("base"), check="base", exit_code=69)
    assert seen.exit_code == 69
    off = {"model": HUB, "data": {"sources": [{"path": "hub:someone/rows", "revision": COMMIT}]}}
    seen = examined(*QUICK, "data-files", "--config", written(**off), env={**cache, "HF_DATASETS_OFFLINE": "1"})
    faults.seen(
        "hub off, data set not cached", made="real", finding=seen.one("data-files"), check="data-files", exit_code=69
    )


def test_a_hub_that_cannot_be_reached_is_a_warning(
    examined: Examine, written: Write, cache: dict[str, str | None], faults: Faults
) -> None:
    seen = examined(*QUICK, "model", "--config", written(model=HUB), env=cache)
    faults.seen("hub unreachable", made="real", finding=seen.one("base"), check="base")
    assert seen.exit_code == 0


def test_a_model_in_the_hubs_cache_is_complete_without_the_hub_and_a_branch_is_a_warning_with_its_commit(
    examined: Examine, written: Write, cache: dict[str, str | None], tmp_path: Path, faults: Faults
) -> None:
    folder = tmp_path / "hf" / "hub" / "models--someone--tiny-7b"
    shutil.copytree(BASE, folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    config = written(model={**HUB, "revision": "main"})
    seen = examined(*QUICK, "model", "--config", config, env={**cache, "HF_HUB_OFFLINE": "1"})
    assert seen.one("base")["what"] == "someone/tiny-7b at main is in the hub's cache, complete"
    assert seen.one("embedding")["what"] == "878 ids, 878 embeddings"
    faults.seen("revision is a branch", made="real", finding=seen.one("revision"), check="revision")
    assert seen.one("revision")["remedy"] == f"loradock train --set model.revision={COMMIT} ..."


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("name", "token", "check", "fault", "exit_code"),
    [
        ("gated", None, "token", "gated model, no token", 69),
        ("gated", "secret-4711", "token", "gated model, token without access", 69),
        ("moved", None, "base", "revision unknown to the hub", 69),
        ("busy", None, "base", "hub out of order", 0),
    ],
)
def test_what_the_hub_refuses_is_told_apart_without_the_tokens_value(
    name: str,
    token: str | None,
    check: str,
    fault: str,
    exit_code: int,
    examined: Examine,
    written: Write,
    cache: dict[str, str | None],
    hub: str,
    faults: Faults,
) -> None:
    env = {**cache, "HF_ENDPOINT": hub, "HF_TOKEN": token}
    config = written(model={"name": f"someone/{name}", "revision": COMMIT})
    seen = examined(*QUICK, "base,token", "--config", config, env=env)
    faults.seen(fault, made="constructed", finding=seen.one(check), check=check, exit_code=exit_code)
    assert seen.exit_code == exit_code
    other = "base" if check == "token" else "token"
    assert seen.one(other)["severity"] == "ok"
    assert "secret-4711" not in json.dumps(seen.content)


def test_the_hub_is_asked_for_a_model_that_it_has(
    examined: Examine, written: Write, cache: dict[str, str | None], hub: str
) -> None:
    seen = examined(*QUICK, "model", "--config", written(model=HUB), env={**cache, "HF_ENDPOINT": hub})
    assert seen.one("base")["what"] == f"the hub answers for someone/tiny-7b at {COMMIT}"
    # This machine's disk may be too small for 7B weights.
    told = {each["check"] for each in seen.content["findings"] if each["severity"] != "ok"}
    assert told <= {"model-space"}, seen.content["findings"]


def test_a_token_that_everybody_can_read_and_one_in_quotes_are_warnings_that_do_not_show_it(
    examined: Examine, written: Write, cache: dict[str, str | None], tmp_path: Path, faults: Faults
) -> None:
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    (home / "token").write_text("secret-4711", encoding="utf-8")
    (home / "token").chmod(0o644)
    env = {**cache, "HF_HOME": str(home), "HF_TOKEN": '"secret-4711"'}
    hidden = examined(*QUICK, "token", "--config", written(), env={**env, "HF_TOKEN": None})
    assert hidden.one("token")["severity"] == "ok", "nobody else gets as far as the file"
    home.chmod(0o755)
    seen = examined(*QUICK, "token", "--config", written(), env=env)
    shutil.rmtree(home)
    readable, quoted = seen.one("token", containing="can read"), seen.one("token", containing="quotes")
    faults.seen("token file readable by everybody", made="real", finding=readable, check="token")
    faults.seen("token in quotes", made="real", finding=quoted, check="token")
    assert "4711" not in json.dumps(seen.content)


def test_switches_of_the_hub_that_contradict_one_another_or_say_nothing_are_warnings(
    examined: Examine, written: Write, cache: dict[str, str | None], faults: Faults
) -> None:
    env = {**cache, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "y"}
    seen = examined(*QUICK, "offline", "--config", written(model=HUB), env=env)
    both, odd = seen.one("offline", containing="contradict"), seen.one("offline", containing="counts as 0")
    faults.seen("offline switches contradict", made="real", finding=both, check="offline")
    faults.seen("offline switch not understood", made="real", finding=odd, check="offline")
    assert "models online, data online" in both["what"]


def test_a_data_set_that_was_prepared_here_needs_no_hub_at_its_own_revision_only(
    examined: Examine, written: Write, cache: dict[str, str | None], tmp_path: Path, faults: Faults
) -> None:
    (tmp_path / "hf" / "datasets" / "someone___my_rows" / "default" / "0.0.0" / COMMIT).mkdir(parents=True)
    env = {**cache, "HF_HUB_OFFLINE": "1"}
    right = {"path": "hub:someone/MyRows", "revision": COMMIT}
    seen = examined(*QUICK, "data-files,revision", "--config", written(data={"sources": [right]}), env=env)
    assert seen.content["worst"] == "ok", seen.content["findings"]
    other = {"sources": [{**right, "revision": COMMIT[::-1]}]}
    seen = examined(*QUICK, "data-files", "--config", written(data=other), env=env).one("data-files")
    faults.seen("data set at another revision", made="real", finding=seen, check="data-files")
