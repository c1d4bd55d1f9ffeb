"""Rules on Jobs: restarts, counts, queues."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.kubernetes.check.base import Manifest, rules, runs_loradock
from loradock.kubernetes.check.fields import Found
from loradock.kubernetes.names import QUEUE_LABEL


def failure_policy_restart(manifest: Manifest) -> Iterator[Found]:
    """With a podFailurePolicy the pods' restartPolicy is Never."""
    for pod in manifest.pods:
        policy = pod.spec["restartPolicy"]
        if pod.job is not None and pod.job["podFailurePolicy"] and policy.text == "OnFailure":
            what = "is OnFailure: the container starts again in its pod, and podFailurePolicy never sees its exit code"
            yield policy.found(what, "write restartPolicy: Never")


def restart_exit_code(manifest: Manifest) -> Iterator[Found]:
    """What runs loradock has restartPolicy Never: what happens next depends on its exit code.

    Restarts within the pod, which no podFailurePolicy forbids; a Job's Always is another rule's.
    """
    for pod in manifest.pods:
        policy = pod.spec["restartPolicy"]
        is_restarted = policy.text == "OnFailure" or (manifest.kind == "Pod" and policy.value in (None, "Always"))
        has_policy = pod.job is not None and pod.job["podFailurePolicy"]
        if is_restarted and not has_policy and any(runs_loradock(container) for container in pod.main):
            what = f"is {policy.text or 'missing, which means Always'}: the container starts again in its pod whatever"
            yield policy.found(
                f"{what} its exit code, and what cannot pass (65, 78) is tried for ever", "write restartPolicy: Never"
            )


def completions(manifest: Manifest) -> Iterator[Found]:
    """A Job runs no more pods at once than it wants in all."""
    for job in manifest.jobs:
        wanted, at_once = job["completions"].whole, job["parallelism"].whole
        if wanted is not None and at_once is not None and at_once > wanted >= 0:
            what = f"is {at_once}, and only {wanted} pods are wanted in all"
            yield job["parallelism"].found(what, f"write parallelism: {wanted}")


def queue(manifest: Manifest) -> Iterator[Found]:
    """What is suspended names a queue, and what names a queue is suspended."""
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


RULES = rules(failure_policy_restart, restart_exit_code, completions, queue)
