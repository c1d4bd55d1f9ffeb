"""An image through a bundle: saved by a real engine, removed there, loaded again, and the same as before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner
from image.small_images import Entry, small_image, unique

from loradock.commands.bundle import bundle
from loradock.delivery.image.bundle.verify import verify
from loradock.delivery.image.content import content_of
from loradock.errors import DataError, InputMissing

if TYPE_CHECKING:
    from docker import DockerClient


def test_an_image_comes_back_from_a_bundle_with_its_name_and_content(engine: DockerClient, tmp_path: Path) -> None:
    name = unique("loradock-test-bundle") + ":1"
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n", encoding="utf-8")
    file = tmp_path / "bundle.tar"
    with small_image(engine, {"hello": Entry(content=b"carried\n" * 5000)}, name=name) as image:
        before = content_of(engine, image)
        made = CliRunner().invoke(bundle, ["create", str(file), "--image", name, "--data", str(rows)])
        assert made.exception is None, made.output
        assert f"image   {name}: 1 file," in made.output
        engine.images.remove(name)
        loaded = CliRunner().invoke(bundle, ["load", str(file), "--output", str(tmp_path / "out")])
        assert loaded.exception is None, loaded.output
        assert f"-v {tmp_path}/out:/workspace {name} train --data data/rows.jsonl" in loaded.output
        assert content_of(engine, engine.images.get(name)).digest == before.digest
        assert verify(file).image == name
    assert (tmp_path / "out" / "data" / "rows.jsonl").read_text(encoding="utf-8") == "{}\n"
    assert not (tmp_path / "out" / "image").exists()


def test_a_damaged_image_never_reaches_the_engine(engine: DockerClient, tmp_path: Path) -> None:
    name = unique("loradock-test-bundle") + ":1"
    file = tmp_path / "bundle.tar"
    with small_image(engine, {"hello": Entry(content=b"carried\n" * 5000)}, name=name):
        assert CliRunner().invoke(bundle, ["create", str(file), "--image", name]).exception is None
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    loaded = CliRunner().invoke(bundle, ["load", str(file), "--output", str(tmp_path / "out")])
    assert isinstance(loaded.exception, DataError)
    assert not engine.images.list(name)
    assert not (tmp_path / "out").exists()


def test_an_image_that_is_not_there_is_said_before_anything_is_written(engine: DockerClient, tmp_path: Path) -> None:
    made = CliRunner().invoke(bundle, ["create", str(tmp_path / "bundle.tar"), "--image", "no-such-image:9"])
    assert isinstance(made.exception, InputMissing)
    assert list(tmp_path.iterdir()) == []
