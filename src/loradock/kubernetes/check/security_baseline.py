"""Rules `pss-*` of the Pod Security Standard "baseline": each control a rule, for every kind of container.

Those that forbid values are lines of `pod_security.yaml`, with the source; the others are functions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import yaml

from loradock.kubernetes.check.base import Manifest, Pod, Rule, rules
from loradock.kubernetes.check.fields import Field, Found

STANDARD = "1.34"
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_CONTROLS: dict[str, dict[str, Any]] = yaml.safe_load(
    (files("loradock.kubernetes.check") / "pod_security.yaml").read_text(encoding="utf-8")
)
BASELINE_CAPABILITIES = frozenset(_CONTROLS["pss-capabilities"]["checks"][0]["allowed"])
"""What baseline lets a container add."""


def _forbidden(checks: list[Mapping[str, Any]], manifest: Manifest) -> Iterator[Found]:
    for check in checks:
        for field in (field for pod in manifest.pods for field in _places(pod, check["at"])):
            if field.value is not None and not any(
                field.value is each or field.value == each for each in check["allowed"]
            ):
                yield field.found(check["what"].replace("{value}", str(field.value)), check["remedy"])


def _places(pod: Pod, at: str) -> list[Field]:
    """The fields that a place of pod_security.yaml means in this pod."""
    start, *parts = at.split(".")
    fields = {"pod": (pod.spec,), "containers": pod.containers, "contexts": pod.security_contexts}[start]
    found = list(fields)
    for part in parts:
        found = [field[name] for field in found for name in part.removesuffix("[]").split("|")]
        if part.endswith("[]"):
            found = [entry for field in found for entry in field]
    return found


def pss_host_path(manifest: Manifest) -> Iterator[Found]:
    """No volume is a path of the node."""
    for volume in manifest.volumes:
        field = volume["hostPath"]
        if field:
            whole = field["path"].text.rstrip("/") == "" and field["path"].text != ""
            what = "is the whole disk of the node" if whole else "is a folder of the node"
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


RULES = (
    *(Rule(name=name, says=made["says"], look=partial(_forbidden, made["checks"])) for name, made in _CONTROLS.items()),
    *rules(pss_host_path, pss_app_armor),
)
