"""Bundles: made twice the same, verified byte by byte, laid out whole or not at all; every damage is an error."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from env_check.conftest import namespace

from loradock.commands.bundle import bundle
from loradock.delivery.image.bundle.archive import BLOCK_BYTES, archive_bytes, header, padding
from loradock.delivery.image.bundle.create import Image, create, gather
from loradock.delivery.image.bundle.load import lay_out
from loradock.delivery.image.bundle.manifest import Manifest, Member
from loradock.delivery.image.bundle.verify import verify
from loradock.errors import DataError, DiskFull, InputMissing, LoradockError, NotWritable, UsageError

LONG = "a-shard-with-a-name-" + "x" * 120 + ".safetensors"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A model with an empty file, a long name, a hidden file and a link, and two pieces of data."""
    root = tmp_path / "in"
    (root / "base" / "sub").mkdir(parents=True)
    (root / "base" / "weights.safetensors").write_bytes(random.Random(0).randbytes(40_000))
    (root / "base" / LONG).write_bytes(b"long")
    (root / "base" / "sub" / "empty").touch()
    (root / "base" / ".git").mkdir()
    (root / "base" / ".git" / "config").write_text("hidden", encoding="utf-8")
    (root / "blob").write_bytes(b"behind a link")
    (root / "base" / "tokenizer.json").symlink_to("../blob")
    (root / "rows.jsonl").write_text('{"a": "ü"}\n', encoding="utf-8")
    (root / "more").mkdir()
    (root / "more" / "part-0.parquet").write_bytes(b"PAR1" * 200)
    (root / "lock").write_text("torch==2\n", encoding="utf-8")
    return root


def made(inputs: Path, output: Path, **more: object) -> Manifest:
    given = gather(
        model=inputs / "base", data=[inputs / "rows.jsonl", inputs / "more"], lock=inputs / "lock", image=None
    )
    return create(output, given)


def members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as tar:
        return {each.name: stream.read() for each in tar if (stream := tar.extractfile(each))}


def test_the_same_inputs_give_the_same_bytes_whenever_and_whatever_their_times_and_modes(
    inputs: Path, tmp_path: Path
) -> None:
    first = made(inputs, tmp_path / "one.tar")
    os.utime(inputs / "rows.jsonl", (1, 1))
    (inputs / "lock").chmod(0o600)
    again = made(inputs, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert first.digest == again.digest
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "one.tar", "two.tar"], "nothing else is left"


def test_any_tar_reads_it_and_hidden_files_stay_out_and_links_are_followed(inputs: Path, tmp_path: Path) -> None:
    manifest = made(inputs, tmp_path / "bundle.tar")
    content = members(tmp_path / "bundle.tar")
    assert list(content) == [
        "data/more/part-0.parquet",
        "data/rows.jsonl",
        "lock/requirements.lock",
        f"model/base/{LONG}",
        "model/base/sub/empty",
        "model/base/tokenizer.json",
        "model/base/weights.safetensors",
        "manifest.json",
    ]
    assert content["model/base/tokenizer.json"] == b"behind a link"
    assert content["manifest.json"] == manifest.content
    sizes = [(path, len(each)) for path, each in content.items()]
    assert (tmp_path / "bundle.tar").stat().st_size == archive_bytes(sizes)


def test_it_is_laid_out_as_it_went_in(inputs: Path, tmp_path: Path) -> None:
    manifest = made(inputs, tmp_path / "bundle.tar")
    assert verify(tmp_path / "bundle.tar") == manifest
    assert lay_out(tmp_path / "bundle.tar", tmp_path / "out", expect=manifest.digest) == manifest
    content = members(tmp_path / "bundle.tar")
    del content["manifest.json"]
    found = {file.relative_to(tmp_path / "out").as_posix(): file for file in (tmp_path / "out").rglob("*")}
    assert {path: file.read_bytes() for path, file in found.items() if file.is_file()} == content


