"""Runs that are stopped, killed, starved of memory or of disk in real containers: the same command again goes on.

Every run here is the same one, so whatever hit it on its way, it has to end with the bytes of `whole`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from image.containers import Ended, inside, start, wait_for
from proven import unchecked
from tiny import make_llama, write_rows

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

# The first of them builds the image.
pytestmark = pytest.mark.timeout(1800)

SETTINGS = {
    "train.max_steps": 150,
    "train.global_batch": 8,
    "train.micro_batch": 4,
    "train.packing": "true",
    "lora.dropout": 0.1,
    "checkpoints.every": 30,
}
TOO_LITTLE_BYTES = 200 << 20
ENOUGH_BYTES = 2 << 30
VOLUME_BYTES = 24 << 20
BALLAST = f"""
until grep -q '"checkpoint-' /out/run/status.json 2>/dev/null; do sleep 0.05; done
head -c {2 * ENOUGH_BYTES} /dev/zero >/tmp/ballast
"""  # it waits inside: a run is over in less time than the engine takes to begin a command
FILL = """
free=$(df -k --output=avail /out | tail -n 1)
test "$free" -le {left_kib} || head -c "$((free - {left_kib}))K" /dev/zero >>/out/filler || true
"""  # the run writes, too: it may have taken what was free when this looked
MAIN = "read -r main _ </proc/1/task/1/children"


def command(**changed: object) -> list[str]:
    """The command of the run; `changed` are settings with `__` for the dot."""
    settings = {**SETTINGS, **{name.replace("__", "."): value for name, value in changed.items()}}
    texts = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    return [
        *("train", "--model", "/in/base", "--data", "/in/rows.jsonl", "--output", "/out/run"),
        unchecked("faults while it trains; tests/image/test_container.py checks in the image"),
        *texts,
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and some rows, readable by any uid."""
    folder = tmp_path_factory.mktemp("in")
    make_llama(folder / "base")
    write_rows(folder / "rows.jsonl", rows=400)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


