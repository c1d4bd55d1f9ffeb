"""Rules on Jobs: restarts, counts, indexes, the meeting of several nodes, queues, schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loradock.manifests.check.base import Manifest, Pod, Rule, words
from loradock.manifests.check.fields import Field, Found

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_CRON_FIELD = r"(?:[\d*/,\-?LW#]|[A-Za-z]{3})+"
_CRON = re.compile(rf"@(?:yearly|annually|monthly|weekly|daily|midnight|hourly)|{_CRON_FIELD}(?:\s+{_CRON_FIELD}){{4}}")
_OWN_INDEX = re.compile(r"\$\(JOB_COMPLETION_INDEX\)|\bJOB_COMPLETION_INDEX\b")


def _restart(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        policy = pod.spec["restartPolicy"]
        if pod.job is not None and pod.spec and policy.value in (None, "Always"):
            what = "is Always" if policy else "is missing, which means Always"
            yield policy.found(f"{what}: a Job does not take it", "write restartPolicy: Never")


def _failure_policy_restart(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        policy = pod.spec["restartPolicy"]
        if pod.job is not None and pod.job["podFailurePolicy"] and policy.text == "OnFailure":
            what = "is OnFailure: the container starts again in its pod, and podFailurePolicy never sees its exit code"
            yield policy.found(what, "write restartPolicy: Never")


def _backoff(manifest: Manifest) -> Iterator[Found]:
    for job in manifest.jobs:
        limit = job["backoffLimit"]
        if limit.whole is not None and limit.whole < 0:
            yield limit.found(f"is {limit.whole}, less than nothing", "0 for no second try, 6 by default")


def _counts(manifest: Manifest) -> Iterator[Found]:
    for job in manifest.jobs:
        completions, parallelism = job["completions"].whole, job["parallelism"].whole
        is_indexed = job["completionMode"].text == "Indexed"
        if is_indexed and completions is None and not job["completions"]:
            yield job["completions"].found("is missing: an Indexed Job has that many indexes", "write completions: 2")
        elif completions is not None and parallelism is not None and parallelism > completions >= 0:
            what = f"is {parallelism}, and only {completions} pods are wanted in all"
            yield job["parallelism"].found(what, f"write parallelism: {completions}")


def _meeting(pod: Pod) -> Field | None:
    """What makes the pods of a Job one group: an argument that says so, or a use of the pod's own index."""
    for container in pod.main:
        for word in words(container):
            if word.text.startswith(("--nnodes", "--rdzv", "--node-rank", "--node_rank")):
                return word
        for field in (*words(container), *(variable["value"] for variable in container["env"])):
            if _OWN_INDEX.search(field.text):
                return field
    return None


def _indexed(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        if pod.job is None or not pod.spec:
            continue
        mode = pod.job["completionMode"]
        needed_by = _meeting(pod)
        several = pod.job["completions"].whole or pod.job["parallelism"].whole or 1
        if needed_by is not None and several > 1 and mode.text != "Indexed":
            yield mode.found(
                "is not Indexed: the pods that meet have no rank and no host name", "completionMode: Indexed"
            )
        for name in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if pod.job[name] and mode.text != "Indexed":
                yield pod.job[name].found("does nothing without indexes", "completionMode: Indexed")


def _nodes(manifest: Manifest) -> Iterator[Found]:
    """Several nodes that wait for each other have to run at the same time, as many as each of them is told."""
    for pod in manifest.pods:
        if pod.job is None or _meeting(pod) is None:
            continue
        completions = pod.job["completions"].whole
        parallelism = 1 if not pod.job["parallelism"] else pod.job["parallelism"].whole
        if completions is not None and parallelism is not None and 0 < parallelism < completions:
            what = f"is {parallelism}: {completions} nodes wait for each other, and they would never all run"
            yield pod.job["parallelism"].found(what, f"write parallelism: {completions}")
        for field, told in _told(pod):
            if completions is not None and told != completions:
                yield field.found(
                    f"says {told} nodes, and the Job has {completions}", f"completions: {told}, or {completions} here"
                )


def _told(pod: Pod) -> Iterator[tuple[Field, int]]:
    for container in pod.main:
        line = words(container)
        for word, after in zip(line, [*line[1:], Field(None)], strict=False):
            name, equals, value = word.text.partition("=")
            field = word if equals else after
            given = value if equals else after.text or str(after.whole)
            if name == "--nnodes" and given.isdecimal():
                yield field, int(given)


def _queue(manifest: Manifest) -> Iterator[Found]:
    if manifest.kind not in ("Job", "JobSet", "TrainJob"):
        return
    label = manifest.root.at("metadata.labels")[QUEUE_LABEL]
    suspend = manifest.spec["suspend"]
    if suspend.value is True and not label:
        yield suspend.found(
            "is true, and no queue is named: nobody would start it", f"add the label {QUEUE_LABEL}: NAME"
        )
    elif label and suspend.value is not True:
        yield label.found(
            "names a queue, and the object would start before it is admitted", "add suspend: true to its spec"
        )


def _schedule(manifest: Manifest) -> Iterator[Found]:
    schedule = manifest.spec["schedule"]
    if manifest.kind == "CronJob" and schedule.text and not _CRON.fullmatch(schedule.text.strip()):
        remedy = "five fields, minute to day of the week: 0 2 * * *; a time zone goes into timeZone"
        yield schedule.found(f"is {schedule.text!r}, which is no schedule", remedy)


RULES = (
    Rule(name="restart-policy", says="A Job's pods do not restart for ever.", look=_restart),
    Rule(
        name="failure-policy-restart",
        says="With a podFailurePolicy the pods' restartPolicy is Never.",
        look=_failure_policy_restart,
    ),
    Rule(name="backoff-limit", says="backoffLimit is not negative.", look=_backoff),
    Rule(
        name="completions", says="An Indexed Job counts its indexes, and runs no more pods than it wants.", look=_counts
    ),
    Rule(name="indexed", says="Pods that need a rank, or limits for each index, are Indexed.", look=_indexed),
    Rule(name="nodes", says="Nodes that wait for each other run at once, as many as each is told.", look=_nodes),
    Rule(name="queue", says="What is suspended names a queue, and what names a queue is suspended.", look=_queue),
    Rule(name="schedule", says="A CronJob's schedule has five fields.", look=_schedule),
)
