"""Entries of the prepared-data cache that are broken are made again, the same; none gives other tokens."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data import cache
from loradock.data.pairs.preparer import PairTask
from loradock.data.prepare import prepare
from loradock.data.prepared import Prepared
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import StorageError

GONE = object()


@pytest.fixture
def spec(tokenizers: dict[str, PreTrainedTokenizerFast]) -> TokenizerSpec:
    return TokenizerSpec.of(tokenizers["byte-level"])


def prepared(folder: Path, spec: TokenizerSpec, *, word: str = "it") -> Prepared:
    """The rows of a file of 20, from the cache beside it."""
    path = folder / f"{word}.jsonl"
    rows = [{"instruction": f"say {number}", "output": f"{word} is {number}"} for number in range(20)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return prepare(DataConfig(sources=(SourceConfig(path=str(path)),)), tokenizer=spec, cache_dir=folder / "c")


def files(entry: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(entry.iterdir())}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rows", GONE), ("rows", "20"), ("rows", 0), ("rows", True), ("tokens", -1), ("tokens", 2**70), ("files", []),
        ("files", {}), ("files", {"../tokens": "0" * 64}), ("spans", []), ("spans", [[0, 19]]), ("spans", [[5, 20]]),
        ("spans", [[0, 20, 20]]), ("contents", GONE), ("contents", [{}]), ("special_texts", {"</s>": "x"}),
        ("remarks", None), ("conversations", 1e300), ("template", 3), ("cut_documents", GONE), ("key", "0" * 64),
        ("samples", GONE), ("samples", "20"), ("skipped_rows", -1), ("skipped", [3]),
    ],
)  # fmt: skip
def test_a_manifest_that_another_version_sealed_is_made_again(
    key: str, value: Any, spec: TokenizerSpec, tmp_path: Path
) -> None:
    first = prepared(tmp_path, spec)
    sound, file = files(first.directory), first.directory / "manifest.json"
    manifest = json.loads(file.read_bytes())
    manifest.pop("sha256")
    manifest = {name: each for name, each in (manifest | {key: value}).items() if each is not GONE}
    seal = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**manifest, "sha256": seal}))
    assert prepared(tmp_path, spec) == first
    assert files(first.directory) == sound


@pytest.mark.parametrize("content", [b"", b"7", b"[]", b"\xff", b"[" * 100_000, b'{"sha256": NaN}'])
def test_a_manifest_that_is_none_is_made_again(content: bytes, spec: TokenizerSpec, tmp_path: Path) -> None:
    first = prepared(tmp_path, spec)
    sound = files(first.directory)
    (first.directory / "manifest.json").write_bytes(content)
    assert prepared(tmp_path, spec) == first
    assert files(first.directory) == sound


def test_an_entry_under_the_key_of_another_never_gives_its_tokens(spec: TokenizerSpec, tmp_path: Path) -> None:
    first, other = prepared(tmp_path, spec), prepared(tmp_path, spec, word="that")
    sound = files(first.directory)
    shutil.rmtree(first.directory)
    shutil.copytree(other.directory, first.directory)
    assert prepared(tmp_path, spec) == first
    assert files(first.directory) == sound


@pytest.mark.parametrize("name", ["manifest.json", "tokens.i32"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, spec: TokenizerSpec, tmp_path: Path) -> None:
    first = prepared(tmp_path, spec)
    sound = files(first.directory)
    (first.directory / name).unlink()
    os.mkfifo(first.directory / name)
    assert prepared(tmp_path, spec) == first
    assert files(first.directory) == sound


def test_a_large_entry_is_hashed_once_and_again_when_a_file_is_another(
    spec: TokenizerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "HASHED_WHEN_OPENED_BYTES", 0)
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: hashed.append(str(file.name)) or digest(file, kind))
    first = prepared(tmp_path, spec)
    sound = (first.directory / "tokens.i32").read_bytes()
    counts: list[int] = []
    for _ in range(3):
        prepared(tmp_path, spec)
        counts.append(len([name for name in hashed if name.endswith("tokens.i32")]))
    assert counts == [1, 1, 1]
    (first.directory / "tokens.i32").write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    assert prepared(tmp_path, spec) == first
    assert (first.directory / "tokens.i32").read_bytes() == sound


def test_offsets_that_change_while_they_are_used_are_an_error(spec: TokenizerSpec, tmp_path: Path) -> None:
    first = prepared(tmp_path, spec)
    path = first.directory / "offsets.i64"
    content = bytearray(path.read_bytes())
    content[8 + 6] = 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"offsets\.i64: it was modified") as caught:
        first.row(0)
    assert caught.value.exit_code == 74


def test_the_roles_of_rows_are_no_part_of_what_a_fingerprint_holds_of_them(spec: TokenizerSpec, tmp_path: Path) -> None:
    """Runs that began before rows had roles continue; in samples of several documents they count."""
    rows = prepared(tmp_path, spec)
    kept = json.loads((rows.directory / "manifest.json").read_bytes())["files"]
    assert kept.pop("roles.u8")
    assert rows.digest == hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"query": "q", "pos": ["a"], "neg": ["b"]}) + "\n")

    def task(data: DataConfig, spec: TokenizerSpec) -> PairTask:
        return PairTask.of(EmbeddingConfig(), spec=spec, special=data.special_tokens)

    source = DataConfig(sources=(SourceConfig(path=str(pairs)),))
    documents = prepare(source, tokenizer=spec, cache_dir=tmp_path / "c", task=task)
    sealed = json.loads((documents.directory / "manifest.json").read_bytes())["files"]
    assert documents.roles.tolist() == [0, 1, 2]
    assert documents.digest == hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()
