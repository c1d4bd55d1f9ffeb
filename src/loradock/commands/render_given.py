"""The texts of `loradock render`'s options, read: everything that cannot be is reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from loradock.commands.render_options import Site
from loradock.delivery.kubernetes import asked, quantities
from loradock.delivery.kubernetes.workload import CARDS, Placement, SecretVariable
from loradock.errors import Problem, UsageError
from loradock.facts import Gpu
from loradock.plan import gpu_table

T = TypeVar("T")
Pairs = tuple[tuple[str, str], ...]
Counts = tuple[tuple[str, int], ...]
PLACES = ("data", "output", "cache")
GPU = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-(?P<part>(\d+c\.)?\d+g\.(?P<gigabytes>\d+)gb(\.[a-z.]+)?))")
"""Resources that NVIDIA's device plugin gives a whole GPU, a GPU in turns or a part of one (MIG) as."""
PART_SHARE = 0.88
"""GiB a gigabyte in a part's name: assumed. An eighth of an H200 (141 GB) is 1g.18gb, 16.4 GiB before reserves."""
UNKNOWN_GPU = Gpu(name="not named", memory_bytes=0, capability=(8, 0))


@dataclass(frozen=True, kw_only=True)
class Given:
    """What was asked for. `gpus` is None where nobody said; `gpu_resource` is what they are asked for as."""

    gpus: int | None
    gpu: Gpu | None
    gpu_resource: str
    devices: Counts
    sizes: dict[str, int | None]
    fetched_bytes: int | None
    host_paths: dict[str, str]
    environment: Pairs
    secrets: tuple[SecretVariable, ...]
    labels: Pairs
    annotations: Pairs
    placement: Placement


class Reading:
    """Reads texts, and keeps what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def each(self, read: Callable[[str], T], texts: Iterable[str]) -> tuple[T, ...]:
        """Those that could be read."""
        values: list[T] = []
        for text in texts:
            try:
                values.append(read(text))
            except UsageError as error:
                self.problems.append(Problem(what=error.what, hint=error.hint))
        return tuple(values)

    def one(self, read: Callable[[str], T], text: str | None) -> T | None:
        """What could be read, where something was given."""
        return next(iter(self.each(read, () if text is None else (text,))), None)

    def pairs(self, flag: str, texts: tuple[str, ...], *, example: str) -> Pairs:
        """`KEY=VALUE` texts, each key once."""
        pairs_read = self.each(partial(pair, flag, example=example), texts)
        keys = [key for key, _ in pairs_read]
        for key in sorted({key for key in keys if keys.count(key) > 1}):
            self.problems.append(Problem(what=f"{flag} names {key} twice", hint=f"{flag} {example}, each once"))
        return tuple(dict(pairs_read).items())


def read(site: Site) -> tuple[Given, list[Problem]]:
    """Everything that the options say, and what is wrong with them."""
    reading = Reading()
    pairs = partial(reading.pairs, example="KEY=VALUE")
    counts = reading.each(count, (f"{name}={number}" for name, number in pairs("--device", site.device)))
    gpus, resource, wrong = gpu_count(counts, gpus=site.gpus)
    reading.problems += wrong
    gpu = reading.one(lambda name: gpu_table.named(name).as_gpu(), site.gpu)
    directories = host_paths(reading, site.host_path)
    environment, secrets = pairs("--env", site.env), reading.each(asked.secret_variable, site.secret_env)
    reading.problems += [*_contradictions(site, directories), *_given_twice(environment, secrets)]
    site_values = Given(
        gpus=gpus,
        gpu=part_of(gpu, resource) if gpu else None,
        gpu_resource=resource,
        devices=tuple(entry for entry in counts if not GPU.fullmatch(entry[0])),
        sizes={
            "memory_bytes": reading.one(partial(quantity, "--memory"), site.memory),
            "shm_bytes": reading.one(partial(quantity, "--shm"), site.shm),
            "scratch_bytes": reading.one(partial(quantity, "--storage"), site.storage),
            "grace_seconds": site.grace_seconds,
            "cpus": site.cpus,
        },
        fetched_bytes=reading.one(partial(quantity, "--fetch-size"), site.fetch_size if site.fetch_image else None),
        host_paths=directories,
        environment=environment,
        secrets=secrets,
        labels=pairs("--label", site.label),
        annotations=pairs("--annotation", site.annotation),
        placement=Placement(
            queue=site.queue,
            priority_class=site.priority_class,
            node_selector=pairs("--node-selector", site.node_selector),
            tolerations=reading.each(asked.toleration, site.toleration),
            topology_key=site.topology,
            scheduler=site.scheduler_name,
            runtime_class=site.runtime_class,
        ),
    )
    return site_values, reading.problems


def pair(flag: str, text: str, *, example: str) -> tuple[str, str]:
    """`KEY=VALUE`. UsageError without `=`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{flag} {text}: has no `=`", hint=f"{flag} {example}")
    return key, value


