"""What prune takes and what it never takes: rules on plain entries, then a real engine and real directories."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from image.small_images import Entry as File
from image.small_images import small_image, unique

from loradock.commands.prune import prune
from loradock.delivery.image.engine import connect
from loradock.delivery.image.labels import CONTAINER, IMAGE
from loradock.delivery.image.prune import Decision, Entry, Rules, decide, parse_age, parse_size
from loradock.delivery.image.prune_engine import inventory, is_our_name, take
from loradock.delivery.image.prune_scratch import scratch_entries, scratch_root, take_scratch
from loradock.delivery.image.scratch import MARKER, Scratch, held, opened
from loradock.errors import EnvironmentUnfit, InputMissing, UsageError

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

HOUR = 3600.0
NOW = 1_000_000.0


def entry(kind: str, name: str, *, hours: float = 48, **more: Any) -> Entry:
    more = {"parts": {name: 100}, **more}
    return Entry(kind=kind, id=name, name=name, last_used=NOW - hours * HOUR, **more)


def taken(entries: list[Entry], **rules: Any) -> list[str]:
    return [d.entry.name for d in decide(entries, rules=Rules(now=NOW, **rules)) if d.is_taken]


# --- the rules


def test_what_is_newer_than_the_age_stays_and_what_is_older_goes_oldest_first() -> None:
    entries = [entry("image", "new", hours=1), entry("image", "old"), entry("scratch", "older", hours=90)]
    assert taken(entries) == ["older", "old"]
    assert taken(entries, older_than_seconds=60 * HOUR) == ["older"]


def test_the_newest_image_stays_unless_all_is_asked_for() -> None:
    entries = [entry("image", "a", is_newest=True), entry("image", "b", hours=60)]
    assert taken(entries) == ["b"]
    assert taken(entries, takes_newest=True) == ["b", "a"]


def test_an_image_waits_for_its_containers_and_a_step_for_those_that_build_on_it() -> None:
    entries = [
        entry("cache", "base", hours=90, needs=["step"]),
        entry("cache", "step", hours=80, needs=["image"]),
        entry("image", "image", hours=70, needs=["container"]),
        entry("container", "container", hours=48),
    ]
    assert taken(entries) == ["container", "image", "step", "base"]
    running = [*entries[:3], entry("container", "container", kept="it is running")]
    reasons = {d.entry.name: d.why for d in decide(running, rules=Rules(now=NOW))}
    assert reasons["image"] == "the container container stays"
    assert reasons["base"] == "the cache step stays"


def test_shared_storage_counts_once_and_only_when_the_last_holder_goes() -> None:
    first = entry("image", "a", hours=90, parts={"base": 1000, "a": 10})
    second = entry("image", "b", hours=80, parts={"base": 1000, "b": 5})
    freed = {d.entry.name: d.freed_bytes for d in decide([first, second], rules=Rules(now=NOW))}
    assert freed == {"a": 10, "b": 1005}
    held_by_others = decide([first, second], rules=Rules(now=NOW, held_parts={"base"}))
    assert sum(d.freed_bytes for d in held_by_others) == 15


def test_keep_size_takes_the_oldest_until_the_rest_fits() -> None:
    entries = [entry("image", "a", hours=90), entry("image", "b", hours=80), entry("image", "c", hours=70)]
    assert taken(entries, keep_size_bytes=200) == ["a"]
    assert taken(entries, keep_size_bytes=199) == ["a", "b"]
    assert taken(entries, keep_size_bytes=300) == []


def test_ages_and_sizes_are_read_with_their_units_and_nonsense_is_refused() -> None:
    assert [parse_age(text) for text in ("0", "90m", "24h", "7d", "2w")] == [0, 5400, 86400, 604800, 1209600]
    assert [parse_size(text) for text in ("0", "20GB", "1.5 MiB")] == [0, 20 * 10**9, 3 * 2**19]
    for nonsense in ("7", "d7", "-1d", ""):
        with pytest.raises(UsageError):
            parse_age(nonsense)
    with pytest.raises(UsageError):
        parse_size("20 boxes")


def test_only_repositories_named_loradock_are_ours() -> None:
    names = ("loradock", "loradock-*")
    assert all(is_our_name(tag, names) for tag in ("loradock:1", "site:5000/team/loradock:1", "loradock-x:latest"))
    assert not any(is_our_name(tag, names) for tag in ("trainer:1", "loradock/other:1", "myloradock:1"))


# --- the engine


@pytest.fixture
def client(engine: DockerClient) -> Iterator[DockerClient]:
    connection = connect()
    yield connection
    connection.close()


def found(client: DockerClient, **options: Any) -> dict[str, Entry]:
    return {item.id: item for item in inventory(client, **options).entries}


def only(client: DockerClient, ids: set[str], **rules: Any) -> list[Decision]:
    """Decide about the entries of this test alone; all else on the engine is as if it were not ours to take."""
    entries = [item for item in inventory(client).entries if item.id in ids]
    return decide(entries, rules=Rules(now=2e9 * 2, older_than_seconds=0, takes_newest=True, **rules))


@contextlib.contextmanager
def container(client: DockerClient, image: str, **options: Any) -> Iterator[Container]:
    made = client.containers.create(image, ["/bin/sleep", "600"], network_mode="none", **options)
    try:
        yield made
    finally:
        with contextlib.suppress(Exception):
            made.remove(force=True)


MINE = f'LABEL {IMAGE}="true"'
FILES = {"file": File(content=b"1")}


def test_a_foreign_image_is_no_entry_and_ours_is(client: DockerClient) -> None:
    with (
        small_image(client, FILES, name=unique("foreign")) as foreign,
        small_image(client, FILES, instructions=MINE) as ours,
    ):
        entries = found(client)
        assert ours.id in entries
        assert foreign.id not in entries


def test_an_image_with_a_foreign_name_loses_only_ours(client: DockerClient) -> None:
    with small_image(client, FILES, instructions=MINE) as ours:
        other = unique("trainer")
        ours.tag(other, "1")
        try:
            ids = {str(ours.id), ours.tags[0]} | {f"{other}:1"}
            decisions = only(client, ids)
            assert {d.entry.kind: d.is_taken for d in decisions} == {"tag": True, "image": False}
            assert [take(client, d.entry) for d in decisions if d.is_taken] == [""]
            assert client.images.get(f"{other}:1").tags == [f"{other}:1"]
            named = found(client, names=[other])
            assert named[str(ours.id)].kept == ""
        finally:
            client.images.remove(f"{other}:1")


def test_what_somebody_built_on_our_image_stays_label_and_all(client: DockerClient) -> None:
    with small_image(client, FILES, instructions=MINE) as ours:
        name = unique("loradock-derived")
        with small_image(client, {"more": File(content=b"2")}, base=ours.tags[0], name=name) as derived:
            assert IMAGE in derived.labels
            assert found(client)[str(derived.id)].kept == "built on our image by somebody else"
            with container(client, str(derived.id)) as theirs:
                assert theirs.id not in found(client)


def test_a_stopped_container_goes_with_its_image_and_a_running_one_keeps_both(
    client: DockerClient, base_image: str
) -> None:
    with small_image(client, FILES, instructions=MINE, base=base_image) as ours, container(client, str(ours.id)) as one:
        one.start()
        ids = {str(ours.id), str(one.id)}
        assert {d.why for d in only(client, ids)} == {"it is running", f"the container {one.name} stays"}
        assert take(client, found(client)[str(one.id)]) != ""
        one.kill()
        one.wait()
        decisions = only(client, ids)
        assert [d.entry.kind for d in decisions if d.is_taken] == ["container", "image"]
        assert [take(client, d.entry) for d in decisions] == ["", ""]
        assert not client.images.list(ours.tags[0])
        # Its step without our label, which this classic build left as an image, is not ours and stays.
        client.images.remove(ours.attrs["Parent"])


def test_a_foreign_container_is_no_entry_unless_it_carries_our_label(client: DockerClient) -> None:
    with (
        small_image(client, FILES, name=unique("foreign")) as image,
        container(client, str(image.id)) as foreign,
        container(client, str(image.id), labels={CONTAINER: "x"}) as ours,
    ):
        entries = found(client)
        assert foreign.id not in entries
        assert ours.id in entries


# --- the build cache


@pytest.fixture
def build(client: DockerClient, base_image: str, tmp_path: Path) -> Callable[..., str]:
    """Build with BuildKit; returns its output."""
    command = os.environ.get("LORADOCK_DOCKER", "/usr/bin/docker")

    def run(text: str, *, tag: str) -> str:
        context = tmp_path / tag
        (context / "docker").mkdir(parents=True, exist_ok=True)
        (context / "docker" / "step").write_text("#!/bin/sh\nhead -c 3000000 /dev/urandom >/$1\n")
        (context / "docker" / "step").chmod(0o755)
        (context / "file").write_text(tag)
        (context / "Dockerfile").write_text(text)
        done = subprocess.run(
            [command, "build", "--network=none", "--progress=plain", "-t", tag, "."],
            cwd=context, env={**os.environ, "DOCKER_BUILDKIT": "1"}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def ran(log: str) -> list[str]:
    """The steps of a build that did not come from its cache."""
    steps = re.findall(r"^#(\d+) \[[^\]]*\d+/\d+\] (?:RUN|COPY)", log, re.MULTILINE)
    return [number for number in dict.fromkeys(steps) if f"\n#{number} CACHED" not in log]


def test_our_build_cache_goes_and_a_foreign_build_is_still_cached(
    client: DockerClient, base_image: str, build: Callable[..., str]
) -> None:
    mark = uuid.uuid4().hex
    mount = "RUN --mount=type=bind,source=docker,target=/run/loradock"
    ours_text = (
        f"FROM {base_image} AS system\n{mount} /run/loradock/step {mark}a\n"
        f"FROM system AS wheels\n{mount} --mount=type=cache,id=loradock-{mark},target=/c /run/loradock/step c/{mark}b\n"
        f"FROM system\n{mount} --mount=type=bind,from=wheels,target=/w /run/loradock/step {mark}c\nCOPY file /{mark}d\n"
        f"{mount} /run/loradock/step {mark}e\nLABEL {IMAGE}=true\nWORKDIR /work\n"
    )
    foreign_text = (
        f"FROM {base_image}\nRUN --mount=type=cache,id={mark},target=/c echo {mark} >/c/f\nCOPY file /\n"
        f"RUN echo {mark} >/f\n"
    )
    ours, foreign = f"loradock-test-{mark[:8]}", f"foreign-{mark[:8]}"
    try:
        build(ours_text, tag=ours)
        build(foreign_text, tag=foreign)
        derived_text = f"FROM {ours}\nRUN echo {mark} >/derived\nCOPY file /derived-too\n"
        build(derived_text, tag=f"{foreign}-derived")
        image_id = str(client.images.get(ours).id)
        mine = {identity for identity, item in found(client).items() if mark in item.name}
        chain = list(mine)
        records = {record["ID"]: record for record in client.api.df()["BuildCache"]}
        while new := [r for r in records.values() if r["Parent"] in chain and r["ID"] not in chain]:
            chain += [record["ID"] for record in new]
        assert not any(mark in item.name and "echo" in item.name for item in found(client).values())

        going = {d.entry.name.split()[-1] for d in only(client, set(chain)) if d.is_taken}
        assert going == {f"c/{mark}b"}, "the steps of an image that stays free nothing, the others do"
        client.images.remove(f"{foreign}-derived")

        decisions = only(client, {*chain, image_id}, held_parts=inventory(client).held_parts)
        assert all(d.is_taken for d in decisions), [(d.entry.name, d.why) for d in decisions if not d.is_taken]
        assert [take(client, d.entry) for d in decisions] == ["" for _ in decisions]
        assert not {record["ID"] for record in client.api.df()["BuildCache"]}.intersection(chain)

        client.images.remove(foreign)
        assert ran(build(foreign_text, tag=foreign)) == []
        assert len(ran(build(ours_text, tag=ours))) >= 5
        derived_steps = [r for r in client.api.df()["BuildCache"] if f"echo {mark} >/derived" in r["Description"]]
        assert len(derived_steps) == 1
    finally:
        for tag in (ours, foreign, f"{foreign}-derived"):
            with contextlib.suppress(Exception):
                client.images.remove(tag)


def test_a_dry_run_touches_nothing_and_says_so(client: DockerClient, tmp_path: Path) -> None:
    with small_image(client, FILES, instructions=MINE) as ours:
        scratch = filled(tmp_path)
        done = CliRunner().invoke(prune, ["--all", "--scratch", str(scratch)], catch_exceptions=False)
        assert ours.tags[0] in done.stdout
        assert "dry run: nothing was deleted" in done.stderr
        assert ours.id in found(client)
        assert (scratch / "wheels" / "a.whl").exists()


# --- the scratch


def filled(tmp_path: Path) -> Path:
    scratch = opened(tmp_path / "scratch").root
    for name in (
        "wheels/a.whl",
        "tmp/build-1/x",
        "cache/index.json",
        "flash-attn-0123/done",
        "records/1.json",
        "mine/x",
    ):
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_text("x" * 5000)
    return scratch


def scratch_prune(scratch: Path, *options: str) -> dict[str, Any]:
    arguments = ["--no-engine", "--scratch", str(scratch), "--json", *options]
    return json.loads(CliRunner().invoke(prune, arguments, catch_exceptions=False).stdout)


def test_the_rooms_of_a_scratch_are_emptied_and_records_and_unknown_names_stay(tmp_path: Path) -> None:
    scratch = filled(tmp_path)
    assert scratch_prune(scratch, "--apply")["freed_bytes"] == 0, "all is younger than a day"
    report = scratch_prune(scratch, "--apply", "--older-than", "0")
    gone = {item["name"] for item in report["entries"] if item["taken"]}
    assert gone == {"wheels/a.whl", "tmp/build-1", "cache/index.json", "flash-attn-0123"}
    assert report["freed_bytes"] >= 4 * 5000
    left = {str(path.relative_to(scratch)) for path in scratch.rglob("*") if path.is_file()}
    assert left == {MARKER, "records/1.json", "mine/x"}


def test_a_directory_without_the_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").touch()
    with pytest.raises(UsageError, match="nothing in it is touched"):
        scratch_root(tmp_path)
    (tmp_path / MARKER).symlink_to(__file__)
    with pytest.raises(UsageError, match="nothing in it is touched"):
        scratch_root(tmp_path)
    with pytest.raises(InputMissing):
        scratch_root(tmp_path / "none")


def test_no_symbolic_link_leads_out_of_the_scratch(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "flash-attn-x").mkdir(parents=True)
    (outside / "precious").write_text("x")
    scratch = filled(tmp_path)
    (scratch / "flash-attn-link").symlink_to(outside)
    (scratch / "tmp" / "link").symlink_to(outside)
    (scratch / "tmp" / "build-1" / "link").symlink_to(outside)
    (scratch / "cache" / "index.json").unlink()
    (scratch / "cache").rmdir()
    (scratch / "cache").symlink_to(outside)
    kept = {item.name: item.kept for item in scratch_entries(scratch) if "link" in item.name or item.name == "cache"}
    assert kept == dict.fromkeys(("flash-attn-link", "tmp/link", "cache"), "a symbolic link; none is followed")
    scratch_prune(scratch, "--apply", "--older-than", "0")
    assert not (scratch / "tmp" / "build-1").exists()
    assert (outside / "precious").read_text() == "x"
    with pytest.raises(OSError, match="cache"):
        take_scratch(scratch, "cache/precious")
    assert (outside / "precious").exists()


def test_a_scratch_that_a_build_holds_is_not_pruned(tmp_path: Path) -> None:
    scratch = filled(tmp_path)
    arguments = ["--no-engine", "--scratch", str(scratch), "--apply", "--older-than", "0"]
    with held(Scratch(root=scratch)):
        refused = CliRunner().invoke(prune, arguments)
        assert isinstance(refused.exception, EnvironmentUnfit)
    assert (scratch / "wheels" / "a.whl").exists()
