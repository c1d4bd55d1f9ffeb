"""Rules `pss-*` of the Pod Security Standard "restricted": what it asks for beyond baseline.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ as published for Kubernetes 1.34. What
baseline forbids already is not told again. Windows pods are exempt where the standard says so. What the patches of a
TrainJob lack may stand in its runtime, and is not missed.
"""

from __future__ import annotations

from collections.abc import Iterator

from loradock.kubernetes.check.base import (
    Manifest,
    Pod,
    added_capabilities,
    rules,
)
from loradock.kubernetes.check.fields import Field, Found
from loradock.kubernetes.check.security_baseline import BASELINE_CAPABILITIES

_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
_VOLUMES = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
)


def pss_volume_types(manifest: Manifest) -> Iterator[Found]:
    """Each volume is of one of the 8 types allowed."""
    for volume in manifest.volumes:
        sources = {name for name, field in volume.members if field} - {"name", "hostPath"}
        for name in sorted(sources - _VOLUMES):
            yield volume[name].found("is no volume that restricted allows", "a persistentVolumeClaim")


def pss_privilege_escalation(manifest: Manifest) -> Iterator[Found]:
    """allowPrivilegeEscalation is false (Linux)."""
    for pod, container in _confined(manifest):
        field = container.at("securityContext.allowPrivilegeEscalation")
        if not pod.is_windows and field.value is not False and (field or not pod.is_partial):
            what = "is true" if field else "is missing"
            yield field.found(
                f"{what}: a set-user-ID program could become root", "write allowPrivilegeEscalation: false"
            )


def pss_non_root(manifest: Manifest) -> Iterator[Found]:
    """runAsNonRoot is true, for the pod or for each container."""
    for pod in manifest.pods:
        whole = pod.spec.at("securityContext.runAsNonRoot")
        fields = [container.at("securityContext.runAsNonRoot") for container in pod.confined]
        yield from (
            field.found("is false", "write runAsNonRoot: true") for field in (whole, *fields) if field.value is False
        )
        if whole.value is None and not pod.is_partial and (unset := [field for field in fields if not field]):
            place = whole if len(unset) == len(fields) else unset[0]
            yield place.found("is missing: the image could run as root", "write runAsNonRoot: true")


def pss_non_root_user(manifest: Manifest) -> Iterator[Found]:
    """No runAsUser is 0."""
    for field in (context["runAsUser"] for pod in manifest.pods for context in pod.security_contexts):
        if field.whole == 0:
            yield field.found("is 0, which is root", "write runAsUser: 1000, or leave it to the image")


def pss_seccomp_set(manifest: Manifest) -> Iterator[Found]:
    """A seccomp profile is set, for the pod or for each container (Linux)."""
    for pod in manifest.pods:
        whole = pod.spec.at("securityContext.seccompProfile.type")
        fields = [container.at("securityContext.seccompProfile.type") for container in pod.confined]
        unset = [field for field in fields if not field]
        if not whole and unset and not pod.is_windows and not pod.is_partial:
            place = whole if len(unset) == len(fields) else unset[0]
            yield place.found(
                "is missing: every system call would be allowed", "write seccompProfile: {type: RuntimeDefault}"
            )


def pss_drop_all(manifest: Manifest) -> Iterator[Found]:
    """Each container drops ALL capabilities (Linux)."""
    for pod, container in _confined(manifest):
        dropped = container.at("securityContext.capabilities.drop")
        has_all = any(name.text == "ALL" for name in dropped)
        if not pod.is_windows and not has_all and (dropped or not pod.is_partial):
            yield dropped.found("does not hold ALL", "write capabilities: {drop: [ALL]}")


def _confined(manifest: Manifest) -> Iterator[tuple[Pod, Field]]:
    return ((pod, container) for pod in manifest.pods for container in pod.confined)


def pss_added_capabilities(manifest: Manifest) -> Iterator[Found]:
    """NET_BIND_SERVICE is the only capability added (Linux)."""
    for pod, added in added_capabilities(manifest):
        if added.text in BASELINE_CAPABILITIES - _CAPABILITIES and not pod.is_windows:
            yield added.found(f"adds {added.text}; restricted allows NET_BIND_SERVICE alone", "delete it")


RULES = rules(
    pss_volume_types,
    pss_privilege_escalation,
    pss_non_root,
    pss_non_root_user,
    pss_seccomp_set,
    pss_drop_all,
    pss_added_capabilities,
)
