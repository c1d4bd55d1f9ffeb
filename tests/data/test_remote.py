"""Sources by their address: fetched once, kept by content, asked for a newer one; secrets stand nowhere."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result
from fsspec.implementations.local import LocalFileSystem
from tiny import write_rows
from whole_runs import Silent, train

from loradock import demo
from loradock.cli import cli
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig
from loradock.data import remote, remote_folder, shards
from loradock.data.preference import liked_alone
from loradock.data.read import chosen, digest, files, files_on_disk, is_here, other_files, remote_files, shown_files
from loradock.data.sources import samples
from loradock.errors import (
    ConfigError,
    DataError,
    EnvironmentUnfit,
    HubError,
    InputMissing,
    NoCheckpoint,
    Problem,
    UsageError,
)
from loradock.machine import hub_access
from loradock.training.run_dir import fetching, resume

pytestmark = pytest.mark.thin(3)

SECRET = "hunter2hunter2"
LOGIN = f"me:{SECRET}"
ROWS = b"".join(json.dumps({"prompt": f"What is {n}?", "completion": f" {n}"}).encode() + b"\n" for n in range(6))


class Files(BaseHTTPRequestHandler):
    """A web server of the files in `content`, with what servers do: versions, redirects, refusals, broken answers."""

    content: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[tuple[str, int]]] = []
    has_versions = True

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/moved.jsonl":
            self.answered(302, Location="/rows.jsonl")
        elif path == "/private.jsonl":
            is_known = self.headers.get("Authorization") == f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
            self.answered(200, ROWS) if is_known else self.answered(401)
        elif path == "/broken.jsonl":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(ROWS[:100])
        elif path == "/busy.jsonl":
            self.answered(503)
        elif (content := self.content.get(path)) is None:
            self.answered(404)
        else:
            self.file(content)

    def file(self, content: bytes) -> None:
        tag = f'"{hashlib.sha256(content).hexdigest()[:12]}"'
        if self.has_versions and self.headers.get("If-None-Match") == tag:
            self.answered(304)
            return
        versions = {"ETag": tag, "Last-Modified": formatdate(0, usegmt=True)} if self.has_versions else {}
        self.answered(200, content, **versions)

    def answered(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.requests.append((self.path, status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    for name in hub_access.OFFLINE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("LORADOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Files, "content", {"/rows.jsonl": ROWS})
    monkeypatch.setattr(Files, "requests", [])
    forget()
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


def forget() -> None:
    """As in a new process."""
    for each in (remote._current, remote_folder._listed, remote_folder._copies):  # pyright: ignore[reportPrivateUsage]
        each.cache_clear()


def prompts(path: str) -> list[str]:
    return [getattr(sample, "prompt", str(sample)) for _, sample in samples(SourceConfig(path=path))]


def test_a_file_is_fetched_once_and_asked_for_a_newer_one_in_the_next_process(server: str) -> None:
    source = SourceConfig(path=f"{server}/rows.jsonl")
    assert len(prompts(source.path)) == 6
    assert digest(source) == hashlib.sha256(ROWS).hexdigest()
    assert shown_files(source) == [source.path]
    assert Files.requests == [("/rows.jsonl", 200)]
    (file,) = files(source)
    assert (file.name, file.parent.name) == ("rows.jsonl", hashlib.sha256(ROWS).hexdigest()[:16])
    forget()
    assert files(source) == [file]
    assert Files.requests[1:] == [("/rows.jsonl", 304)]
    assert remote.local_copy(source) == file


def test_without_versions_it_is_fetched_in_each_process_and_equal_content_is_one_copy(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "has_versions", False)
    source = SourceConfig(path=f"{server}/rows.jsonl?download=true")
    (file,) = files(source)
    forget()
    assert (files(source), remote.notes(source)[1:]) == ([file], [])
    assert [status for _, status in Files.requests] == [200, 200]
    Files.content["/rows.jsonl"] = ROWS * 2
    forget()
    (changed,) = files(source)
    assert (changed.read_bytes(), file.read_bytes()) == (ROWS * 2, ROWS)
    assert remote.notes(source)[1].endswith(f"has changed since it was fetched; what it held then is {file}")


def test_a_compressed_file_comes_as_it_is_and_a_redirect_is_followed(server: str) -> None:
    Files.content["/rows.jsonl.gz"] = gzip.compress(ROWS)
    assert prompts(f"{server}/rows.jsonl.gz") == prompts(f"{server}/moved.jsonl")


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("private.jsonl", InputMissing, "the server refuses it (401)"),
        ("gone.jsonl", InputMissing, "is not there (404)"),
        ("busy.jsonl", HubError, "the server answers 503"),
        ("broken.jsonl", HubError, "was not fetched: "),
    ],
)
def test_what_is_not_given_whole_is_refused_and_nothing_stays(
    name: str, kind: type[Exception], what: str, server: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as refused:
        files(SourceConfig(path=f"{server}/{name}"))
    assert what in str(refused.value)
    assert [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []


def test_a_login_is_taken_from_netrc_and_stands_in_no_note(server: str, tmp_path: Path) -> None:
    login, _, password = LOGIN.partition(":")
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login {login} password {password}\n")
    (tmp_path / "netrc").chmod(0o600)
    source = SourceConfig(path=f"{server}/private.jsonl")
    assert len(prompts(source.path)) == 6
    kept = b"".join(file.read_bytes() for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert SECRET.encode() not in kept
    assert SECRET not in str(remote.notes(source))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 word")
    forget()
    with pytest.raises(InputMissing, match="netrc cannot be read: bad follower token 'word'"):
        files(source)


def test_with_the_network_switched_off_the_copy_is_read_and_nothing_else(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceConfig(path=f"{server}/rows.jsonl")
    (file,) = files(source)
    forget()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert files(source) == [file]
    with pytest.raises(HubError, match="not in the cache, and HF_HUB_OFFLINE switches the network off"):
        files(SourceConfig(path=f"{server}/other.jsonl"))
    assert Files.requests == [("/rows.jsonl", 200)]
    file.write_bytes(ROWS[:-3])
    forget()
    with pytest.raises(HubError):
        files(source)


def test_an_address_that_only_a_record_names_is_fetched_by_nobody(server: str) -> None:
    source = SourceConfig(path=f"{server}/rows.jsonl")
    with pytest.raises(InputMissing, match="nothing is fetched because a record names it") as refused:
        fetching.refuse_data([source])
    assert refused.value.hint == f"--data {source.path}"
    assert Files.requests == []
    files(source)
    fetching.refuse_data([source])


def test_a_server_that_is_away_is_told_with_the_copy_that_there_is(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_access, "ANSWER_SECONDS", 2.0)
    port = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    address = f"http://127.0.0.1:{port.server_port}/rows.jsonl"
    port.server_close()
    with pytest.raises(HubError) as refused:
        files(SourceConfig(path=address))
    assert refused.value.hint == "check the network and its proxy"


@pytest.mark.parametrize(
    "path", [f"https://me:{SECRET}@host/rows.jsonl", f"https://host/a.jsonl?X-Amz-Signature={SECRET}"]
)
def test_an_address_with_a_credential_is_refused_without_it(path: str) -> None:
    for override in ("data.sources", "data.validation"):
        with pytest.raises(ConfigError) as refused:
            load(None, overrides=[f"{override}={path}"], needs_inputs=False)
        assert "the address holds a credential" in str(refused.value)
        assert SECRET not in str(refused.value)
    with pytest.raises(UsageError) as unread:
        files(SourceConfig(path=path))
    assert SECRET not in str(unread.value)


def invoked(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words])


def test_stats_say_where_the_copy_lies_and_validation_may_be_an_address_too(server: str) -> None:
    Files.content["/held.jsonl"] = ROWS.replace(b"What", b"Which")
    base = str(Path(demo.__file__).parent / "base")
    words = ("--model", base, "--data", f"{server}/rows.jsonl", "--set", f"data.validation={server}/held.jsonl")
    done = invoked("data", "stats", *words, "--json")
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    assert (told["train_rows"], told["validation_rows"]) == (6, 6)
    assert f"{server}/rows.jsonl: read from " in done.stderr
    asked = len(Files.requests)
    checked = invoked("config", "validate", *words)
    assert checked.exit_code == 0, checked.exception
    assert f"{server}/rows.jsonl, {server}/held.jsonl not looked for on the network" in checked.stdout + checked.stderr
    assert len(Files.requests) == asked, "a configuration that is checked fetches nothing"


def test_a_run_goes_on_with_the_same_content_and_is_refused_by_name_with_another(
    server: str, llama: Path, tmp_path: Path
) -> None:
    Files.content["/rows.jsonl"] = write_rows(tmp_path / "local.jsonl").read_bytes()
    address: Any = f"{server}/rows.jsonl"
    settings = ("train.global_batch=8", "lora.rank=4", "checkpoints.every=1")
    record = train(tmp_path / "run", *settings, "train.max_steps=1", model=llama, data=[address]).record
    assert record["data"]["sources"][0]["sha256"] == hashlib.sha256(Files.content["/rows.jsonl"]).hexdigest()
    forget()
    again = train(tmp_path / "run", *settings, "train.max_steps=2", model=llama, data=[address], allowed=["train."])
    assert again.outcome.steps == 2
    first = files(SourceConfig(path=address).with_text_unit("file", cache=str(tmp_path / "cache")))
    Files.content["/rows.jsonl"] += Files.content["/rows.jsonl"]
    forget()
    words: Any = {"model": llama, "allowed": ["train."]}
    with pytest.raises(NoCheckpoint, match=r"data\.train\.content was") as refused:
        train(tmp_path / "run", *settings, "train.max_steps=3", data=[address], **words)
    assert "data.train.rows" in str(refused.value)
    assert train(tmp_path / "run", *settings, "train.max_steps=3", data=first, **words).outcome.steps == 3


class Store(LocalFileSystem):
    """A store by the interface that s3fs and gcsfs have, whose buckets are folders."""

    protocol = ("s3",)
    reads: ClassVar[list[str]] = []
    root: ClassVar[str] = ""

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return f"{cls.root}/{str(path).removeprefix('s3://')}" if str(path).startswith("s3://") else str(path)

    def get_file(self, path1: str, path2: str, callback: Any = None, **kwargs: Any) -> None:
        self.reads.append(path1)
        super().get_file(path1, path2, **kwargs)


def test_a_run_of_fetched_rows_is_repeated_by_fetching_them_where_a_person_allows_it(
    server: str, tmp_path: Path, llama: Path
) -> None:
    rows: Any = f"{server}/rows.jsonl"
    train(tmp_path / "run", "train.max_steps=1", "train.global_batch=2", model=llama, data=[rows])
    words = ["reproduce", str(tmp_path / "run"), "--check-only", "--json"]
    forget()
    Files.requests.clear()
    refused = CliRunner().invoke(cli, words)
    assert isinstance(refused.exception, InputMissing)
    assert (refused.exception.hint, Files.requests) == ("add --fetch", [])
    assert str(hashlib.sha256(ROWS).hexdigest()) in str(refused.exception.problems[0].hint)

    def compared() -> list[str]:
        forget()
        done = CliRunner().invoke(cli, [*words, "--fetch"])
        return [each["name"] for each in json.loads(done.stdout)["differences"] if each["name"].startswith("rows")]

    assert compared() == []
    assert [path for path, _ in Files.requests] == ["/rows.jsonl"]
    Files.content["/rows.jsonl"] = ROWS + ROWS
    assert compared() == [f"rows of {rows}"]
    needless = CliRunner().invoke(cli, [*words, "--fetch", "--data", str(tmp_path / "rows.jsonl")])
    assert isinstance(needless.exception, UsageError)
    assert needless.exception.hint == "leave out --fetch"


@pytest.fixture
def store(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "root", str(tmp_path))
    monkeypatch.setattr(Store, "reads", [])
    registry: Any = importlib.import_module("fsspec.registry")
    monkeypatch.setitem(registry._registry, "s3", Store)


@pytest.mark.usefixtures("store")
def test_a_file_of_an_object_store_is_fetched_by_fsspec_and_again_when_its_version_is_another(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "rows.jsonl").write_bytes(ROWS)
    source = SourceConfig(path="s3://bucket/rows.jsonl")
    assert (len(prompts(source.path)), len(Store.reads)) == (6, 1)
    forget()
    files(source)
    assert len(Store.reads) == 1
    (tmp_path / "bucket" / "rows.jsonl").write_bytes(ROWS * 2)
    forget()
    assert len(prompts(source.path)) == 12
    with pytest.raises(InputMissing, match=r"s3://bucket/none\.jsonl is not there"):
        files(SourceConfig(path="s3://bucket/none.jsonl"))


def held(folder: Path, **texts: str) -> None:
    """Files of a bucket's folder; `_` in a name is a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