def flipped(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << (at % 8)
    file.write_bytes(content)


def test_every_byte_counts_wherever_a_bit_flips(inputs: Path, tmp_path: Path) -> None:
    """All of the headers, the padding, the manifest and the end, and many places of the content."""
    whole = tmp_path / "bundle.tar"
    made(inputs, whole)
    good = whole.read_bytes()
    places = set(range(0, len(good), 1499)) | set(range(len(good) - 6 * BLOCK_BYTES, len(good), 19))
    with tarfile.open(whole) as tar:
        for each in tar:
            places |= set(range(each.offset, each.offset_data, 41))
            places |= {each.offset_data + each.size + place for place in range(0, padding(each.size), 100)}
    for at in sorted(places):
        whole.write_bytes(good)
        flipped(whole, at)
        with pytest.raises(DataError):
            verify(whole)


def test_a_file_that_is_cut_anywhere_or_has_something_behind_is_refused(inputs: Path, tmp_path: Path) -> None:
    whole = tmp_path / "bundle.tar"
    made(inputs, whole)
    good = whole.read_bytes()
    for size in {0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, len(good) // 2, len(good) - 1, len(good) - BLOCK_BYTES}:
        whole.write_bytes(good[:size])
        with pytest.raises(DataError, match=r"it is cut short|should end at byte"):
            verify(whole)
    whole.write_bytes(good + bytes(BLOCK_BYTES))
    with pytest.raises(DataError, match="should end at byte"):
        verify(whole)


def rewritten(file: Path, content: dict[str, bytes]) -> None:
    """The archive with other members, each with a header as ours are."""
    parts = [header(path, len(each)) + each + bytes(padding(len(each))) for path, each in content.items()]
    file.write_bytes(b"".join(parts) + bytes(2 * BLOCK_BYTES))


def without(content: dict[str, bytes]) -> dict[str, bytes]:
    return {path: each for path, each in content.items() if path != "data/rows.jsonl"}


def with_one_more(content: dict[str, bytes]) -> dict[str, bytes]:
    return {"data/aaa": b"!", **content}


def with_another_content(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, "data/rows.jsonl": content["data/rows.jsonl"][::-1]}


def with_more_content(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, "data/rows.jsonl": content["data/rows.jsonl"] + b"\n"}


def without_manifest(content: dict[str, bytes]) -> dict[str, bytes]:
    return {path: each for path, each in content.items() if path != "manifest.json"}


def of_another_format(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, "manifest.json": content["manifest.json"].replace(b"bundle/1", b"bundle/2")}


def in_another_order(content: dict[str, bytes]) -> dict[str, bytes]:
    return {"lock/requirements.lock": content["lock/requirements.lock"], **content}


def no_json(content: dict[str, bytes]) -> dict[str, bytes]:
    return {**content, "manifest.json": b"{"}


CHANGES: dict[Callable[[dict[str, bytes]], dict[str, bytes]], str] = {
    without: "data/rows.jsonl is missing",
    with_one_more: "data/aaa is not in the manifest",
    with_another_content: "data/rows.jsonl is not what went in: its sha256 differs",
    with_more_content: r"data/rows.jsonl has 13 bytes, and 12 in the manifest",
    without_manifest: "holds no manifest.json",
    of_another_format: "its format is 'loradock.delivery.image.bundle/2'",
    in_another_order: "its members are in another order",
    no_json: "its manifest is damaged",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_what_is_not_as_the_manifest_says_is_named_and_nothing_is_laid_out(
    change: Callable[[dict[str, bytes]], dict[str, bytes]], inputs: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar"
    made(inputs, file)
    rewritten(file, change(members(file)))
    for use in (verify, lambda each: lay_out(each, tmp_path / "out")):
        with pytest.raises(DataError) as caught:
            use(file)
        assert CHANGES[change] in str(caught.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bundle.tar", "in"]


@pytest.mark.parametrize("path", ["../evil", "data/../../evil", "/etc/evil", "data//evil", "data/.", "evil", "data"])
def test_a_path_that_leads_elsewhere_is_refused_even_where_the_manifest_lists_it(path: str, tmp_path: Path) -> None:
    sha256 = "6ed0b0f8d5c3ba4d2a5cc8a7d7ad8b1ad92e3eb1b3ae26c2dd3c2ba8a1b3e6f7"
    manifest = Manifest(loradock="0", members=(Member(path=path, size_bytes=4, sha256=sha256),))
    file = tmp_path / "bundle.tar"
    rewritten(file, {path: b"evil", "manifest.json": manifest.content})
    with pytest.raises(DataError, match=r"leads out of the bundle|is in no part of a bundle|as loradock writes it"):
        lay_out(file, tmp_path / "out")
    rewritten(file, {"data/fine": b"evil", "manifest.json": manifest.content})
    with pytest.raises(DataError, match="its manifest is damaged"):
        lay_out(file, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["bundle.tar"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_plain_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("data/link")
    info.type, info.linkname, info.mode = kind, "/etc/passwd", 0o644
    manifest = Manifest(loradock="0", members=())
    rest = header("manifest.json", len(manifest.content)) + manifest.content + bytes(padding(len(manifest.content)))
    file = tmp_path / "bundle.tar"
    file.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + rest + bytes(2 * BLOCK_BYTES))
    with pytest.raises(DataError, match="no plain file"):
        verify(file)


def test_another_bundle_than_the_expected_one_is_refused_though_it_is_whole(inputs: Path, tmp_path: Path) -> None:
    first = made(inputs, tmp_path / "one.tar")
    (inputs / "rows.jsonl").write_text('{"a": "poison"}\n', encoding="utf-8")
    made(inputs, tmp_path / "two.tar")
    verify(tmp_path / "two.tar")
    with pytest.raises(DataError, match="is another bundle"):
        verify(tmp_path / "two.tar", expect=first.digest)


def test_an_image_is_written_as_its_bytes_come_and_no_size_has_to_be_known(tmp_path: Path) -> None:
    chunks = [b"x" * 1000, b"", b"y" * 700]
    image = Image(reference="ours:1", id="sha256:1", size_bytes=5000, chunks=lambda: iter(chunks))
    manifest = create(tmp_path / "bundle.tar", gather(model=None, data=[], lock=None, image=image))
    assert (manifest.image, manifest.members[0].size_bytes) == ("ours:1", 1700)
    assert members(tmp_path / "bundle.tar")["image/image.tar"] == b"".join(chunks)
    assert verify(tmp_path / "bundle.tar") == manifest


def test_a_size_beyond_eight_gigabytes_fits_the_header() -> None:
    assert len(header("image/image.tar", 20 << 30)) == BLOCK_BYTES
    info = tarfile.TarInfo.frombuf(header("image/image.tar", 20 << 30), "utf-8", "strict")
    assert info.size == 20 << 30


def breaking() -> Image:
    def chunks() -> object:
        yield b"half"
        raise OSError(28, "No space left on device")

    return Image(reference="ours:1", id="sha256:1", size_bytes=10, chunks=chunks)  # pyright: ignore[reportArgumentType]


def test_a_bundle_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DiskFull):
        create(tmp_path / "bundle.tar", gather(model=None, data=[], lock=None, image=breaking()))
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_or_folder_is_never_written_over(inputs: Path, tmp_path: Path) -> None:
    made(inputs, tmp_path / "bundle.tar")
    with pytest.raises(UsageError, match="already exists"):
        made(inputs, tmp_path / "bundle.tar")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(UsageError, match="already exists"):
        lay_out(tmp_path / "bundle.tar", tmp_path / "out")
    with pytest.raises(UsageError, match="/dev/shm is a mount point"):
        lay_out(tmp_path / "bundle.tar", Path("/dev/shm"))
    (tmp_path / "out" / "mine").unlink()
    lay_out(tmp_path / "bundle.tar", tmp_path / "out")
    with pytest.raises(NotWritable):
        lay_out(tmp_path / "bundle.tar", tmp_path / "no" / "such")


def test_all_that_cannot_go_in_is_told_at_once(inputs: Path, tmp_path: Path) -> None:
    os.mkfifo(inputs / "base" / "pipe")
    (inputs / "base" / "dangling").symlink_to("nowhere")
    twice = tmp_path / "rows.jsonl"
    twice.touch()
    with pytest.raises(InputMissing) as caught:
        gather(model=inputs / "base", data=[inputs / "rows.jsonl", twice, tmp_path / "absent"], lock=None, image=None)
    text = str(caught.value)
    assert "pipe: neither a file nor a link to one" in text
    assert "dangling: neither" in text
    assert "'data/rows.jsonl' would be there twice" in text
    assert "absent: missing, or holds no file" in text
    with pytest.raises(UsageError, match="nothing would be in the bundle"):
        gather(model=None, data=[], lock=None, image=None)


def test_the_disk_is_looked_at_before_anything_is_written(tmp_path: Path) -> None:
    """In a small filesystem of its own, with a model that does not fit."""
    import subprocess
    import sys

    model = tmp_path / "base"
    model.mkdir()
    (model / "weights").write_bytes(bytes(3 << 20))
    small = tmp_path / "small"
    small.mkdir()
    within = namespace(f"mount -t tmpfs -o size=2m none {small}")
    arguments = ["bundle", "create", str(small), "--model", str(model)]
    done = subprocess.run([*within, sys.executable, "-m", "loradock", *arguments], capture_output=True, text=True)
    assert done.returncode == 73, done.stderr
    assert "error: the bundle takes 3.3 MiB" in done.stderr


def run(*arguments: object) -> tuple[str, LoradockError | None]:
    result = CliRunner().invoke(bundle, [str(each) for each in arguments])
    failure = result.exception
    assert failure is None or isinstance(failure, LoradockError), failure
    return result.output, failure


def test_the_command_makes_verifies_and_lays_out(inputs: Path, tmp_path: Path) -> None:
    out, failure = run("create", tmp_path, "--model", inputs / "base", "--data", inputs / "rows.jsonl")
    assert failure is None
    file = tmp_path / "loradock-bundle.tar"
    digest = out.split()[-1]
    assert "lock    requirements.lock: 1 file," in out, "the lock of this installation goes along"
    out, failure = run("verify", file, "--expect", digest, "--json")
    assert failure is None
    assert json.loads(out[out.index("{") :])["digest"] == digest
    out, failure = run("load", file, "--output", tmp_path / "there")
    assert failure is None
    assert f"try: loradock train --model {tmp_path}/there/model/base --data {tmp_path}/there/data/rows.jsonl" in out
    assert (tmp_path / "there" / "data" / "rows.jsonl").read_bytes() == (inputs / "rows.jsonl").read_bytes()
    assert (run("verify", tmp_path / "absent")[1] or LoradockError("")).exit_code == 66
    assert (run("verify", file, "--expect", "123")[1] or LoradockError("")).exit_code == 64
    flipped(file, 5000)
    assert (run("verify", file)[1] or LoradockError("")).exit_code == 65


def test_a_compressed_or_foreign_file_is_no_bundle(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz"):
        pass
    for content in (stream.getvalue() * 40, b"hello\n" * 400, os.urandom(5000)):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(DataError, match="is damaged, or no bundle"):
            verify(tmp_path / "file")
