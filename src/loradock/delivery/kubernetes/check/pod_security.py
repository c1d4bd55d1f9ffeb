"""Rules `pss-*` of the Pod Security Standards: each control of baseline and restricted a rule, for every container.

Those that forbid values are lines of `pod_security.yaml`, with the source; the others are functions here. What baseline
forbids already is not told again by restricted. Windows pods are exempt where the standard says so. What the patches of
a TrainJob lack may stand in its runtime, and is not missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import yaml

from loradock.delivery.kubernetes.check.base import Manifest, Pod, Rule, rules
from loradock.delivery.kubernetes.check.fields import Field, Found

STANDARD = "1.34"
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_CONTROLS: dict[str, dict[str, Any]] = yaml.safe_load(
    (files("loradock.delivery.kubernetes.check") / "pod_security.yaml").read_text(encoding="utf-8")
)
(_ADDING,) = _CONTROLS["pss-capabilities"]["checks"]
_VOLUMES = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
)


def _forbidden(checks: list[Mapping[str, Any]], manifest: Manifest) -> Iterator[Found]:
    for check in checks:
        for field in (field for pod in manifest.pods for field in _places(pod, check["at"])):
            if field.value not in (None, *check["allowed"]):
                yield field.found(check["what"].replace("{value}", str(field.value)), check["remedy"])


def _places(pod: Pod, at: str) -> list[Field]:
    """The fields that a place of pod_security.yaml means in this pod."""
    start, *parts = at.split(".")
    fields = [*{"pod": (pod.spec,), "containers": pod.containers, "contexts": pod.security_contexts}[start]]
    for part in parts:
        fields = [field[name] for field in fields for name in part.removesuffix("[]").split("|")]
        if part.endswith("[]"):
            fields = [entry for field in fields for entry in field]
    return fields


def pss_host_path(manifest: Manifest) -> Iterator[Found]:
    """No volume is a path of the node."""
    for volume in manifest.volumes:
        field = volume["hostPath"]
        if field:
            is_root = field["path"].text.rstrip("/") == "" and field["path"].text != ""
            what = "is the whole disk of the node" if is_root else "is a folder of the node"
            yield field.found(what, "a persistentVolumeClaim; the cluster's owner makes the volume")


def pss_app_armor(manifest: Manifest) -> Iterator[Found]:
    """AppArmor is RuntimeDefault or Localhost, by field and by annotation."""
    for pod in manifest.pods:
        for context in pod.security_contexts:
            field = context.at("appArmorProfile.type")
            if field.value not in (None, "RuntimeDefault", "Localhost"):
                yield field.found(f"is {field.value}", "delete it: RuntimeDefault holds then")
        for key, field in pod.metadata["annotations"].members:
            profile = field.text
            is_known = profile in ("", "runtime/default") or profile.startswith("localhost/")
            if key.startswith(_APP_ARMOR) and not is_known:
                yield field.found(f"is {profile}", "delete it: runtime/default holds then")


def pss_volume_types(manifest: Manifest) -> Iterator[Found]:
    """Each volume is of one of the 8 types allowed."""
    for volume in manifest.volumes:
        sources = {name for name, field in volume.members if field} - {"name", "hostPath"}
        for name in sorted(sources - _VOLUMES):
            yield volume[name].found("is not a volume that restricted allows", "a persistentVolumeClaim")


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
        for_pod = pod.spec.at("securityContext.runAsNonRoot")
        fields = [container.at("securityContext.runAsNonRoot") for container in pod.confined]
        yield from (
            field.found("is false", "write runAsNonRoot: true") for field in (for_pod, *fields) if field.value is False
        )
        if for_pod.value is None and not pod.is_partial and (unset := [field for field in fields if not field]):
            place = for_pod if len(unset) == len(fields) else unset[0]
            yield place.found("is missing: the image could run as root", "write runAsNonRoot: true")


def pss_non_root_user(manifest: Manifest) -> Iterator[Found]:
    """No runAsUser is 0."""
    for field in (context["runAsUser"] for pod in manifest.pods for context in pod.security_contexts):
        if field.whole == 0:
            yield field.found("is 0, which is root", "write runAsUser: 1000, or leave it to the image")


def pss_seccomp_set(manifest: Manifest) -> Iterator[Found]:
    """A seccomp profile is set, for the pod or for each container (Linux)."""
    for pod in manifest.pods:
        for_pod = pod.spec.at("securityContext.seccompProfile.type")
        fields = [container.at("securityContext.seccompProfile.type") for container in pod.confined]
        unset = [field for field in fields if not field]
        if not for_pod and unset and not pod.is_windows and not pod.is_partial:
            place = for_pod if len(unset) == len(fields) else unset[0]
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
    for pod in (pod for pod in manifest.pods if not pod.is_windows):
        for added in _places(pod, _ADDING["at"]):
            if added.text in _ADDING["allowed"] and added.text != "NET_BIND_SERVICE":
                yield added.found(f"adds {added.text}; restricted allows NET_BIND_SERVICE alone", "delete it")


BASELINE = (
    *(
        Rule(name=name, says=control["says"], look=partial(_forbidden, control["checks"]))
        for name, control in _CONTROLS.items()
    ),
    *rules(pss_host_path, pss_app_armor),
)
RESTRICTED = rules(
    pss_volume_types,
    pss_privilege_escalation,
    pss_non_root,
    pss_non_root_user,
    pss_seccomp_set,
    pss_drop_all,
    pss_added_capabilities,
)