def row(word: str) -> str:
    return json.dumps({"prompt": word, "completion": "yes"}) + "\n"


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("", ["one", "two"]),  # by name, Markdown beside rows is a note
        ("/*.jsonl", ["one", "two"]),
        ("/**/*.jsonl", ["one", "two", "deep"]),
        ("/a*.jsonl", ["one"]),
        ("/*/*.jsonl", ["deep"]),
        ("/.cache/*/*.jsonl", ["hidden"]),
        ("/*/.cache/*.jsonl", ["hidden"]),
    ],
)
def test_a_folder_of_an_object_store_is_read_as_one_of_a_disk(path: str, read: list[str], tmp_path: Path) -> None:
    held(tmp_path / "bucket" / "rows", b_jsonl=row("two"), a_jsonl=row("one"), notes_md="text", config_json="{}")
    held(tmp_path / "bucket" / "rows" / "z", c_jsonl=row("deep"))
    held(tmp_path / "bucket" / "rows" / "z" / ".cache", d_jsonl=row("hidden"))
    held(tmp_path / "bucket" / "rows" / ".cache" / "y", d_jsonl=row("hidden"))
    for place in ("s3://bucket/rows", str(tmp_path / "bucket" / "rows")):
        assert prompts(f"{place}{path}") == read
    source = SourceConfig(path=f"s3://bucket/rows{path}")
    local = SourceConfig(path=f"{tmp_path}/bucket/rows{path}")
    assert digest(source) == digest(local)
    assert [name.removeprefix("s3://") for name in shown_files(source)] == [
        name.removeprefix(f"{tmp_path}/") for name in shown_files(local)
    ]


