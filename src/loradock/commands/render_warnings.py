"""What `loradock render` warns about: what Kubernetes takes, and a person may not have meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from loradock.config.places import is_remote
from loradock.config.schema import RunConfig
from loradock.data.sources import held_out_files
from loradock.delivery.kubernetes import asked, names
from loradock.delivery.kubernetes.quantities import shown
from loradock.delivery.kubernetes.sizes import Sized, Sizes
from loradock.delivery.kubernetes.workload import Workload
from loradock.model import hub_cache

HOLDING = ("data", "output", "cache")
"""Volumes that something may lie on before the pod starts; the others are empty then."""
SIZES = {"cpus": "--cpus", "memory_bytes": "--memory", "shm_bytes": "--shm", "scratch_bytes": "--storage"}
"""Sizes that a person may give, and by which option."""
RDMA = re.compile(r"rdma|/hca|infiniband|roce|/efa|hostdev|sriov|mlnx", re.IGNORECASE)


def warnings_of(workload: Workload, config: RunConfig, *, is_demo: bool) -> list[str]:
    """A line each, for the image, the volumes, the network and the paths of the configuration."""
    warnings = [*_of_objects(workload), *_of_sizes(workload.sizes), *_of_network(workload)]
    if is_demo:
        return warnings
    output = asked.output(config.output or workload.name, name=workload.name)
    if config.output not in (None, output):
        warnings.append(f"the run writes to {output}, on the output's volume, and not to {config.output}")
    if workload.egress == () and (hub_cache.is_hub_id(config.model.name) or workload.fetch):
        warnings.append("the network policy lets nothing be fetched: --allow-egress CIDR")
    places = {volume.name for volume in workload.volumes} & set(HOLDING)
    for path in _inputs(config):
        warnings += _of_path(path, places=places)
    return warnings


def _of_objects(workload: Workload) -> Iterator[str]:
    if not names.is_by_digest(workload.image):
        hint = "docker inspect --format '{{index .RepoDigests 0}}' " + workload.image
        yield f"{workload.image} is a tag, and a tag can move: --image REF@sha256:... (after a push, {hint})"
    if workload.sizes.output_bytes.value:
        yield "the output is lost when the pod is deleted: --output-claim PVC keeps it"
    if any(volume.host_path for volume in workload.volumes):
        yield "Pod Security `baseline` and `restricted` refuse hostPath volumes"


def _of_sizes(sizes: Sizes) -> Iterator[str]:
    """Those that a person gave, and that are less than what is expected to be needed."""
    for name, flag in SIZES.items():
        sized: Sized = getattr(sizes, name)
        needed = sized.instead_of
        if needed and sized.value < needed.value:
            show = shown if name.endswith("_bytes") else str
            yield f"{flag} {show(sized.value)} is less than the expected need, {show(needed.value)}: {needed.why}"


def _of_network(workload: Workload) -> Iterator[str]:
    for name, _ in workload.devices:
        if RDMA.search(name):
            yield (
                f"NCCL pins memory for {name}: containers of the nodes need an unlimited memlock (`ulimit -l`); "
                "the capability IPC_LOCK is refused by Pod Security, and would not help a user that is not root"
            )


def _inputs(config: RunConfig) -> Iterator[str]:
    """The paths that the configuration names."""
    if not hub_cache.is_hub_id(config.model.name):
        yield config.model.name
    sources = (*config.data.sources, *held_out_files(config.data))
    yield from (source.path for source in sources if not (source.path.startswith("hub:") or is_remote(source.path)))
    if config.data.template.endswith(".jinja"):
        yield config.data.template
    if config.lora.adapter:
        yield config.lora.adapter
    if config.train.deepspeed:
        yield config.train.deepspeed


def _of_path(path: str, *, places: set[str]) -> Iterator[str]:
    """A path that is none of the pod's."""
    if not path.startswith("/"):
        if "data" not in places:
            yield f"{path} is on no volume: --data-claim PVC"
    elif not any(path.startswith(f"/{place}/") for place in places):
        note = ", but one of this machine" if Path(path).exists() else ""
        remedy = f"put it on the data volume (--data-claim PVC), and name it from there, as {Path(path).name}"
        yield f"{path} is not a path in the pod{note}: {remedy}"
