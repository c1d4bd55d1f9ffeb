"""The options of `loradock render` that describe where and how a run is to be run, and how they become a Workload."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from loradock.errors import UsageError

PLACES = ("data", "output", "cache")
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The options as they were given; texts are not checked yet."""

    name: str | None
    image: str | None
    gpu: str | None
    gpus: int | None
    nodes: int
    cpus: int | None
    memory: str | None
    shm: str | None
    storage: str | None
    data_claim: str | None
    output_claim: str | None
    cache_claim: str | None
    host_path: tuple[str, ...]
    fetch_image: str | None
    fetch_arg: tuple[str, ...]
    fetch_size: str
    env: tuple[str, ...]
    secret_env: tuple[str, ...]
    pull_secret: str | None
    namespace: str | None
    run_id: str | None
    queue: str | None
    priority_class: str | None
    node_selector: tuple[str, ...]
    toleration: tuple[str, ...]
    topology: str | None
    device: tuple[str, ...]
    failures: int
    deadline_seconds: int | None
    grace_seconds: int | None
    from_run: Path | None
    openshift: bool
    read_only_root: bool


def _text(flag: str, metavar: str, text: str, **more: Any) -> Any:
    return click.option(flag, metavar=metavar, help=text, **more)


def _many(flag: str, metavar: str, text: str) -> Any:
    return click.option(flag, metavar=metavar, multiple=True, help=text)


def _count(flag: str, metavar: str, text: str, **more: Any) -> Any:
    return click.option(flag, type=click.IntRange(min=more.pop("min", 1)), metavar=metavar, help=text, **more)


OPTIONS = (
    _text("--name", "NAME", "Of the objects; default: from the configuration's name, model and data."),
    _text("--image", "REF@sha256:...", "The image, by its digest."),
    _text("--gpu", "NAME", "Size for this card (a10, h200, ...)."),
    _count("--gpus", "N", "Cards, and processes, of each machine; default 1, for --demo 0.", min=0),
    _count("--nodes", "N", "Machines.", default=1, show_default=True),
    _count("--cpus", "N", "Processors of each machine; default by the cards."),
    _text("--memory", "64Gi", "Memory of each machine; default by the plan."),
    _text("--shm", "8Gi", "Size of /dev/shm; default by the plan."),
    _text("--storage", "50Gi", "Size of the scratch (/tmp); default by the model."),
    _text("--data-claim", "PVC", "What lies there is at /data, read-only; relative paths begin there."),
    _text("--output-claim", "PVC", "What the run writes: checkpoints, adapter, record."),
    _text("--cache-claim", "PVC", "Keeps what is downloaded and prepared between runs."),
    _many("--host-path", "data|output|cache=DIR", "A directory of the node instead of a claim."),
    _text("--fetch-image", "REF", "An init container that fills /data, as from an object store."),
    _many("--fetch-arg", "ARG", "Its arguments, one each."),
    _text("--fetch-size", "50Gi", "Room for what it fetches.", default="50Gi", show_default=True),
    _many("--env", "NAME=VALUE", "A variable of the environment."),
    _many("--secret-env", "NAME=SECRET:KEY", "A variable whose value stays in a Secret."),
    _text("--pull-secret", "SECRET", "For a registry that asks who pulls."),
    _text("--namespace", "NAME", "Namespace of all objects."),
    _text("--run-id", "ID", "What the annotations call this run."),
    _text("--queue", "NAME", "Kueue's LocalQueue; the run begins suspended."),
    _text("--priority-class", "NAME", "PriorityClass of the pods."),
    _many("--node-selector", "KEY=VALUE", "Only nodes with this label."),
    _many("--toleration", "KEY[=VALUE][:EFFECT]", "A taint that the pods bear."),
    _text("--topology", "KEY", "Several machines near one another, by this label of nodes."),
    _many("--device", "NAME=N", "Another device of each machine, as rdma/hca=1."),
    _count("--failures", "N", "How often what may pass is tried again.", min=0, default=3, show_default=True),
    _count("--deadline-seconds", "S", "End it after so long, whatever it does."),
    _count("--grace-seconds", "S", "For the last save; default from plan and --from-run."),
    click.option(
        "--from-run", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Measured times of a run."
    ),
    click.option("--openshift", is_flag=True, help="Leave uid and fsGroup to the cluster."),
    click.option("--read-only-root/--no-read-only-root", default=True, show_default=True, help="Of the container."),
)


def site_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command these options; the function receives them as one keyword, `site: Site`."""

    @functools.wraps(command)
    def with_site(**given: Any) -> Any:
        mine = {each.name: given.pop(each.name) for each in fields(Site)}
        return command(site=Site(**mine), **given)

    wrapped: Callable[..., Any] = with_site
    for option in reversed(OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def pairs(flag: str, texts: tuple[str, ...], *, example: str) -> Pairs:
    """`KEY=VALUE` texts. UsageError for one without `=`, or a key that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key in found:
            what = f"{flag} {text}: {'names ' + key + ' twice' if equals else 'has no `=`'}"
            raise UsageError(what, hint=f"{flag} {example}")
        found[key] = value
    return tuple(found.items())


def host_paths(texts: tuple[str, ...]) -> dict[str, str]:
    """{place: directory of the node}. UsageError for a place that there is not."""
    found = dict(pairs("--host-path", texts, example="data=/srv/data"))
    if unknown := sorted(found.keys() - set(PLACES)):
        raise UsageError(f"--host-path knows no {unknown[0]!r}", hint=f"one of {', '.join(PLACES)}")
    return found


def counts(texts: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Devices and how many. UsageError for a number that is none, as a half."""
    found: list[tuple[str, int]] = []
    for name, text in pairs("--device", texts, example="rdma/hca=1"):
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10_000):
            raise UsageError(f"--device {name}={text}: not a whole number of devices", hint=f"--device {name}=1")
        found.append((name, int(text)))
    return tuple(found)