@pytest.mark.usefixtures("store")
def test_copies_are_hashed_once_in_a_process_and_again_where_one_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(tmp_path / "bucket" / "rows", a_jsonl=row("a"), b_jsonl=row("b"))
    source = SourceConfig(path="s3://bucket/rows/")
    copy, _ = files(source)
    hashed: list[int] = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: hashed.append(1) or real(*given))
    first = digest(source)
    recorded = [{"path": source.path, "files": remote_files(source)}]
    assert [*other_files([source], recorded)] == []
    assert (digest(source), len(hashed)) == (first, 2)
    copy.chmod(0o600)
    copy.write_text(row("damaged"))
    assert digest(source) != first
    assert len(hashed) == 3


@pytest.mark.usefixtures("store")
def test_what_is_no_set_of_rows_is_refused_as_on_a_disk_before_anything_is_fetched(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    held(bucket / "kinds", a_jsonl=row("a"), b_jsonl=row("b"), c_txt="text")
    held(bucket / "splits", rows_jsonl=row("a"), test_jsonl=row("b"))
    held(bucket / "deep" / "below", a_jsonl=row("a"))
    held(bucket / "saved", state_json="{}")
    held(bucket / "sp ace" / "below", a_jsonl=row("a"), b_txt="text")
    held(bucket / "empty")
    for name, (what, hint) in {
        "kinds": ("several kinds of files (2 JSONL, 1 text)", "name those to train on: 's3://bucket/kinds/*.jsonl'"),
        "splits": ("the files of several splits", "name those to read: --data s3://bucket/splits/rows.jsonl"),
        "deep/": ("a directory without files of rows", "a pattern reads them: 's3://bucket/deep/**/*'"),
        "sp ace": ("a directory without files of rows", "name those to train on: --data 's3://bucket/sp ace/below/a"),
        "saved": ("`datasets` saved", "copy it and name the copy: aws s3 cp --recursive s3://bucket/saved saved"),
        "empty": ("a directory without files of rows", "known: "),
        "none/": ("s3://bucket/none/ is not there", "check the address and the access rights"),
        "kinds/*.csv": ("no file matches s3://bucket/kinds/*.csv", "list it: aws s3 ls s3://bucket/kinds/"),
    }.items():
        with pytest.raises((DataError, InputMissing)) as refused:
            files(SourceConfig(path=f"s3://bucket/{name}"))
        assert what in str(refused.value)
        assert str(refused.value.hint).startswith(hint)
    assert Store.reads == []
    assert prompts("s3://bucket/kinds/*.jsonl") == ["a", "b"]  # what the hints say
    assert prompts("s3://bucket/splits/rows.jsonl") == prompts("s3://bucket/deep/**/*") == ["a"]


@pytest.mark.usefixtures("store")
def test_brackets_are_those_of_a_name_where_there_is_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(tmp_path / "bucket", **{"x[1]_jsonl": row("named"), "x1_jsonl": row("matched")})
    assert prompts("s3://bucket/x[1].jsonl") == prompts(f"{tmp_path}/bucket/x[1].jsonl") == ["named"]
    forget()
    with monkeypatch.context() as offline:
        offline.setenv("HF_HUB_OFFLINE", "1")
        assert prompts("s3://bucket/x[1].jsonl") == ["named"]
    forget()
    (tmp_path / "bucket" / "x[1].jsonl").unlink()
    assert prompts("s3://bucket/x[1].jsonl") == ["matched"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/", ["one", "two"]),
        ("", ["one", "two"]),
        ("/*.jsonl", ["one", "two"]),
        ("/a*.jsonl", ["one"]),
        ("/[b].jsonl", ["two"]),
        ("/**/*.jsonl", ["one", "two", "deep"]),
        ("/*/*.jsonl", ["deep"]),
        ("/z[1]/*.jsonl", ["deep"]),
    ],
)
def test_brackets_of_a_folder_of_a_store_are_those_of_its_name(
    path: str, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(tmp_path / "bucket" / "rows [v2]", b_jsonl=row("two"), a_jsonl=row("one"))
    held(tmp_path / "bucket" / "rows [v2]" / "z[1]", c_jsonl=row("deep"))
    for other in ("rows v", "rows 2"):
        held(tmp_path / "bucket" / other / "z1", a_jsonl=row("matched"))
        held(tmp_path / "bucket" / other, a_jsonl=row("matched"))
    for place in ("s3://bucket/rows [v2]", str(tmp_path / "bucket" / "rows [v2]")):
        assert prompts(f"{place}{path}") == read
    forget()
    if path:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert prompts(f"s3://bucket/rows [v2]{path}") == read


def test_a_folder_of_a_web_server_is_refused_for_it_has_no_list(server: str) -> None:
    with pytest.raises(UsageError, match="a web server has no list of the files of a folder"):
        files(SourceConfig(path=f"{server}/rows/"))
    assert Files.requests == []
    Files.content["/a*b.jsonl"] = ROWS
    assert len(prompts(f"{server}/a*b.jsonl")) == 6
    with pytest.raises(InputMissing, match="is not there") as refused:
        files(SourceConfig(path=f"{server}/rows/*.jsonl"))
    assert "name each file: --data URL" in str(refused.value.hint)


@pytest.mark.usefixtures("store")
def test_only_files_that_changed_are_fetched_again_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bucket" / "rows"
    held(folder, a_jsonl=row("a"), b_jsonl=row("b"), c_jsonl=row("c"))
    source = SourceConfig(path="s3://bucket/rows/")
    assert prompts(source.path) == ["a", "b", "c"]
    before = remote_files(source)
    assert [(each["name"], each["size_bytes"]) for each in before] == [
        (f"s3://bucket/rows/{name}.jsonl", len(row("a"))) for name in "abc"
    ]
    held(folder, b_jsonl=row("other"), d_jsonl=row("d"))
    (folder / "c.jsonl").unlink()
    forget()
    Store.reads.clear()
    assert prompts(source.path) == ["a", "other", "d"]
    assert sorted(Path(name).name for name in Store.reads) == ["b.jsonl", "d.jsonl"]
    changes = "new: s3://bucket/rows/d.jsonl; gone: s3://bucket/rows/c.jsonl; changed: s3://bucket/rows/b.jsonl"
    assert (
        shards.told(source, chosen(source))[1] == f"warning: {source.path} has changed since it was listed ({changes})"
    )
    assert [*other_files([source], [{"path": source.path, "files": before}])] == [
        f"s3://bucket/rows/ was other files ({changes})"
    ]
    assert is_here(source)
    forget()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert prompts(source.path) == ["a", "other", "d"]
    with pytest.raises(HubError, match=r"s3://bucket/other/ is not in the cache, and HF_HUB_OFFLINE"):
        files(SourceConfig(path="s3://bucket/other/"))
    next((tmp_path / "cache").rglob("d.jsonl")).unlink()
    forget()
    assert not is_here(source)
    with pytest.raises(HubError, match=r"d\.jsonl is not in the cache"):
        files(source)


@pytest.mark.usefixtures("store")
def test_a_folder_that_is_written_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bucket" / "rows"
    whole = Store.get_file

    def meanwhile(change: Callable[[], object]) -> str:
        held(folder, a_jsonl=row("a"), b_jsonl=row("b"))
        forget()
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)

        def get_file(self: Store, path1: str, path2: str, callback: Any = None, **kwargs: Any) -> None:
            whole(self, path1, path2)
            if path1.endswith("a.jsonl"):
                change()

        monkeypatch.setattr(Store, "get_file", get_file)
        with pytest.raises(HubError) as refused:
            files(SourceConfig(path="s3://bucket/rows/"))
        return refused.value.what

    moving = "s3://bucket/rows/a.jsonl changed between the listing and the end of reading"
    assert meanwhile(lambda: os.utime(folder / "a.jsonl", (1, 1))) == moving
    assert meanwhile(lambda: (folder / "a.jsonl").unlink(missing_ok=True)) == moving


