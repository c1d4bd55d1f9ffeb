"""The secret of a launch: where it comes from, and what is signed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loradock.distributed.seal import SECRET, SECRET_FILE, Seal, drawn, secret_in
from loradock.errors import UsageError


def test_what_one_closed_another_opens_with_the_same_secret_start_and_speaker_only() -> None:
    seal = Seal(key=b"k" * 16, start="0")
    closed = seal.close("1", b"words")
    assert seal.open("1", closed) == b"words"
    assert seal.open("2", closed) is None
    assert Seal(key=b"k" * 16, start="1").open("1", closed) is None
    assert Seal(key=b"j" * 16, start="0").open("1", closed) is None
    assert seal.open("1", closed[:-1]) is None
    assert seal.open("1", b"words") is None
    assert Seal().open("1", Seal().close("1", b"words")) == b"words"


def test_a_secret_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{'f' * 32}\n")
    assert secret_in({}) == b""
    assert secret_in({SECRET_FILE: str(file)}) == b"f" * 32
    assert secret_in({SECRET: "e" * 32, SECRET_FILE: str(file)}) == b"e" * 32
    assert drawn() != drawn()


@pytest.mark.parametrize(
    ("environ", "what"), [({SECRET: "short"}, "could be guessed"), ({SECRET_FILE: "/gone"}, "/gone")]
)
def test_a_secret_that_cannot_be_used_is_refused(environ: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        secret_in(environ)
