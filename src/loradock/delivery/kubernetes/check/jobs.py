"""Rules on Jobs: restarts, counts, queues, and the podFailurePolicy by the exit codes of `loradock.errors`."""

from __future__ import annotations

from collections.abc import Iterator

from loradock.delivery.kubernetes.check.base import Manifest, is_training, rules, runs_loradock
from loradock.delivery.kubernetes.check.fields import Field, Found
from loradock.delivery.kubernetes.names import QUEUE_LABEL
from loradock.errors import (
    ConfigError,
    DataError,
    GpuSuspect,
    HubError,
    Hung,
    InputMissing,
    Interrupted,
    LoradockError,
    NoCheckpoint,
    NotWritable,
    Stopped,
    StorageError,
    UsageError,
)

_MAY_PASS: tuple[type[LoradockError], ...] = (HubError, StorageError, Stopped, Interrupted, GpuSuspect, Hung)
_STAYS: tuple[type[LoradockError], ...] = (UsageError, DataError, InputMissing, NotWritable, ConfigError, NoCheckpoint)


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
        counts_set, at_once = job["completions"].whole, job["parallelism"].whole
        if counts_set is not None and at_once is not None and at_once > counts_set >= 0:
            what = f"is {at_once}, and only {counts_set} pods are wanted in all"
            yield job["parallelism"].found(what, f"write parallelism: {counts_set}")


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


def failure_policy_container(manifest: Manifest) -> Iterator[Found]:
    """A rule names a container of the pod."""
    for pod in manifest.pods:
        known = {container["name"].text for container in pod.containers}
        for rule in pod.job.at("podFailurePolicy.rules") if pod.job else ():
            name = rule.at("onExitCodes.containerName")
            if name.text and pod.main and name.text not in known:
                remedy = f"there is {', '.join(sorted(known - {''}))}"
                yield name.found(f"is {name.text!r}, and the pod has no such container", remedy)


def failure_policy_codes(manifest: Manifest) -> Iterator[Found]:
    """By loradock's exit codes, what may pass is tried again, and what stays is not ignored."""
    for pod in manifest.pods:
        if pod.job is None or not pod.is_training:
            continue
        trainer = next(container["name"].text for container in pod.main if is_training(container))
        for error in (*_MAY_PASS, *_STAYS):
            rule = _first(pod.job, error.exit_code, container=trainer)
            if rule is not None:
                yield from _judged(rule, error)


def _first(job: Field, code: int, *, container: str) -> Field | None:
    """The rule that such an end of the container meets."""
    for rule in job.at("podFailurePolicy.rules"):
        codes = rule["onExitCodes"]
        values = {value.whole for value in codes["values"]}
        is_meant = codes["containerName"].text in ("", container)
        if is_meant and ((codes["operator"].text, code in values) in (("In", True), ("NotIn", False))):
            return rule
    return None


def _judged(rule: Field, error: type[LoradockError]) -> Iterator[Found]:
    place = next((value for value in rule.at("onExitCodes.values") if value.whole == error.exit_code), rule["action"])
    says = (error.__doc__ or "").splitlines()[0].rstrip(".").lower()
    action = rule["action"].text
    if error in _MAY_PASS and action in ("FailJob", "FailIndex"):
        what = f"ends the Job on {error.exit_code} ({says}), after which a new pod continues from the last checkpoint"
        yield place.found(what, "leave it to backoffLimit, or Count; Ignore for 75 and 76")
    elif error in _STAYS and action == "Ignore":
        what = f"ignores {error.exit_code} ({says}), which comes again with each new pod, for ever"
        yield place.found(what, "FailJob")


RULES = rules(
    failure_policy_restart, restart_exit_code, completions, queue, failure_policy_container, failure_policy_codes
)
