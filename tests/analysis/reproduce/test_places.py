"""A run's inputs that lie elsewhere now: by options, in a bundle, and by the directory that it was started in."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny import copy_tree, write_rows
from whole_runs import train

from loradock.cli import cli
from loradock.commands.reproduce import reproduce
from loradock.delivery.image.bundle.archive import add, finish
from loradock.errors import DataError, InputMissing, LoradockError, NotReproduced, UsageError
from loradock.machine import hub_access
from loradock.machine.library_variables import ALLOCATOR

pytestmark = pytest.mark.thin(2)

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
ELSEWHERE = ("--model", "base", "--data", "rows.jsonl", "--validation", "held.jsonl", "--template", "own.jinja")
STEPS = ("train.max_steps=2", "train.global_batch=2", "lora.rank=2", "data.max_length=64", "train.workers=0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """A folder with a run that began with an adapter; every input is a file of its own, named by a relative path."""
    folder = tmp_path_factory.mktemp("places") / "made"
    copy_tree(llama, folder / "base")
    write_rows(folder / "rows.jsonl")
    write_rows(folder / "held.jsonl", rows=4, seed=1)
    (folder / "own.jinja").write_text(TEMPLATE, "utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for name, value in ALLOCATOR.items():
            patched.setenv(name, value)
        train(folder / "first", *STEPS, model=Path("base"), data=Path("rows.jsonl"))
        more = ("data.validation=held.jsonl", "data.template=own.jinja", "lora.adapter=first/adapter")
        train(folder / "run", *STEPS, *more, model=Path("base"), data=Path("rows.jsonl"))
    return folder


@pytest.fixture
def moved(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, whose record names a working directory that is gone; the current one is empty."""
    folder = copy_tree(made, tmp_path / "moved")
    file = folder / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps(record | {"working_directory": str(tmp_path / "gone")}), "utf-8")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return folder


@pytest.fixture
def asks() -> list[str]:
    """What the server was asked for."""
    return []


