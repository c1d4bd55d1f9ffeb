"""The model group: each fault of a configured model, its revision, token and data, made and named with its remedy."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from checks.conftest import Examine, Faults, namespace

from loradock import demo

BASE = Path(demo.__file__).parent / "base"
ROWS = BASE.parent / "train.jsonl"
QUICK = ("--level", "quick", "--only")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = {"name": "someone/tiny-7b", "revision": COMMIT}
Write = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo's base that may be spoilt."""
    return Path(shutil.copytree(BASE, tmp_path / "tiny-base"))


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Write a configuration: written(model={...}, data={...}) gives its path."""

    def write(**sections: Any) -> str:
        sections.setdefault("model", {"name": str(BASE)})
        sections.setdefault("data", {"sources": [str(ROWS)]})
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps(sections), encoding="utf-8")
        return str(file)

    return write


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str | None]:
    """The environment of a machine with an empty hub cache, no token, and a hub that nobody answers for."""
    return {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
        **dict.fromkeys(("HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy")),
        **dict.fromkeys(("TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "ALL_PROXY")),
    }


class Answers(BaseHTTPRequestHandler):
    """A hub as one HEAD request sees it: what it answers is in the model's name."""

    def do_HEAD(self) -> None:
        status, reason = {
            "gated": (401, "GatedRepo"),
            "moved": (404, "RevisionNotFound"),
            "busy": (503, ""),
        }.get(self.path.split("/")[2], (200, ""))
        if "authorization" in self.headers and status == 401:
            status = 403
        self.send_response(status)
        self.send_header("X-Error-Code", reason)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def edit(file: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes one."""
    content = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")


def test_a_complete_model_with_its_data_is_well_whatever_the_hub_is(
    examined: Examine, written: Write, cache: dict[str, str | None]
) -> None:
    seen = examined(*QUICK, "model", "--config", written(), env={**cache, "HF_HUB_OFFLINE": "1", "HF_TOKEN": "x"})
    assert {finding["severity"] for finding in seen.content["findings"]} == {"ok"}, seen.content["findings"]
    assert len(seen.content["findings"]) == 8
    assert seen.exit_code == 0
    text = json.dumps([finding["what"] for finding in seen.content["findings"]])
    assert "HF_" not in text
    assert seen.one("embedding")["what"] == "878 ids, 878 embeddings"


def test_a_model_directory_that_is_not_there_is_named_with_its_neighbour(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    seen = examined(*QUICK, "model", "--config", written(model={"name": str(model.with_name("tiny-bass"))}))
    faults.seen("model directory missing", made="real", finding=seen.one("base"), check="base", exit_code=66)
    assert seen.one("base")["remedy"] == f"--set model.name={model}"
    others = [finding for finding in seen.content["findings"] if finding["check"] != "base"]
    assert {finding["severity"] for finding in others} == {"ok"}, others


def test_a_shard_that_the_index_names_is_missing(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    seen = examined(*QUICK, "base", "--config", written(model={"name": str(model)}))
    faults.seen("shard missing", made="real", finding=seen.one("base", containing="00002"), check="base", exit_code=78)


def test_weights_that_were_cut_short_and_a_tokenizer_that_is_no_json_are_two_findings(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-4096])
    (model / "tokenizer.json").write_text('{"model":', encoding="utf-8")
    seen = examined(*QUICK, "base,tokenizer", "--config", written(model={"name": str(model)}))
    faults.seen("weights truncated", made="real", finding=seen.one("base"), check="base", exit_code=78)
    faults.seen("tokenizer.json truncated", made="real", finding=seen.one("tokenizer"), check="tokenizer", exit_code=78)


def test_weights_that_are_quantised_already_are_refused(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    seen = examined(*QUICK, "base", "--config", written(model={"name": str(model)}))
    faults.seen("weights already quantised", made="real", finding=seen.one("base"), check="base", exit_code=78)


def test_a_tokenizer_without_an_end_token_is_mended_by_the_remedy(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "tokenizer_config.json", eos_token=None)
    config = written(model={"name": str(model)})
    seen = examined(*QUICK, "tokenizer", "--config", config).one("tokenizer")
    faults.seen("no end-of-sequence token", made="real", finding=seen, check="tokenizer", exit_code=78)
    subprocess.run(["sh", "-c", seen["remedy"]], check=True)
    assert json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"] == "</s>"
    mended = examined(*QUICK, "tokenizer", "--config", config).one("tokenizer")
    assert mended["severity"] == "ok", mended


def test_a_pad_token_that_no_vocabulary_holds_makes_the_tokenizer_longer_than_the_embedding(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "tokenizer_config.json", pad_token="[PAD]")
    seen = examined(*QUICK, "embedding", "--config", written(model={"name": str(model)})).one("embedding")
    faults.seen("tokenizer longer than embedding", made="real", finding=seen, check="embedding", exit_code=78)
    assert "879 ids ([PAD] would be added), the model has 878" in seen["what"]


def test_a_configuration_of_another_model_does_not_fit_the_weights(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "config.json", vocab_size=1000)
    seen = examined(*QUICK, "embedding", "--config", written(model={"name": str(model)})).one("embedding")
    faults.seen("vocab_size of another model", made="real", finding=seen, check="embedding", exit_code=78)


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
    assert seen.one("revision")["remedy"] == f"--set model.revision={COMMIT}"


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
    assert seen.content["worst"] == "ok", seen.content["findings"]


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


def test_data_that_are_missing_empty_or_broken_are_named_one_by_one(
    examined: Examine, written: Write, tmp_path: Path, faults: Faults
) -> None:
    shutil.copy(ROWS, tmp_path / "train.jsonl")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text("{'a': 1}\n", encoding="utf-8")
    names = ("trian.jsonl", "empty.jsonl", "broken.jsonl")
    data = {
        "sources": [str(tmp_path / name) for name in names],
        "validation": str(tmp_path / "held" / "out.jsonl"),
        "template": str(tmp_path / "chat.jinja"),
    }
    seen = examined(*QUICK, "data-files", "--config", written(data=data))
    for fault, words, exit_code in (
        ("data file missing", "trian.jsonl", 66),
        ("data file empty", "empty.jsonl", 65),
        ("data file broken", "broken.jsonl:1", 65),
        ("validation file missing", "out.jsonl", 66),
        ("template file missing", "chat.jinja", 66),
    ):
        finding = seen.one("data-files", containing=words)
        faults.seen(fault, made="real", finding=finding, check="data-files", exit_code=exit_code)
    near = seen.one("data-files", containing="trian.jsonl")["remedy"]
    assert near == f"--set data.sources.0.path={tmp_path / 'train.jsonl'}"
    assert seen.exit_code == 66


def test_a_disk_that_holds_neither_the_checkpoints_nor_the_model_is_named(
    examined: Examine, written: Write, cache: dict[str, str | None], tmp_path: Path, faults: Faults
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    within = namespace(f"mount -t tmpfs -o size=1m none {small}")
    config = written(output=str(small / "run"), lora={"rank": 256})
    seen = examined(*QUICK, "model-space", "--config", config, within=within).one("model-space")
    faults.seen("no room for checkpoints", made="real", finding=seen, check="model-space", exit_code=73)
    snapshot = f"{small}/hub/models--someone--tiny-7b/snapshots/{COMMIT}"
    index = '{"metadata": {"total_size": 140000000}, "weight_map": {}}'
    begun = f"mount -t tmpfs -o size=1m none {small}\nmkdir -p {snapshot}\n"
    within = namespace(f"{begun}echo '{index}' > {snapshot}/model.safetensors.index.json")
    env = {**cache, "HF_HOME": str(small)}
    seen = examined(*QUICK, "model-space", "--config", written(model=HUB), env=env, within=within).one("model-space")
    faults.seen("no room for the model", made="real", finding=seen, check="model-space", exit_code=73)


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
