"""What Kubernetes would refuse of a workload, and what must not be written into a manifest: all of it at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

from loradock.delivery.kubernetes import names
from loradock.delivery.kubernetes.workload import Workload
from loradock.errors import Problem
from loradock.text import redact

Check = Callable[[str], str | None]
OURS = re.compile(r"(app\.kubernetes\.io|loradock|kueue\.x-k8s\.io|trainer\.kubeflow\.org|batch\.kubernetes\.io)/.*")
"""Labels and annotations that objects are found by, or that an option of their own gives."""
SECRET_WORD = re.compile(rf"(API|ACCESS|AUTH|PRIVATE|PG)?({redact.SECRET_NAME.pattern})S?")
PLACE_WORDS = ("FILE", "PATH", "DIR")


def problems(workload: Workload) -> list[Problem]:
    """Every text that Kubernetes would refuse, by the option that gives it; none where it can be rendered."""
    texts = [
        Problem(what=f"{what}: {text!r} is refused", hint=form)
        for what, text, check in _texts(workload)
        if (form := check(text)) is not None
    ]
    return [*texts, *_open_secrets(workload), *_contradictions(workload)]


def is_open_secret(name: str, value: str) -> bool:
    """True where a variable's name or the form of its value says that it is for nobody else; a path is none."""
    parts = name.upper().split("_")
    is_named = parts[-1] not in PLACE_WORDS and any(SECRET_WORD.fullmatch(word) for word in parts)
    is_plain = not value.strip() or value.isdecimal() or value.lower() in redact.PLAIN_WORDS
    return redact.without(value, {}) != value or (is_named and not is_plain)


def _open_secrets(workload: Workload) -> Iterator[Problem]:
    for name, value in workload.environment:
        if is_open_secret(name, value):
            what = f"--env {name}: its value would stand in the manifest for all to read"
            yield Problem(what=what, hint=f"--secret-env {name}=SECRET:KEY")


def _contradictions(workload: Workload) -> Iterator[Problem]:
    who = workload.account
    if who.is_openshift and (who.uid, who.fs_group) != (None, None):
        yield Problem(what="--openshift leaves uid and fsGroup to the cluster", hint="leave out --uid and --fs-group")


def _texts(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    """(where it was given, the text, its check) of every text that comes from outside."""
    yield "--name", workload.name, names.workload_name
    yield "--image", workload.image, names.image
    for what, text, check in (
        ("--namespace", workload.namespace, names.label_name),
        ("--run-id", workload.run_id, names.filled_value),
        ("--pull-secret", workload.pull_secret, names.object_name),
        ("--queue", workload.placement.queue, names.filled_value),
        ("--priority-class", workload.placement.priority_class, names.object_name),
        ("--topology", workload.placement.topology_key, names.label_key),
        ("--scheduler-name", workload.placement.scheduler, names.object_name),
        ("--runtime-class", workload.placement.runtime_class, names.object_name),
        ("--service-account", workload.account.service_account, names.object_name),
        ("the configuration", workload.config_text, names.printable),
    ):
        if text is not None:
            yield what, text, check
    for argument in workload.command:
        yield "--set", argument, names.printable
    yield from _of_volumes(workload)
    yield from _of_environment(workload)
    yield from _of_placement(workload)
    yield from _of_metadata(workload)
    for address in workload.egress or ():
        yield "--allow-egress", address, _network


def _of_volumes(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for volume in workload.volumes:
        if volume.claim is not None:
            yield f"--{volume.name}-claim", volume.claim, names.object_name
        if volume.host_path is not None:
            yield f"--host-path {volume.name}", volume.host_path, names.path


def _of_environment(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for name, value in workload.environment:
        yield "--env", name, names.variable
        yield f"--env {name}", value, names.printable
    for secret in workload.secrets:
        yield "--secret-env", secret.name, names.variable
        yield f"--secret-env {secret.name}", secret.secret, names.object_name
        yield f"--secret-env {secret.name}", secret.key, names.secret_key
    if workload.fetch:
        yield "--fetch-image", workload.fetch.image, names.image
        for argument in workload.fetch.arguments:
            yield "--fetch-arg", argument, names.printable


def _of_placement(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for key, value in workload.placement.node_selector:
        yield "--node-selector", key, names.label_key
        yield f"--node-selector {key}", value, names.label_value
    for toleration in workload.placement.tolerations:
        yield "--toleration", toleration.key, names.label_key
        if toleration.value is not None:
            yield f"--toleration {toleration.key}", toleration.value, names.label_value
        if toleration.effect is not None:
            yield f"--toleration {toleration.key}", toleration.effect, _effect
    for name, _ in workload.devices:
        yield "--device", name, names.label_key


def _of_metadata(workload: Workload) -> Iterator[tuple[str, str, Check]]:
    for flag, entries, check in (
        ("--label", workload.labels, names.label_value),
        ("--annotation", workload.annotations, names.printable),
    ):
        for key, value in entries:
            yield flag, key, _own_key
            yield f"{flag} {key}", value, check


def _own_key(text: str) -> str | None:
    return "a key of your own: this one is loradock's or a controller's" if OURS.match(text) else names.label_key(text)


def _network(text: str) -> str | None:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return "a network as 10.0.0.0/8, no bit set beyond its length"
    return None if "/" in text else str(network)


def _effect(text: str) -> str | None:
    known = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    return None if text in known else f"one of {', '.join(known)}"