@pytest.fixture
def server(made: Path, asks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a web server that has the rows of the run."""

    class Rows(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asks.append(self.path)
            content = (made / "rows.jsonl").read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    for name in hub_access.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("LORADOCK_CACHE", str(tmp_path / "cache"))
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Rows)
    threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def asked(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["reproduce", *words, "--check-only", "--json"])
    assert done.exception is None or isinstance(done.exception, LoradockError), done.exc_info
    return {**json.loads(done.stdout or "{}"), "error": done.exception}


def bundled(*words: str) -> Exception | None:
    done = CliRunner().invoke(cli, ["bundle", "create", *words])
    return done.exception if isinstance(done.exception, LoradockError) else None


def options_for(folder: Path) -> list[str]:
    paths = [word if word.startswith("--") else str(folder / word) for word in ELSEWHERE]
    return [*paths, "--adapter", str(folder / "first" / "adapter")]


def test_relative_paths_start_where_the_run_was_started(made: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked(str(made / "run"))["differences"] == []


def test_everything_that_is_missing_is_named_at_once_and_the_hint_holds(moved: Path) -> None:
    error = asked(str(moved / "run"))["error"]
    assert isinstance(error, InputMissing)
    assert len(error.problems) == 5
    options = options_for(moved)
    assert error.hint == "add --model DIR --data FILE --validation FILE --template FILE --adapter DIR"
    assert asked(str(moved / "run"), *options)["differences"] == []
    assert "--adapter DIR" in str(asked(str(moved / "run"), *options[:-2])["error"].hint)
    without = asked(str(moved / "run"), *options[2:])["error"]
    assert without.hint == "add --model DIR"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("rows.jsonl", "rows of rows.jsonl"),
        ("held.jsonl", "rows of held.jsonl"),
        ("own.jinja", "data.template"),
        ("first/adapter/adapter_model.safetensors", "lora.adapter"),
    ],
)
def test_a_file_elsewhere_is_compared_by_its_hash(file: str, name: str, moved: Path) -> None:
    content = bytearray((moved / file).read_bytes())
    content[-3] ^= 1
    (moved / file).write_bytes(content)
    found = asked(str(moved / "run"), *options_for(moved))
    assert [each["name"] for each in found["differences"]] == [name]
    assert isinstance(found["error"], NotReproduced)


def test_an_option_for_what_the_run_does_not_have_is_refused(moved: Path) -> None:
    first = str(moved / "first")
    assert "--template has no effect" in str(asked(first, "--template", str(moved / "own.jinja"))["error"])
    assert "--validation was given 1 times" in str(asked(first, "--validation", "x.jsonl")["error"])
    twice = asked(str(moved / "run"), "--data", "a.jsonl", "--data", "b.jsonl")["error"]
    assert isinstance(twice, UsageError)
    assert twice.hint == "--data rows.jsonl"


def test_a_bundle_needs_nothing_else(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    assert bundled(str(there / "all.tar"), "--run", str(made / "run"), "--rows", "--base") is None
    assert bundled(str(there / "record.tar"), "--run", str(made / "run")) is None
    made.rename(made.with_name("gone"))
    try:
        monkeypatch.chdir(there)
        assert asked("all.tar")["differences"] == []
        assert asked("all.tar")["differences"] == []  # it is laid out already
        assert asked("all")["differences"] == []
        assert asked("record.tar")["error"].hint == "add --model DIR --data FILE --validation FILE --adapter DIR"
        (there / "all" / "run" / "run.json").write_text("{}", "utf-8")
        assert "already exists" in str(asked("all.tar")["error"])
    finally:
        made.with_name("gone").rename(made)


def test_what_changed_since_the_run_does_not_go_into_its_bundle(made: Path, tmp_path: Path) -> None:
    rows = made / "rows.jsonl"
    text = rows.read_bytes()
    rows.write_bytes(text + b"\n")
    try:
        assert isinstance(bundled(str(tmp_path / "a.tar"), "--run", str(made / "run"), "--rows"), DataError)
        assert bundled(str(tmp_path / "b.tar"), "--run", str(made / "run")) is None
    finally:
        rows.write_bytes(text)
    assert isinstance(bundled(str(tmp_path / "c.tar"), "--rows"), UsageError)


def test_rows_of_a_directory_and_of_a_pattern_lie_in_a_bundle_as_they_are_named(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_tree(made, tmp_path / "many")
    (folder / "parts").mkdir()
    lines = (folder / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "parts" / "a.jsonl").write_bytes(b"".join(lines[:3]))
    (folder / "parts" / "b.jsonl").write_bytes(b"".join(lines[3:]))
    halves = [hashlib.sha256((folder / "parts" / name).read_bytes()).hexdigest() for name in ("a.jsonl", "b.jsonl")]
    file = folder / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    record["working_directory"] = str(folder)
    record["data"]["sources"][0]["sha256"] = hashlib.sha256("\n".join(halves).encode()).hexdigest()
    monkeypatch.chdir(tmp_path)
    for number, path in enumerate(("parts", "parts/*.jsonl")):
        record["config"]["data"]["sources"][0]["path"] = path
        file.write_text(json.dumps(record), "utf-8")
        assert bundled(f"{number}.tar", "--run", str(folder / "run"), "--rows", "--base") is None
        (folder / "parts").rename(folder / "gone")
        found = asked(f"{number}.tar")
        (folder / "gone").rename(folder / "parts")
        assert found["differences"] == []


def test_rows_at_an_address_do_not_go_into_a_bundle(made: Path, tmp_path: Path, server: str, asks: list[str]) -> None:
    file = copy_tree(made, tmp_path / "web") / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    for name in ("data", "validation"):
        changed = json.loads(json.dumps(record))
        if name == "data":
            changed["config"]["data"]["sources"][0]["path"] = f"{server}/rows.jsonl"
        else:
            changed["config"]["data"]["validation"] = f"{server}/held.jsonl"
        file.write_text(json.dumps(changed), "utf-8")
        error = bundled(str(tmp_path / "a.tar"), "--run", str(file.parent), "--rows")
        assert isinstance(error, InputMissing)
        assert "is not fetched" in str(error)
        assert bundled(str(tmp_path / f"{name}.tar"), "--run", str(file.parent)) is None
    assert asks == []


def test_the_hint_for_an_address_and_a_moved_file_holds(
    made: Path, tmp_path: Path, server: str, asks: list[str]
) -> None:
    folder, address = copy_tree(made, tmp_path / "web"), f"{server}/rows.jsonl?a=1&b=2"
    file = folder / "first" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    (source,), (recorded,) = record["config"]["data"]["sources"], record["data"]["sources"]
    record["config"]["data"]["sources"] = [source | {"path": address}, source | {"path": "gone.jsonl"}]
    record["data"]["sources"] = [recorded, recorded]
    file.write_text(json.dumps(record), "utf-8")
    run, rows = str(folder / "first"), str(folder / "rows.jsonl")
    assert asked(run)["error"].hint == f"add --fetch --data '{address}' --data FILE"
    found = asked(run, "--fetch", "--data", address, "--data", rows)["differences"]  # settings of a source of its own
    assert {each["name"].rpartition(".")[0] for each in found} == {"data.sources.1"}
    assert asks == ["/rows.jsonl?a=1&b=2"]
    assert asked(run, "--fetch")["error"].hint == f"add --data '{address}' --data FILE"
    assert asked(run, "--data", address, "--data", rows)["error"].hint == "add --fetch"
    assert "no rows are at an address" in str(asked(run, "--fetch", "--data", rows, "--data", rows)["error"])
    other = asked(run, "--fetch", "--data", f"{server}/other.jsonl", "--data", rows)["error"]
    assert isinstance(other, UsageError)
    assert "stands for the recorded one" in str(other)


def test_a_bundle_whose_member_leads_out_of_its_folder_is_not_laid_out(tmp_path: Path) -> None:
    file = tmp_path / "evil.tar"
    with file.open("wb") as stream:
        add(stream, "run/../../evil", [b"{}"])
        add(stream, "run/run.json", [b"{}"])
        finish(stream)
    error = asked(str(file))["error"]
    assert isinstance(error, DataError)
    assert "leads out of the bundle" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar"]


def test_the_model_card_and_the_report_say_commands_that_there_are(made: Path, tmp_path: Path) -> None:
    card = (made / "run" / "adapter" / "README.md").read_text("utf-8")
    options = set(re.findall(r"--[a-z-]+", card.partition("## Reproduce this")[2].partition("\n## ")[0]))
    assert options == {"--check-only", "--whole", "--model", "--data", "--validation", "--template", "--adapter"}
    known = {option for param in reproduce.params for option in param.opts}
    assert options <= known
    page = tmp_path / "report.html"
    assert CliRunner().invoke(cli, ["report", str(made / "run"), "--output", str(page)]).exit_code == 0
    assert f"loradock reproduce {made / 'run'}" in page.read_text("utf-8")
