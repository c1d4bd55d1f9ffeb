"""Rules on a Job's podFailurePolicy, by the exit codes of `loradock.errors`."""

from __future__ import annotations

from collections.abc import Iterator

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
from loradock.kubernetes.check.base import (
    Manifest,
    is_training,
    rules,
)
from loradock.kubernetes.check.fields import Field, Found

_MAY_PASS: tuple[type[LoradockError], ...] = (HubError, StorageError, Stopped, Interrupted, GpuSuspect, Hung)
_STAYS: tuple[type[LoradockError], ...] = (UsageError, DataError, InputMissing, NotWritable, ConfigError, NoCheckpoint)


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
        what = f"ends the Job on {error.exit_code} ({says}), after which a new pod goes on from the last checkpoint"
        yield place.found(what, "leave it to backoffLimit, or Count; Ignore for 75 and 76")
    elif error in _STAYS and action == "Ignore":
        what = f"ignores {error.exit_code} ({says}), which comes again with each new pod, for ever"
        yield place.found(what, "FailJob")


RULES = rules(failure_policy_container, failure_policy_codes)
