"""Rules on single values that the schema leaves open: words of a fixed set, and ranges of numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from loradock.kubernetes.check.base import Manifest, Pod, Rule
from loradock.kubernetes.check.fields import Field, Found

_POLICIES = ("Always", "OnFailure", "Never")
_POD_WORDS = {
    "restartPolicy": _POLICIES,
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "preemptionPolicy": ("PreemptLowerPriority", "Never"),
    "os.name": ("linux", "windows"),
    "securityContext.fsGroupChangePolicy": ("OnRootMismatch", "Always"),
    "securityContext.supplementalGroupsPolicy": ("Merge", "Strict"),
}
_CONTAINER_WORDS = {
    "imagePullPolicy": ("Always", "IfNotPresent", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
    "restartPolicy": _POLICIES,
}
_JOB_WORDS = {
    "completionMode": ("NonIndexed", "Indexed"),
    "podReplacementPolicy": ("TerminatingOrFailed", "Failed"),
}
_CODE_OPERATORS = ("In", "NotIn")
_KIND_WORDS = {
    "Service": {"spec.type": ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")},
    "CronJob": {"spec.concurrencyPolicy": ("Allow", "Forbid", "Replace")},
    "PersistentVolumeClaim": {"spec.volumeMode": ("Filesystem", "Block")},
    "JobSet": {
        "spec.failurePolicy.restartStrategy": ("Recreate", "BlockingRecreate", "InPlaceRestart"),
        "spec.successPolicy.operator": ("All", "Any"),
        "spec.startupPolicy.startupPolicyOrder": ("AnyOrder", "InOrder"),
    },
}
_ACCESS_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_JOBSET_ACTIONS = (
    *("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    *("RecreateJob", "RestartJob", "RestartJobAndIgnoreMaxRestarts"),
)
_MEDIA = ("Memory", "HugePages")
_PORT = (1, 65535)
_PROBE_NUMBERS = {
    "periodSeconds": 1,
    "timeoutSeconds": 1,
    "failureThreshold": 1,
    "successThreshold": 1,
    "initialDelaySeconds": 0,
    "terminationGracePeriodSeconds": 1,
}
_JOB_NUMBERS = {
    "parallelism": 0,
    "completions": 0,
    "ttlSecondsAfterFinished": 0,
    "activeDeadlineSeconds": 1,
    "backoffLimitPerIndex": 0,
    "maxFailedIndexes": 0,
}


def _words(manifest: Manifest) -> Iterator[Found]:
    for place, allowed in _choices(manifest):
        if place.text and place.text not in allowed and not (allowed == _MEDIA and place.text.startswith(_MEDIA)):
            near = difflib.get_close_matches(place.text, allowed, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"one of {', '.join(allowed)}"
            yield place.found(f"is {place.text!r}, which Kubernetes does not know", remedy)


def _choices(manifest: Manifest) -> Iterator[tuple[Field, tuple[str, ...]]]:
    yield from ((manifest.root.at(path), words) for path, words in _KIND_WORDS.get(manifest.kind, {}).items())
    if manifest.kind == "PersistentVolumeClaim":
        yield from ((mode, _ACCESS_MODES) for mode in manifest.spec["accessModes"])
    if manifest.kind == "JobSet":
        yield from ((rule["action"], _JOBSET_ACTIONS) for rule in manifest.spec.at("failurePolicy.rules"))
    for job in manifest.jobs:
        yield from ((job[name], words) for name, words in _JOB_WORDS.items())
        yield from ((rule.at("onExitCodes.operator"), _CODE_OPERATORS) for rule in job.at("podFailurePolicy.rules"))
    for pod in manifest.pods:
        yield from _pod_choices(pod)


def _pod_choices(pod: Pod) -> Iterator[tuple[Field, tuple[str, ...]]]:
    yield from ((pod.spec.at(path), words) for path, words in _POD_WORDS.items())
    yield from ((volume.at("emptyDir.medium"), _MEDIA) for volume in pod.spec["volumes"])
    for toleration in pod.spec["tolerations"]:
        yield toleration["operator"], ("Exists", "Equal", "Lt", "Gt")
        yield toleration["effect"], ("NoSchedule", "PreferNoSchedule", "NoExecute")
    for constraint in pod.spec["topologySpreadConstraints"]:
        yield constraint["whenUnsatisfiable"], ("DoNotSchedule", "ScheduleAnyway")
    for container in pod.containers:
        yield from ((container[name], words) for name, words in _CONTAINER_WORDS.items())
        yield from ((port["protocol"], ("TCP", "UDP", "SCTP")) for port in container["ports"])


def _numbers(manifest: Manifest) -> Iterator[Found]:
    for place, least, most in _ranges(manifest):
        if place.whole is not None and (place.whole < least or (most is not None and place.whole > most)):
            limits = f"{least} to {most}" if most is not None else f"{least} or more"
            yield place.found(f"is {place.whole}, which Kubernetes does not take", f"write {limits}")


def _ranges(manifest: Manifest) -> Iterator[tuple[Field, int, int | None]]:
    for job in manifest.jobs:
        yield from ((job[name], least, None) for name, least in _JOB_NUMBERS.items())
    for replicated in manifest.replicated_jobs:
        yield replicated["replicas"], 0, None
    if manifest.kind in ("JobSet", "TrainJob"):
        yield manifest.spec.at("failurePolicy.maxRestarts"), 0, None
        yield manifest.spec.at("trainer.numNodes"), 1, None
        yield manifest.spec["activeDeadlineSeconds"], 1, None
    if manifest.kind == "Service":
        yield from ((port["port"], *_PORT) for port in manifest.spec["ports"])
    for pod in manifest.pods:
        yield pod.spec["activeDeadlineSeconds"], 1, None
        for container in pod.containers:
            yield from ((port["containerPort"], *_PORT) for port in container["ports"])
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                yield from ((container[probe][name], least, None) for name, least in _PROBE_NUMBERS.items())
        for constraint in pod.spec["topologySpreadConstraints"]:
            yield constraint["maxSkew"], 1, None


RULES = (
    Rule(name="word", says="Where Kubernetes takes one word of a few, it is one of them.", look=_words),
    Rule(name="number", says="Counts, seconds and ports lie in the range that Kubernetes takes.", look=_numbers),
)
