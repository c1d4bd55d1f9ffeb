"""Rules on processes and nodes that meet: how many there are, and with which numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loradock.delivery.kubernetes.check.base import (
    RUNTIMES,
    TRAINER,
    Manifest,
    Pod,
    is_gpu,
    resources,
    rules,
    runs_loradock,
)
from loradock.delivery.kubernetes.check.command_line import option, variables, words
from loradock.delivery.kubernetes.check.fields import Field, Found
from loradock.delivery.kubernetes.check.hosts import pods_of

_PROCESSES = ("--nproc", "--nproc-per-node", "--nproc_per_node")
_RANK = ("--node-rank", "--node_rank")
_OF_GROUP = ("--nnodes", *_RANK, "--rdzv")
_OWN_INDEX = re.compile(r"\$\(JOB_COMPLETION_INDEX\)|\bJOB_COMPLETION_INDEX\b")


def is_group(pod: Pod) -> bool:
    """True where the pods of a Job are one group: by an argument that says so, or a use of the pod's own index."""
    for container in pod.main:
        texts = [*words(container), *(field for _, field in variables(container))]
        if any(word.text.startswith(_OF_GROUP) for word in words(container)):
            return True
        if any(_OWN_INDEX.search(field.text) for field in texts):
            return True
    return False


def indexed(manifest: Manifest) -> Iterator[Found]:
    """Pods that need a rank, or limits for each index, are Indexed."""
    for pod in manifest.pods:
        if pod.job is None or not pod.spec:
            continue
        mode = pod.job["completionMode"]
        several = pod.job["completions"].whole or pod.job["parallelism"].whole or 1
        if several > 1 and mode.text != "Indexed" and is_group(pod):
            yield mode.found(
                "is not Indexed: the pods that meet have no rank and no host name", "completionMode: Indexed"
            )
        for name in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if pod.job[name] and mode.text != "Indexed":
                yield pod.job[name].found("does nothing without indexes", "completionMode: Indexed")


def nodes(manifest: Manifest) -> Iterator[Found]:
    """Nodes that wait for each other run at once, as many as each is given.

    Several nodes that wait for each other have to run at the same time, as many as each of them is told.
    """
    for pod in manifest.pods:
        if pod.job is not None and is_group(pod):
            completions, parallelism = pod.job["completions"].whole, pod.job["parallelism"]
            at_once = parallelism.whole if parallelism else 1
            if completions is not None and at_once is not None and 0 < at_once < completions:
                what = f"is {at_once}: {completions} nodes wait for each other, and they would never all run"
                yield parallelism.found(what, f"write parallelism: {completions}")
        counts_made = counts(manifest, pod)
        for container in pod.main:
            nodes_set = nnodes(container)
            if (
                counts_made
                and nodes_set is not None
                and nodes_set.count is not None
                and nodes_set.count not in counts_made
            ):
                where, count = next(iter(counts_made.items()))[::-1]
                remedy = f"{where}: {nodes_set.count}, or {count} here"
                yield nodes_set.found(f"says {nodes_set.count} nodes, and the {manifest.kind} has {count}", remedy)


def nnodes(container: Field) -> Field | None:
    """How many nodes a container is told that there are."""
    return option(container, "--nnodes", variable="PET_NNODES")


def counts(manifest: Manifest, pod: Pod) -> dict[int, str]:
    """How many nodes there may be meant to be, each with the field that says it; none where the file does not say.

    The first is the number that is made from this template.
    """
    runtime = manifest if manifest.kind in RUNTIMES else manifest.runtime
    nodes = manifest.spec.at("trainer.numNodes").whole
    if nodes is None and runtime is not None:
        nodes = runtime.spec.at("mlPolicy.numNodes").whole
    if nodes is not None:
        return {nodes: "numNodes"}
    if pod.job is None:
        return {}
    if not manifest.replicated_jobs:
        return {pods_of(pod.job): "completions"}
    groups = [(group.at("template.spec"), group["replicas"].whole) for group in manifest.replicated_jobs]
    sizes = [(job.path, pods_of(job) * (1 if replicas is None else replicas)) for job, replicas in groups]
    own_size = next(size for path, size in sizes if path == pod.job.path)
    return {own_size: "completions", sum(size for _, size in sizes): "completions"}


def node_rank(manifest: Manifest) -> Iterator[Found]:
    """Nodes made from one template have a rank each."""
    for pod in manifest.pods:
        for container in pod.main:
            rank = option(container, *_RANK, variable="PET_NODE_RANK")
            if rank is not None and rank.count is not None and next(iter(counts(manifest, pod)), 1) > 1:
                remedy = "write $(JOB_COMPLETION_INDEX), as the Job's controller numbers them"
                yield rank.found(f"says node {rank.count} in each of the pods", remedy)


def run_processes(manifest: Manifest, pod: Pod, container: Field) -> int | None:
    """How many processes the container's run has on all its nodes; None where the file does not say."""
    if train_alone(container):
        return 1
    number = _told_processes(container).count or _gpus(pod, container)
    nodes = nnodes(container)
    pods = next(iter(counts(manifest, pod)), None) if nodes or container is pod.trainer else 1
    machines = nodes.count if nodes and nodes.count is not None else pods
    return number * machines if number and machines else None


def _launched(manifest: Manifest) -> Iterator[tuple[Field, int, int]]:
    """Where a container's processes are counted, how many they are, and how many GPUs it has, where it has any."""
    for pod in manifest.pods:
        for container in pod.main:
            processes_set, gpus = _told_processes(container), _gpus(pod, container)
            alone = train_alone(container)
            processes = 1 if alone else processes_set.count
            if processes is not None and gpus > 0:
                yield alone or processes_set, processes, gpus


def _told_processes(container: Field) -> Field:
    return option(container, *_PROCESSES, variable="PET_NPROC_PER_NODE") or container["numProcPerNode"]


def _gpus(pod: Pod, container: Field) -> int:
    requested = resources(container) or resources(_beneath(pod, container))
    amounts = [field.amount for name, field in requested["limits"].members if is_gpu(name)]
    return sum(int(amount) for amount in amounts if amount is not None)


def train_alone(container: Field) -> Field | None:
    """The word `train`, where it is not launched: one process then."""
    line = words(container) if runs_loradock(container) else []
    first = next((word for word in line if word.text.rpartition("/")[2] in ("launch", "torchrun", "train")), None)
    return first if first is not None and first.text == "train" else None


def _beneath(pod: Pod, container: Field) -> Field:
    """The container of the runtime that a TrainJob's trainer is laid over."""
    template = pod.beneath.spec["containers"] if pod.beneath and container is pod.trainer else ()
    return next(
        (template_container for template_container in template if template_container["name"].text == TRAINER),
        Field(None),
    )


def processes(manifest: Manifest) -> Iterator[Found]:
    """A container starts no more processes than it has GPUs."""
    for launched, processes, gpus in _launched(manifest):
        if processes > gpus:
            what = f"starts {processes} processes on {gpus} GPU(s), and NCCL needs a GPU for each"
            yield launched.found(what, f"write {gpus}, or a limit of {processes} GPUs")


def idle_gpus(manifest: Manifest) -> Iterator[Found]:
    """A container starts a process for each GPU."""
    for launched, processes, gpus in _launched(manifest):
        if processes < gpus:
            what = f"starts {processes} process(es), and {gpus - processes} of {gpus} GPUs stay idle"
            yield launched.found(what, f"write {gpus}, or a limit of {processes}")


RULES = rules(indexed, nodes, node_rank, processes, idle_gpus, warnings=(idle_gpus,))
