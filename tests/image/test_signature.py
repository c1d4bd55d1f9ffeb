"""Signatures with real ed25519 keys: the good one passes; another key, image, identity or an edited statement fails."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from image.small_images import Entry, small_image, unique

from loradock.commands.image_verify import verify as command
from loradock.delivery.image.signature import NAMESPACE, canonical, mismatches, sign, statement, verify
from loradock.errors import EnvironmentUnfit, InputMissing, UsageError

if TYPE_CHECKING:
    from docker import DockerClient

LABELS = {"loradock.lock": "abc", "org.opencontainers.image.version": "1", "org.opencontainers.image.revision": "f00"}
MINE = statement("sha256:01", image_labels=LABELS)
pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key")


@pytest.fixture
def signers(tmp_path: Path, key: Path) -> Path:
    kind, public, *_ = key.with_suffix(".pub").read_text().split()
    (tmp_path / "signers").write_text(f'me@site namespaces="{NAMESPACE}" {kind} {public}\n')
    return tmp_path / "signers"


def new_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return path


def test_a_good_signature_passes_here_and_with_plain_ssh_keygen(tmp_path: Path, key: Path, signers: Path) -> None:
    place = sign(MINE, key=key, signature=tmp_path / "image.sig")
    assert verify(tmp_path / "image.sig", signers=signers, identity="me@site") == MINE
    plain = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        signers,
        "-I",
        "me@site",
        "-n",
        NAMESPACE,
        "-s",
        tmp_path / "image.sig",
    ]
    assert subprocess.run(plain, input=place.read_bytes(), capture_output=True).returncode == 0


def test_another_key_is_refused(tmp_path: Path, signers: Path) -> None:
    sign(MINE, key=new_key(tmp_path / "stranger"), signature=tmp_path / "image.sig")
    with pytest.raises(EnvironmentUnfit, match="could not verify"):
        verify(tmp_path / "image.sig", signers=signers, identity="me@site")


def test_another_identity_is_refused(tmp_path: Path, key: Path, signers: Path) -> None:
    sign(MINE, key=key, signature=tmp_path / "image.sig")
    with pytest.raises(EnvironmentUnfit, match="could not verify"):
        verify(tmp_path / "image.sig", signers=signers, identity="you@site")


def test_a_signature_made_for_something_else_is_refused(tmp_path: Path, key: Path, signers: Path) -> None:
    (tmp_path / "image").write_bytes(canonical(MINE))
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "git", tmp_path / "image"], check=True)
    with pytest.raises(EnvironmentUnfit, match="could not verify"):
        verify(tmp_path / "image.sig", signers=signers, identity="me@site")


def test_an_edited_statement_is_refused(tmp_path: Path, key: Path, signers: Path) -> None:
    place = sign(MINE, key=key, signature=tmp_path / "image.sig")
    place.write_bytes(canonical({**MINE, "revision": "f01"}))
    with pytest.raises(EnvironmentUnfit, match="could not verify"):
        verify(tmp_path / "image.sig", signers=signers, identity="me@site")


def test_a_statement_of_another_image_names_what_differs() -> None:
    other = statement("sha256:02", image_labels=LABELS)
    assert mismatches(MINE, MINE) == []
    assert mismatches(MINE, other) == ["content: signed 'sha256:01', the image has 'sha256:02'"]


def test_missing_files_and_odd_names_are_named(tmp_path: Path, key: Path, signers: Path) -> None:
    with pytest.raises(InputMissing, match="no such key"):
        sign(MINE, key=tmp_path / "none", signature=tmp_path / "image.sig")
    with pytest.raises(UsageError, match=r"ends with \.sig"):
        sign(MINE, key=key, signature=tmp_path / "image")
    with pytest.raises(InputMissing, match="no signature"):
        verify(tmp_path / "image.sig", signers=signers, identity="me@site")
    (tmp_path / "nokey").write_text("nothing\n")
    with pytest.raises(EnvironmentUnfit, match=r"could not sign with .*nokey"):
        sign(MINE, key=tmp_path / "nokey", signature=tmp_path / "image.sig")


def test_the_command_signs_an_image_and_tells_it_from_another(
    engine: DockerClient, tmp_path: Path, key: Path, signers: Path
) -> None:
    run = CliRunner().invoke
    names = [unique("loradock-test"), unique("loradock-test")]
    check = ["--signature", str(tmp_path / "i.sig"), "--signers", str(signers), "--identity", "me@site"]
    with (
        small_image(engine, {"a": Entry(content=b"1")}, instructions="LABEL loradock.lock=abc", name=names[0]),
        small_image(engine, {"a": Entry(content=b"2")}, instructions="LABEL loradock.lock=abc", name=names[1]),
    ):
        run(command, [names[0], "--sign", str(key), "-o", str(tmp_path / "i.sig")], catch_exceptions=False)
        assert json.loads((tmp_path / "i").read_text())["lock"] == "abc"
        good = run(command, [names[0], *check])
        assert (good.exit_code, "matches the statement signed by me@site" in good.stderr) == (0, True)
        bad = run(command, [names[1], *check])
        assert isinstance(bad.exception, EnvironmentUnfit)
        assert "content: signed" in str(bad.exception)