def test_a_run_of_a_folder_records_its_files_and_names_what_changed(store: None, llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bucket" / "rows"
    folder.mkdir(parents=True)
    shutil.copy(write_rows(tmp_path / "local.jsonl"), folder / "a.jsonl")
    address: Any = "s3://bucket/rows/"
    words: Any = {"model": llama, "data": [address]}
    record = train(tmp_path / "run", "train.max_steps=1", "train.global_batch=2", **words).record
    (recorded,) = record["data"]["sources"][0]["files"]
    assert recorded["sha256"] == record["data"]["sources"][0]["sha256"]
    shutil.copy(write_rows(tmp_path / "more.jsonl", rows=9, seed=1), folder / "b.jsonl")
    forget()
    said = "s3://bucket/rows/ was other files (new: s3://bucket/rows/b.jsonl)"
    for _ in range(2):  # a resume that is refused leaves the record as it was
        view = Silent()
        with pytest.raises(NoCheckpoint):
            train(tmp_path / "run", "train.max_steps=2", "train.global_batch=2", allowed=["train."], view=view, **words)
        assert f"warning: {said}" in view.stages
    with pytest.raises(NoCheckpoint) as refused:
        resume.check_rows(RunConfig.model_validate(record["config"]), record, tmp_path / "run")
    assert said in str(refused.value)
    done = invoked("reproduce", str(tmp_path / "run"), "--check-only", "--json", "--fetch")
    assert {"name": "files", "was": "as recorded", "now": said, "changes": "results"} in json.loads(done.stdout)[
        "differences"
    ]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("place", ["s3://bucket/rows/", "bucket/rows"])
def test_commands_that_change_rows_name_files_that_are_on_this_machine(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    ending = json.dumps({"messages": [question, answer, question]}) + "\n"
    held(tmp_path / "bucket" / "rows", a_jsonl=ending, b_jsonl=ending * 2)
    monkeypatch.chdir(tmp_path)
    source = SourceConfig(path=place)
    _, problem = [*samples(source)][-1]
    assert isinstance(problem, Problem)
    assert (problem.file, problem.line) == (f"{place.rstrip('/')}/b.jsonl", 2)
    subprocess.run(["bash", "-c", str(problem.hint)], check=True)
    (row, _) = (tmp_path / "b.new.jsonl").read_text().splitlines()
    assert json.loads(row) == {"messages": [question, answer]}
    labelled = json.dumps({"prompt": "?", "completion": "!", "label": False}) + "\n"
    held(tmp_path / "bucket" / "rows", a_jsonl=labelled + labelled.replace("false", "true"), b_jsonl=labelled)
    forget()
    hint = liked_alone({"label": True}, source, index=0, files=files_on_disk(source))
    subprocess.run(["bash", "-c", hint.partition("the desirable ones: ")[2]], check=True)
    assert [json.loads(line) for line in (tmp_path / "a.new.jsonl").read_text().splitlines()] == [
        {"prompt": "?", "completion": "!"}
    ]


def test_a_store_whose_package_is_missing_says_what_to_install(server: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"gs://bucket/rows\.jsonl needs the package gcsfs") as refused:
        files(SourceConfig(path="gs://bucket/rows.jsonl"))
    assert str(refused.value.hint).startswith(
        "pip install gcsfs, into your own environment; or gcloud storage cp gs://"
    )
