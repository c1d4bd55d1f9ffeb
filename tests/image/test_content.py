"""The content digest: the same for the same content, another for any change; nothing of it stays in the engine."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from image.small_images import Entry, small_image, unique

from loradock.commands.image_verify import verify
from loradock.delivery.image.content import content_of, differences, read_manifest
from loradock.delivery.image.labels import CONTAINER
from loradock.errors import EnvironmentUnfit, InputMissing, UsageError

if TYPE_CHECKING:
    from docker import DockerClient

FILES = {
    "etc/config": Entry(content=b"one\n"),
    "bin/program": Entry(content=b"#!/bin/sh\n", mode=0o755),
    "bin/alias": Entry(link="program"),
    "bin/twin": Entry(link="bin/program", is_hard_link=True, mode=0o755),
    "with \"quotes\" and\nline": Entry(content=b"odd"),
}  # fmt: skip
CONFIG = 'ENV A=1 B=2\nUSER 65532:0\nENTRYPOINT ["/bin/program"]'
# cap_net_raw as the kernel keeps it: version 2, effective; bit 13 permitted.
NET_RAW = {"security.capability": "\x01\0\0\x02" + "\0\x20\0\0" + "\0" * 12}
CHANGES = {
    "a byte": ({"etc/config": Entry(content=b"ond\n")}, CONFIG, "/etc/config"),
    "a mode": ({"etc/config": Entry(content=b"one\n", mode=0o4644)}, CONFIG, "/etc/config"),
    "an owner": ({"etc/config": Entry(content=b"one\n", uid=7)}, CONFIG, "/etc/config"),
    "a link": ({"bin/alias": Entry(link="twin")}, CONFIG, "/bin/alias"),
    "a file more": ({"etc/more": Entry()}, CONFIG, "/etc/more"),
    "a capability": ({"etc/config": Entry(content=b"one\n", attributes=NET_RAW)}, CONFIG, "/etc/config"),
    "the environment": ({}, CONFIG.replace("A=1", "A=2"), "config: Env"),
    "the user": ({}, CONFIG.replace("65532", "0"), "config: User"),
    "a label": ({}, f"{CONFIG}\nLABEL a=b", "config: Labels"),
}


def ours(engine: DockerClient) -> list[str]:
    found = engine.containers.list(all=True, filters={"label": f"{CONTAINER}=content"}, ignore_removed=True)
    return [str(container.id) for container in found]


def test_two_builds_share_the_digest_although_times_and_the_order_of_variables_differ(engine: DockerClient) -> None:
    older = {path: Entry(**{**vars(entry), "mtime": 1}) for path, entry in FILES.items()}
    with small_image(engine, FILES, instructions=CONFIG) as one:
        other_order = CONFIG.replace("A=1 B=2", "B=2 A=1")
        with small_image(engine, older, instructions=other_order) as other:
            assert one.id != other.id
            first, second = content_of(engine, one), content_of(engine, other)
    assert differences(first, second) == []
    assert first.digest == second.digest
    assert "/bin/twin" in first.entries
    assert first.entries["/bin/twin"] == first.entries["/bin/program"]
    assert ours(engine) == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_anything_is_another_digest_and_is_named(engine: DockerClient, change: str) -> None:
    files, config, named = CHANGES[change]
    with (
        small_image(engine, FILES, instructions=CONFIG) as one,
        small_image(engine, {**FILES, **files}, instructions=config) as other,
    ):
        first, second = content_of(engine, one), content_of(engine, other)
    assert first.digest != second.digest
    found = differences(first, second)
    assert any(line.startswith(named) for line in found), found
    assert all(line.startswith((named, "/bin/twin")) for line in found), found


def test_the_manifest_is_what_the_digest_is_of_and_reads_back(engine: DockerClient, tmp_path: Path) -> None:
    with small_image(engine, FILES, instructions=CONFIG) as image:
        content = content_of(engine, image)
    (tmp_path / "manifest").write_text(content.manifest)
    written = (tmp_path / "manifest").read_bytes()
    assert content.digest == f"sha256:{hashlib.sha256(written).hexdigest()}"
    back = read_manifest(tmp_path / "manifest")
    assert back.digest == content.digest
    assert differences(content, back) == []


def test_what_is_no_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no such manifest"):
        read_manifest(tmp_path / "none")
    (tmp_path / "other").write_text("something\n")
    with pytest.raises(InputMissing, match="is not a manifest"):
        read_manifest(tmp_path / "other")
    (tmp_path / "torn").write_text("loradock content 1\nconfig {}\n0644 0:0 file 1 ab\n")
    with pytest.raises(InputMissing, match="damaged"):
        read_manifest(tmp_path / "torn")


def test_the_command_compares_with_an_image_a_digest_and_a_manifest(engine: DockerClient, tmp_path: Path) -> None:
    run = CliRunner().invoke
    with ExitStack() as images:
        names = [unique("loradock-test") for _ in range(3)]
        for name in names:
            files = FILES if name != names[2] else {**FILES, "etc/planted": Entry(content=b"x")}
            images.enter_context(small_image(engine, files, instructions=CONFIG, name=name))
        written = run(verify, [names[0], "--write-manifest", str(tmp_path / "m"), "--json"], catch_exceptions=False)
        digest = json.loads(written.stdout)["digest"]
        good = run(verify, [names[1], "--against", names[0], "--manifest", str(tmp_path / "m"), "--expect", digest])
        assert (good.exit_code, good.stdout) == (0, f"{digest}\n"), good.stderr
        assert good.stderr.count("matches") == 3
        for option in (["--against", names[0]], ["--manifest", str(tmp_path / "m")], ["--expect", digest]):
            bad = run(verify, [names[2], *option])
            assert isinstance(bad.exception, EnvironmentUnfit)
            assert bad.exception.exit_code == 71
            assert "/etc/planted" in str(bad.exception) or option[0] == "--expect"


def test_options_that_contradict_each_other_are_refused_before_the_engine_is_asked() -> None:
    for options in (["--signature", "a.sig"], ["--sign", "key"], ["--identity", "me"], ["--sign", "k", "-o", "a"]):
        assert isinstance(CliRunner().invoke(verify, ["image", *options]).exception, UsageError)


def test_an_interrupted_verify_leaves_no_container(engine: DockerClient, base_image: str) -> None:
    if ours(engine):
        pytest.skip("another verify is at work")
    program = "from loradock.commands.image_verify import verify; verify()"
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen([sys.executable, "-c", program, base_image], env=os.environ, stderr=subprocess.PIPE)
        while not ours(engine) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=120)
        assert process.returncode != 0
        assert ours(engine) == []
