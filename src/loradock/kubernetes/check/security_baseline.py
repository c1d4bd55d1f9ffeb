"""Rules `pss-*` of the Pod Security Standard "baseline": each control a rule, for every kind of container.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/ as published for Kubernetes 1.34, which
added host probes.
"""

from __future__ import annotations

from collections.abc import Iterator

from loradock.kubernetes.check.base import (
    BASELINE_CAPABILITIES,
    Manifest,
    added_capabilities,
    rules,
)
from loradock.kubernetes.check.fields import Found

STANDARD = "1.34"
_SELINUX_TYPES = frozenset(("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"))
_SECCOMP = ("RuntimeDefault", "Localhost")
_SYSCTLS = frozenset(
    (
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    )
)
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")


def pss_host_process(manifest: Manifest) -> Iterator[Found]:
    """No Windows HostProcess container."""
    for context in (context for pod in manifest.pods for context in pod.security_contexts):
        field = context.at("windowsOptions.hostProcess")
        if field.value not in (None, False):
            yield field.found("gives the container the Windows node", "delete it")


def pss_host_namespaces(manifest: Manifest) -> Iterator[Found]:
    """hostNetwork, hostPID and hostIPC are not true."""
    for field in (pod.spec[name] for pod in manifest.pods for name in ("hostNetwork", "hostPID", "hostIPC")):
        if field.value not in (None, False):
            yield field.found("shares a namespace of the node", "delete it; NCCL needs no host network")


def pss_privileged(manifest: Manifest) -> Iterator[Found]:
    """No container is privileged."""
    for container in manifest.containers:
        field = container.at("securityContext.privileged")
        if field.value not in (None, False):
            yield field.found("gives the container the node", "delete it; GPUs come through the device plugin")


def pss_capabilities(manifest: Manifest) -> Iterator[Found]:
    """No capability beyond the 13 of baseline is added."""
    for _, added in added_capabilities(manifest):
        if added.value is not None and added.text not in BASELINE_CAPABILITIES:
            yield added.found(f"adds {added.value}, which baseline forbids", "delete it; training needs no capability")


def pss_host_path(manifest: Manifest) -> Iterator[Found]:
    """No volume is a path of the node."""
    for volume in manifest.volumes:
        field = volume["hostPath"]
        if field:
            whole = field["path"].text.rstrip("/") == "" and field["path"].text != ""
            what = "is the whole disk of the node" if whole else "is a folder of the node"
            yield field.found(what, "a persistentVolumeClaim; the cluster's owner makes the volume")


def pss_host_ports(manifest: Manifest) -> Iterator[Found]:
    """No container takes a port of the node."""
    for port in (port for container in manifest.containers for port in container["ports"]):
        if port["hostPort"].value not in (None, 0):
            yield port["hostPort"].found("takes a port of the node", "delete it; a Service reaches containerPort")


def pss_host_probes(manifest: Manifest) -> Iterator[Found]:
    """No probe or lifecycle hook names a host."""
    for container in manifest.containers:
        for handler in (container.at(probe) for probe in _PROBES):
            for field in (handler.at("httpGet.host"), handler.at("tcpSocket.host")):
                if field.value not in (None, ""):
                    yield field.found("sends the node's requests to another host", "delete it: the pod itself is asked")


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


def pss_selinux(manifest: Manifest) -> Iterator[Found]:
    """SELinux has a container type, and neither user nor role."""
    for options in (context["seLinuxOptions"] for pod in manifest.pods for context in pod.security_contexts):
        if options["type"] and options["type"].text not in _SELINUX_TYPES:
            yield options["type"].found(f"is {options['type'].value}", "delete it: container_t holds then")
        for field in (options["user"], options["role"]):
            if field.value not in (None, ""):
                yield field.found("may not be set", "delete it")


def pss_proc_mount(manifest: Manifest) -> Iterator[Found]:
    """/proc keeps its masks."""
    for container in manifest.containers:
        field = container.at("securityContext.procMount")
        if field.value not in (None, "Default"):
            yield field.found(f"is {field.value}: it lays open what /proc hides", "delete it")


def pss_seccomp(manifest: Manifest) -> Iterator[Found]:
    """No seccomp profile is Unconfined."""
    for profile in (context["seccompProfile"] for pod in manifest.pods for context in pod.security_contexts):
        field = profile["type"]
        if field.value not in (None, *_SECCOMP):
            yield field.found(f"is {field.value}", "write type: RuntimeDefault")


def pss_sysctls(manifest: Manifest) -> Iterator[Found]:
    """Only the safe sysctls are set."""
    for name in (entry["name"] for pod in manifest.pods for entry in pod.spec.at("securityContext.sysctls")):
        if name.text not in _SYSCTLS:
            yield name.found(
                f"is {name.value}, which reaches beyond the pod", "delete it; the node's owner sets it there"
            )


RULES = rules(
    pss_host_process,
    pss_host_namespaces,
    pss_privileged,
    pss_capabilities,
    pss_host_path,
    pss_host_ports,
    pss_host_probes,
    pss_app_armor,
    pss_selinux,
    pss_proc_mount,
    pss_seccomp,
    pss_sysctls,
)
