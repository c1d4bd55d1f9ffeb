"""Rules on probes and on the time that a pod has to stop."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath

from loradock.delivery.kubernetes.check.base import Manifest, is_training, rules, runs_loradock
from loradock.delivery.kubernetes.check.command_line import variables, words
from loradock.delivery.kubernetes.check.fields import Field, Found

DEFAULT_GRACE_SECONDS = 30
LEAST_GRACE_SECONDS = 120
LEAST_WINDOW_SECONDS = 60
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HEARTBEAT = "LORADOCK_HEARTBEAT"


def liveness_startup(manifest: Manifest) -> Iterator[Found]:
    """What trains and has a liveness probe has a startup probe."""
    for container in _training(manifest):
        if container["livenessProbe"] and not container["startupProbe"]:
            what = "begins at once, and loading a model takes minutes: the pod would be killed while it starts"
            yield container["livenessProbe"].found(
                what, "add a startupProbe with failureThreshold: 60, periodSeconds: 10"
            )


def liveness_window(manifest: Manifest) -> Iterator[Found]:
    """What trains is not killed for less than 60 s of silence."""
    for container in _training(manifest):
        probe = container["livenessProbe"]
        period, failures = probe["periodSeconds"].whole, probe["failureThreshold"].whole
        seconds = (10 if period is None else period) * (3 if failures is None else failures)
        if probe and 0 < seconds < LEAST_WINDOW_SECONDS:
            remedy = f"periodSeconds times failureThreshold {LEAST_WINDOW_SECONDS} or more: 30 and 3"
            yield probe.found(
                f"kills after {seconds} s without an answer; one slow save or compile takes longer", remedy
            )


def _training(manifest: Manifest) -> Iterator[Field]:
    return (container for pod in manifest.pods for container in pod.main if is_training(container))


def probe_heartbeat(manifest: Manifest) -> Iterator[Found]:
    """A probe that tests for a heartbeat tests for the file that loradock writes.

    A file that nobody writes. What a trainer gives its runtime, or an `envFrom` sets, is not known here.
    """
    for container in (
        container for pod in manifest.pods if not pod.is_partial for container in pod.main if runs_loradock(container)
    ):
        written = {name: field.text for name, field in variables(container)}.get(_HEARTBEAT)
        is_elsewhere = container["envFrom"] or any(_HEARTBEAT in word.text for word in words(container))
        is_elsewhere = is_elsewhere or manifest.kind.endswith("Runtime")
        is_named = any(variable["name"].text == _HEARTBEAT for variable in container["env"])
        is_known = "$" not in written if written else not is_named and not is_elsewhere
        for place in _asked_heartbeats(container) if is_known else ():
            if place.text != written:
                what = f"waits for {place.text}, and {_HEARTBEAT} is {written or 'not set'}: the probe never succeeds"
                yield place.found(what, f"make {_HEARTBEAT} and the probe's file one")


def _asked_heartbeats(container: Field) -> Iterator[Field]:
    """The heartbeat files that probes test for, where they test for one only."""
    for probe in _PROBES:
        line = words(container[probe]["exec"])
        pairs = pairwise(line)
        tested = [file for option, file in pairs if option.text in ("-e", "-f", "-s")]
        if len(tested) == 1 and "heartbeat" in PurePosixPath(tested[0].text).name and "$" not in tested[0].text:
            yield Field(tested[0].text.rstrip(";"), tested[0].path)


def grace_period(manifest: Manifest) -> Iterator[Found]:
    """What trains has 120 s or more to commit a checkpoint after SIGTERM."""
    for pod in manifest.pods:
        grace = pod.spec["terminationGracePeriodSeconds"]
        seconds = DEFAULT_GRACE_SECONDS if not grace else grace.whole
        is_short = seconds is not None and 0 <= seconds < LEAST_GRACE_SECONDS
        if is_short and pod.is_training and not pod.is_partial:
            remedy = f"the longest step and save and 10 s, {LEAST_GRACE_SECONDS} at least"
            what = f"is {seconds} s" if grace else f"is missing, which means {seconds} s"
            yield grace.found(f"{what}: a step and a checkpoint take longer, and then the pod is killed", remedy)


def active_deadline(manifest: Manifest) -> Iterator[Found]:
    """A deadline is longer than the time to stop."""
    for pod in manifest.pods:
        for bearer in (pod.spec, *((pod.job,) if pod.job is not None else ())):
            deadline = bearer["activeDeadlineSeconds"]
            grace = pod.spec["terminationGracePeriodSeconds"].whole
            seconds = DEFAULT_GRACE_SECONDS if grace is None else grace
            if deadline.whole is not None and 0 < deadline.whole <= seconds:
                what = f"is {deadline.whole} s, and stopping alone may take {seconds} s"
                yield deadline.found(what, f"write more than {seconds}, or leave it out")


RULES = rules(liveness_startup, liveness_window, probe_heartbeat, grace_period, active_deadline)