class Place:
    """Where a run's containers are started: the image, the inputs, and one volume at /out."""

    def __init__(self, engine: DockerClient, image: str, *, inputs: Path, out: str, started: list[Container]) -> None:
        self.engine = engine
        self.image = image
        self.started = started
        self.volumes = {str(inputs): {"bind": "/in", "mode": "ro"}, out: {"bind": "/out", "mode": "rw"}}
        self.run = Path(out) / "run"

    def start(self, *args: str, volumes: dict[str, dict[str, str]] | None = None, **options: Any) -> Container:
        """Start a container here with more volumes or options."""
        one_thread = {"OMP_NUM_THREADS": "1", **options.pop("environment", {})}
        mounts = {**self.volumes, **(volumes or {})}
        return start(self.engine, self.image, self.started, *args, volumes=mounts, environment=one_thread, **options)

    def committed(self) -> int:
        """The step of the newest checkpoint, as status.json says it; 0 where there is none."""
        status = self.run / "status.json"
        last = json.loads(status.read_text(encoding="utf-8"))["last_checkpoint"] if status.exists() else None
        return int(last.removeprefix("checkpoint-")) if last else 0

    def newest(self) -> int:
        """The step of the newest checkpoint that lies there; status.json may not say so yet when a run is killed."""
        return max(int(each.name.removeprefix("checkpoint-")) for each in self.run.glob("checkpoints/checkpoint-*"))

    def adapter(self) -> bytes:
        """The weights that the run ended with."""
        return (self.run / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.fixture
def place(engine: DockerClient, image: str, started: list[Container], inputs: Path, tmp_path: Path) -> Place:
    """A directory of the host at /out, which any uid may write."""
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    return Place(engine, image, inputs=inputs, out=str(out), started=started)


@pytest.fixture(scope="module")
def whole(engine: DockerClient, image: str, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights that the run ends with when nothing happens to it."""
    started: list[Container] = []
    out = tmp_path_factory.mktemp("whole")
    out.chmod(0o777)
    place = Place(engine, image, inputs=inputs, out=str(out), started=started)
    try:
        ended = Ended(place.start(*command()))
        assert ended.code == 0, ended.text
    finally:
        for container in started:
            container.remove(force=True)
    return place.adapter()


def goes_on(place: Place, args: list[str], *, at: int, whole: bytes) -> None:
    """The same command in a new container continues from step `at`, and ends with the bytes of the whole run."""
    ended = Ended(place.start(*args))
    assert ended.code == 0, ended.text
    assert f"continuing from checkpoint-{at}\n" in ended.text
    assert place.adapter() == whole


@pytest.mark.thin(3)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_docker_stop_commits_a_checkpoint_and_the_same_command_goes_on(
    place: Place, whole: bytes, tmp_path: Path, workers: int
) -> None:
    """tini passes the signal to the whole process group; data workers must not take the run down with them."""
    log = tmp_path / "termination-log"
    log.touch()
    log.chmod(0o666)
    args = command(train__workers=workers)
    container = place.start(*args, volumes={str(log): {"bind": "/dev/termination-log", "mode": "rw"}})
    wait_for(container, place.committed)
    before = place.committed()
    time.sleep(0.5)  # some steps more, which only the signal commits
    asked = time.monotonic()
    container.stop(timeout=30)
    ended = Ended(container)
    assert time.monotonic() - asked < 30
    assert ended.code == 75, ended.text
    assert "Traceback" not in ended.text
    assert "RuntimeError" not in ended.text
    step = place.committed()
    assert before < step < SETTINGS["train.max_steps"]
    reason = json.loads(log.read_text(encoding="utf-8"))
    assert (reason["exit_code"], reason["last_checkpoint"]) == (75, f"checkpoint-{step}")
    assert reason["directory"] == "/out/run"
    goes_on(place, args, at=step, whole=whole)


def test_docker_stop_before_the_first_step_ends_with_76(place: Place) -> None:
    container = place.start(*command())
    wait_for(container, lambda: b"environment: not checked" in container.logs())
    container.stop(timeout=30)
    ended = Ended(container)
    assert ended.code == 76, ended.text
    assert not list(place.run.glob("checkpoints/*"))


@pytest.mark.full
def test_docker_kill_loses_at_most_one_interval_and_not_a_bit(place: Place, whole: bytes) -> None:
    container = place.start(*command())
    wait_for(container, lambda: place.committed() >= 2 * SETTINGS["checkpoints.every"])
    time.sleep(0.5)
    said = place.committed()
    container.kill("SIGKILL")
    assert Ended(container).code == 137
    assert place.newest() >= said
    goes_on(place, command(), at=place.newest(), whole=whole)


@pytest.mark.thin(3)
def test_out_of_memory_ends_with_137_and_more_memory_goes_on(place: Place, whole: bytes) -> None:
    """First the limit is too small to begin with; then a volume in memory (/tmp) grows beside the run."""
    container = place.start(*command(), mem_limit=TOO_LITTLE_BYTES, memswap_limit=TOO_LITTLE_BYTES)
    assert Ended(container).code == 137, container.logs().decode()
    container = place.start(*command(), mem_limit=ENOUGH_BYTES, memswap_limit=ENOUGH_BYTES)
    container.exec_run(["sh", "-c", BALLAST], detach=True)
    ended = Ended(container)
    assert ended.code == 137, ended.text
    container.reload()
    assert container.attrs["State"]["OOMKilled"]
    goes_on(place, command(), at=place.newest(), whole=whole)


@pytest.fixture
def small(
    engine: DockerClient, image: str, started: list[Container], inputs: Path
) -> Iterator[tuple[Place, Container]]:
    """A place whose volume holds VOLUME_BYTES, and a container that keeps it mounted and looks into it."""
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={VOLUME_BYTES},mode=0777"}
    volume = engine.volumes.create(driver="local", driver_opts=options)
    place = Place(engine, image, inputs=inputs, out=str(volume.name), started=started)
    keeper = place.start("sh", "-c", "exec sleep 3600")
    yield place, keeper
    for container in started:
        container.remove(force=True)
    started.clear()
    volume.remove()


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "left_kib", [pytest.param(512, marks=pytest.mark.full), 0]
)  # less than a checkpoint, and too little to say how it ended
def test_a_full_volume_ends_with_73_and_freeing_it_goes_on(
    small: tuple[Place, Container], whole: bytes, left_kib: int
) -> None:
    place, keeper = small
    container = place.start(*command())
    wait_for(container, lambda: b"step 60  checkpoint saved" in container.logs())
    while container.status != "exited":  # once more: a checkpoint that is still committed lets go of an older one
        inside(keeper, "sh", "-c", FILL.format(left_kib=left_kib))
        container.reload()
    ended = Ended(container)
    assert ended.code == 73, ended.text
    listing = json.loads(inside(keeper, "loradock", "checkpoint", "verify", "--json", "/out/run"))
    inside(keeper, "rm", "/out/filler")
    again = Ended(place.start(*command()))
    assert again.code == 0, again.text
    assert f"continuing from checkpoint-{listing['checkpoints'][0]['step']}\n" in again.text
    assert inside(keeper, "cat", "/out/run/adapter/adapter_model.safetensors") == whole


def test_a_second_container_on_the_same_volume_is_refused(place: Place) -> None:
    endless = command(train__max_steps=100_000)
    first = place.start(*endless)
    wait_for(first, (place.run / "run.json").exists)
    second = Ended(place.start(*endless))
    assert second.code == 84, second.text
    assert first.short_id in second.text  # a container's id is its host name
    first.reload()
    assert first.status == "running"
    first.kill()


@pytest.mark.full
def test_the_engine_sees_a_run_that_stands_still(place: Place) -> None:
    check = {"test": ["CMD", "/opt/loradock/bin/healthcheck"], "interval": 10**9, "timeout": 10**10, "retries": 1}
    limit = {"LORADOCK_HEARTBEAT_LIMIT": "4"}
    container = place.start(*command(train__max_steps=100_000), environment=limit, healthcheck=check)

    def health() -> str:
        container.reload()
        return container.attrs["State"]["Health"]["Status"]

    wait_for(container, place.committed)
    assert health() == "healthy"
    time.sleep(5)
    assert health() == "healthy"
    inside(container, "sh", "-c", f'{MAIN}; kill -s STOP "$main"')
    wait_for(container, lambda: health() == "unhealthy", seconds=120)
    assert "the last heartbeat is" in container.attrs["State"]["Health"]["Log"][-1]["Output"]
    inside(container, "sh", "-c", f'{MAIN}; kill -s CONT "$main"')
    wait_for(container, lambda: health() == "healthy", seconds=120)
    container.stop(timeout=30)
    assert Ended(container).code == 75
