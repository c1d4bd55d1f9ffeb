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
    Pod,
    Rule,
    is_training,
)
from loradock.kubernetes.check.fields import Field, Found

ACTIONS = ("FailJob", "FailIndex", "Ignore", "Count")
MOST_VALUES = 255
_MAY_PASS: tuple[type[LoradockError], ...] = (HubError, StorageError, Stopped, Interrupted, GpuSuspect, Hung)
_STAYS: tuple[type[LoradockError], ...] = (UsageError, DataError, InputMissing, NotWritable, ConfigError, NoCheckpoint)


def _policies(manifest: Manifest) -> Iterator[tuple[Pod, Field]]:
    """Each rule of each policy, with the pods that it is for."""
    for pod in manifest.pods:
        if pod.job is not None:
            yield from ((pod, rule) for rule in pod.job.at("podFailurePolicy.rules"))


def _zero(manifest: Manifest) -> Iterator[Found]:
    for _, rule in _policies(manifest):
        codes = rule["onExitCodes"]
        for value in codes["values"]:
            if value.whole == 0 and codes["operator"].text == "In":
                yield value.found("is 0, which is success: a rule is for failures", "delete the 0")


def _values(manifest: Manifest) -> Iterator[Found]:
    for _, rule in _policies(manifest):
        last = -1
        for value in rule.at("onExitCodes.values"):
            if value.whole is None:
                continue
            if not 0 <= value.whole <= MOST_VALUES:
                yield value.found(
                    f"is {value.whole}: exit codes go up to {MOST_VALUES}", "137 is SIGKILL, 143 is SIGTERM"
                )
            elif value.whole <= last:
                yield value.found(
                    f"is {value.whole} after {last}: Kubernetes takes them in order, each once", "sort them"
                )
            last = max(last, value.whole)


def _action(manifest: Manifest) -> Iterator[Found]:
    for _, rule in _policies(manifest):
        action = rule["action"]
        if action.text and action.text not in ACTIONS:
            yield action.found(f"is {action.text!r}, which is no action", f"one of {', '.join(ACTIONS)}")


def _one_condition(manifest: Manifest) -> Iterator[Found]:
    for _, rule in _policies(manifest):
        conditions = [name for name in ("onExitCodes", "onPodConditions") if rule[name]]
        if rule.members and len(conditions) != 1:
            what = "has both conditions" if conditions else "has no condition"
            yield rule.found(what, "one of onExitCodes, onPodConditions")


def _container(manifest: Manifest) -> Iterator[Found]:
    for pod, rule in _policies(manifest):
        name = rule.at("onExitCodes.containerName")
        known = {container["name"].text for container in pod.containers}
        if name.text and pod.main and name.text not in known:
            remedy = f"there is {', '.join(sorted(known - {''}))}"
            yield name.found(f"is {name.text!r}, and the pod has no such container", remedy)


def _codes(manifest: Manifest) -> Iterator[Found]:
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


RULES = (
    Rule(name="failure-policy-zero", says="No rule of a podFailurePolicy is for exit code 0.", look=_zero),
    Rule(name="failure-policy-values", says="Exit codes stand in order, each once, up to 255.", look=_values),
    Rule(name="failure-policy-action", says="The action of a rule is one that there is.", look=_action),
    Rule(name="failure-policy-condition", says="A rule has exit codes or conditions, not both.", look=_one_condition),
    Rule(name="failure-policy-container", says="A rule names a container of the pod.", look=_container),
    Rule(
        name="failure-policy-codes",
        says="By loradock's exit codes, what may pass is tried again, and what stays is not ignored.",
        look=_codes,
    ),
)