def quantity(flag: str, text: str) -> int:
    """Bytes. UsageError for what is not a quantity of them, and for less than 1Mi, as without a unit."""
    try:
        size = quantities.read(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.what}", hint=f"{flag} {error.hint}") from error
    if size < quantities.MIB:
        hint = f"{flag} {text}Gi?" if text.isdecimal() else f"{flag} 64Gi, 500Mi or 2Ti"
        raise UsageError(f"{flag} {text}: is {size} byte(s), below 1Mi", hint=hint)
    return size


def count(text: str) -> tuple[str, int]:
    """A device and how many. UsageError for a number that is none, as a half."""
    name, _, number = text.partition("=")
    if not (number.isascii() and number.isdecimal() and 0 < int(number) < 10_000):
        raise UsageError(f"--device {text}: not a whole number of devices", hint=f"--device {name}=1")
    return name, int(number)


def host_paths(reading: Reading, texts: tuple[str, ...]) -> dict[str, str]:
    """{place: directory of the node}."""
    paths = dict(reading.pairs("--host-path", texts, example="data=/srv/data"))
    for name in sorted(paths.keys() - set(PLACES)):
        what = f"--host-path: unknown volume {name!r}"
        reading.problems.append(Problem(what=what, hint=f"one of {', '.join(PLACES)}"))
    return paths


def _contradictions(site: Site, directories: dict[str, str]) -> Iterator[Problem]:
    """What comes from several places, and what means nothing alone."""
    for name in PLACES:
        is_fetched = name == "data" and site.fetch_image is not None
        if (getattr(site, f"{name}_claim") is not None) + (name in directories) + is_fetched > 1:
            hint = f"one of --{name}-claim, --host-path {name}=" + (" and --fetch-image" if name == "data" else "")
            yield Problem(what=f"/{name} comes from several places", hint=hint)
    if site.allow_egress and not site.network_policy:
        yield Problem(
            what="--allow-egress has no effect: the pods may reach everything",
            hint="add --network-policy to block the rest",
        )
    if site.gpu and site.gpus == 0:
        what = f"--gpu {site.gpu} and --gpus 0 cannot be used together"
        yield Problem(what=what, hint="--gpus 1 or more, or leave out --gpu for a run on CPUs")
    if site.fetch_arg and not site.fetch_image:
        yield Problem(what="--fetch-arg is for the image that fetches", hint="--fetch-image REF")
    if site.topology and site.nodes == 1:
        yield Problem(what="--topology places several nodes close together, and there is one", hint="--nodes N")


def _given_twice(environment: Pairs, secrets: tuple[SecretVariable, ...]) -> Iterator[Problem]:
    """Variables that a Secret gives, and something else, too."""
    names = [secret.name for secret in secrets]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(what=f"--secret-env names {name} twice", hint="leave out one of them")
    for name in sorted(set(names) & dict(environment).keys()):
        yield Problem(what=f"{name} is given by --env and by --secret-env", hint="leave out one of them")


def gpu_count(counts: Counts, *, gpus: int | None) -> tuple[int | None, str, list[Problem]]:
    """How many GPUs of which resource, where `--device` names them or `--gpus` says; what contradicts itself."""
    gpu_counts = [entry for entry in counts if GPU.fullmatch(entry[0])]
    if not gpu_counts:
        return gpus, CARDS, []
    resource, number = gpu_counts[0]
    return number, resource, list(_unfit_gpus(gpu_counts, gpus=gpus))


def _unfit_gpus(named: list[tuple[str, int]], *, gpus: int | None) -> Iterator[Problem]:
    resource, number = named[0]
    device_option = f"--device {resource}={number}"
    for amount, _ in named[1:]:
        yield Problem(what=f"{device_option} and --device {amount}: a run has GPUs of one model", hint="one of them")
    if gpus not in (None, number):
        what = f"{device_option} and --gpus {gpus} cannot be used together"
        yield Problem(what=what, hint=f"{device_option} alone, or --device {resource}={gpus}")
    if number > 1 and "/mig-" in resource:
        what = f"{device_option}: a process sees one MIG instance, and NCCL cannot connect instances of one node"
        yield Problem(what=what, hint=f"--device {resource}=1, or whole GPUs: --gpus {number}")


def part_of(gpu: Gpu, resource: str) -> Gpu:
    """The GPU, or the part of it that the resource is."""
    match = GPU.fullmatch(resource)
    if not match or not match["part"]:
        return gpu
    memory_bytes = min(gpu.memory_bytes, int(PART_SHARE * int(match["gigabytes"]) * quantities.GIB))
    return replace(gpu, name=f"{gpu.name} MIG {match['part']}", memory_bytes=memory_bytes)
