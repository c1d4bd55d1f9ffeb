"""The host names that the objects beside a manifest give to pods, and the Services behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loradock.delivery.kubernetes.check.base import TRAINER, Manifest
from loradock.delivery.kubernetes.check.fields import Field

_IN_CLUSTER = re.compile(r"\.[a-z0-9-]+\.svc(?:\.[a-z0-9.-]+)?")
_ANY = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Names of the form `STEM-0-0.DOMAIN`, with a number below each of `counts`; a Service has no numbers."""

    stem: str
    counts: tuple[int, ...] = ()
    domain: str = ""

    @property
    def first(self) -> str:
        """The name of the first pod."""
        return ".".join(filter(None, ("-".join((self.stem, *("0" for _ in self.counts))), self.domain)))

    def numbers(self, host: str) -> tuple[int, ...] | None:
        """The numbers in a name that is one of these, else None."""
        name, _, domain = host.partition(".")
        form = re.escape(self.stem) + "-([0-9]{1,9})" * len(self.counts)
        match = re.fullmatch(form, name) if domain == self.domain else None
        numbers = tuple(map(int, match.groups())) if match else None
        return numbers if numbers is not None and all(map(int.__lt__, numbers, self.counts)) else None


def without_cluster(host: str) -> str:
    """The name without `.NAMESPACE.svc.cluster.local`."""
    return host[: match.start()] if (match := _IN_CLUSTER.search(host)) else host


def known(manifest: Manifest) -> Iterator[Hosts]:
    """Every name that an object beside the manifest makes, its own first."""
    yield from _made(manifest)
    for manifest_beside in manifest.beside:
        if manifest_beside is not manifest:
            yield from _made(manifest_beside)


def _made(manifest: Manifest) -> Iterator[Hosts]:
    spec, name = manifest.spec, manifest.name
    if manifest.kind == "Service":
        yield Hosts(stem=name)
    elif manifest.kind == "Pod" and spec["hostname"].text:
        yield Hosts(stem=spec["hostname"].text, domain=spec["subdomain"].text)
    elif manifest.kind == "Job" and (domain := spec.at("template.spec.subdomain").text):
        yield Hosts(stem=name, counts=(pods_of(spec),), domain=domain)
    elif manifest.kind == "StatefulSet":
        yield Hosts(stem=name, counts=(_or_one(spec["replicas"]),), domain=spec["serviceName"].text)
    elif manifest.kind == "JobSet":
        domain = spec.at("network.subdomain").text or name
        for group in manifest.replicated_jobs:
            counts = (_or_one(group["replicas"]), pods_of(group.at("template.spec")))
            yield Hosts(stem=f"{name}-{group['name'].text}", counts=counts, domain=domain)
    elif manifest.kind == "TrainJob":
        yield from _of_train_job(manifest)


def _of_train_job(manifest: Manifest) -> Iterator[Hosts]:
    """Trainer makes a JobSet of the same name from the runtime, with as many nodes as the trainer says."""
    runtime = manifest.runtime
    nodes = manifest.spec.at("trainer.numNodes").whole
    for group in runtime.replicated_jobs if runtime else ():
        count = nodes if group["name"].text == TRAINER else None
        counts = (_or_one(group["replicas"]), count or pods_of(group.at("template.spec")))
        domain = runtime.spec.at("template.spec.network.subdomain").text if runtime else ""
        yield Hosts(stem=f"{manifest.name}-{group['name'].text}", counts=counts, domain=domain or manifest.name)
    if runtime is None:
        yield Hosts(stem=f"{manifest.name}-{TRAINER}", counts=(_ANY, _ANY), domain=manifest.name)


def pods_of(job: Field) -> int:
    """How many pods a Job makes: its indexes, or what runs at once."""
    return _or_one(job["completions"]) if job["completions"] else _or_one(job["parallelism"])


def _or_one(field: Field) -> int:
    return 1 if field.whole is None else field.whole
