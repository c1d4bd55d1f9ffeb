"""Rules on Jobs: restarts, counts, queues, schedules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loradock.kubernetes.check.base import Manifest, Rule, runs_loradock
from loradock.kubernetes.check.fields import Found
from loradock.kubernetes.names import QUEUE_LABEL

_CRON_FIELD = r"(?:[\d*/,\-?LW#]|[A-Za-z]{3})+"
_CRON = re.compile(rf"@(?:yearly|annually|monthly|weekly|daily|midnight|hourly)|{_CRON_FIELD}(?:\s+{_CRON_FIELD}){{4}}")


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


def _exit_codes(manifest: Manifest) -> Iterator[Found]:
    """Restarts within the pod, which no podFailurePolicy forbids; a Job's Always is another rule's."""
    for pod in manifest.pods:
        policy = pod.spec["restartPolicy"]
        is_restarted = policy.text == "OnFailure" or (manifest.kind == "Pod" and policy.value in (None, "Always"))
        has_policy = pod.job is not None and pod.job["podFailurePolicy"]
        if is_restarted and not has_policy and any(runs_loradock(container) for container in pod.main):
            what = f"is {policy.text or 'missing, which means Always'}: the container starts again in its pod whatever"
            yield policy.found(
                f"{what} its exit code, and what cannot pass (65, 78) is tried for ever", "write restartPolicy: Never"
            )


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
    Rule(
        name="restart-exit-code",
        says="What runs loradock has restartPolicy Never: what follows hangs on its exit code.",
        look=_exit_codes,
    ),
    Rule(name="backoff-limit", says="backoffLimit is not negative.", look=_backoff),
    Rule(
        name="completions", says="An Indexed Job counts its indexes, and runs no more pods than it wants.", look=_counts
    ),
    Rule(name="queue", says="What is suspended names a queue, and what names a queue is suspended.", look=_queue),
    Rule(name="schedule", says="A CronJob's schedule has five fields.", look=_schedule),
)
