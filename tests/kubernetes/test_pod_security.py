"""The Pod Security Standards, control by control: what each forbids is refused by its rule, what it allows passes.

The fields and values are those of the published page; each control is tried on the pod and on every kind of container
that it is for.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import yaml
from kubernetes.goods import IMAGE, POD

from loradock.delivery.kubernetes.check import GROUPS, judge, problems
from loradock.delivery.kubernetes.check.reading import objects

pytestmark = pytest.mark.thin(2)

LISTS = ("containers", "initContainers", "ephemeralContainers")
RESTRICTED_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
LIMITS = {"limits": {"memory": "1Gi", "ephemeral-storage": "1Gi"}}


def pod() -> dict[str, Any]:
    """A good pod with a container of each kind, none of which trains."""
    made = next(yaml.safe_load_all(POD))
    spec = made["spec"]
    spec["containers"] = [container("main")]
    spec["initContainers"] = [container("first")]
    spec["ephemeralContainers"] = [{**container("debug"), "resources": {}}]
    spec["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    return made


def container(name: str) -> dict[str, Any]:
    image = IMAGE.replace("loradock", "tool")
    return {
        "name": name,
        "image": image,
        "resources": deepcopy(LIMITS),
        "securityContext": deepcopy(RESTRICTED_SECURITY),
    }


def changed(path: str, value: object, *, make: dict[str, Any] | None = None) -> dict[str, Any]:
    """The pod with `value` at `path`, where `[*]` is not allowed and a number is a place in a list."""
    made = pod() if make is None else make
    *way, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
    place: Any = made
    for part in way:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[last] = value
    return made


def told(made: dict[str, Any]) -> list[str]:
    manifest = next(objects(made, file="x", lines={}))
    return [problem.what.partition(":")[0] for problem in judge(manifest)]


def everywhere(field: str) -> tuple[str, ...]:
    return (f"spec/securityContext/{field}", *each(f"securityContext/{field}"))


def each(field: str) -> tuple[str, ...]:
    return tuple(f"spec/{name}/0/{field}" for name in LISTS)


def hooks() -> tuple[str, ...]:
    probes = ("livenessProbe", "readinessProbe", "startupProbe")
    handlers = [f"{probe}/{way}" for probe in probes for way in ("httpGet", "tcpSocket")]
    handlers += [f"lifecycle/{hook}/{way}" for hook in ("postStart", "preStop") for way in ("httpGet", "tcpSocket")]
    return tuple(f"spec/{name}/0/{handler}" for handler in handlers for name in LISTS)


SAFE_SYSCTLS = (
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
)
ADDABLE = (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT"
).split()
APP_ARMOR = "metadata/annotations/container.apparmor.security.beta.kubernetes.io~main"
VOLUME = "spec/volumes/0"
PVC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUMES_ALLOWED: tuple[dict[str, Any], ...] = (
    {"configMap": {"name": "settings", "optional": True}},
    {"csi": {"driver": "example.com"}},
    {"downwardAPI": {}},
    {"emptyDir": {}},
    {"ephemeral": {"volumeClaimTemplate": {"spec": PVC}}},
    {"persistentVolumeClaim": {"claimName": "data"}},
    {"projected": {"sources": []}},
    {"secret": {"secretName": "key"}},
)
VOLUMES_FORBIDDEN: tuple[dict[str, Any], ...] = (
    {"nfs": {"server": "nas", "path": "/"}},
    {"iscsi": {"targetPortal": "a", "iqn": "b", "lun": 0}},
    {"awsElasticBlockStore": {"volumeID": "v"}},
    {"gcePersistentDisk": {"pdName": "d"}},
    {"cephfs": {"monitors": ["m"]}},
    {"fc": {"lun": 0, "targetWWNs": ["w"]}},
    {"azureFile": {"secretName": "s", "shareName": "x"}},
    {"flexVolume": {"driver": "d"}},
    {"gitRepo": {"repository": "r"}},
)
# control, places, values that are refused, values that pass. None leaves the field out.
CONTROLS: tuple[tuple[str, tuple[str, ...], tuple[object, ...], tuple[object, ...]], ...] = (
    ("pss-host-process", everywhere("windowsOptions/hostProcess"), (True,), (False, None)),
    ("pss-host-namespaces", ("spec/hostNetwork", "spec/hostPID", "spec/hostIPC"), (True,), (False, None)),
    ("pss-privileged", each("securityContext/privileged"), (True,), (False, None)),
    (
        "pss-capabilities",
        each("securityContext/capabilities/add"),
        (["SYS_ADMIN"], ["NET_RAW"], ["ALL"], ["CAP_CHOWN"], ["NET_BIND_SERVICE", "SYS_PTRACE"]),
        (["NET_BIND_SERVICE"], [], None),
    ),
    (
        "pss-host-path",
        (VOLUME,),
        ({"name": "scratch", "hostPath": {"path": "/data"}},),
        ({"name": "scratch", "emptyDir": {}},),
    ),
    (
        "pss-host-ports",
        each("ports"),
        ([{"containerPort": 80, "hostPort": 80}],),
        ([{"containerPort": 80, "hostPort": 0}], [{"containerPort": 80}], None),
    ),
    ("pss-host-probes", hooks(), ({"port": 80, "host": "10.0.0.1"},), ({"port": 80, "host": ""}, {"port": 80})),
    (
        "pss-app-armor",
        everywhere("appArmorProfile"),
        ({"type": "Unconfined"},),
        ({"type": "RuntimeDefault"}, {"type": "Localhost", "localhostProfile": "mine"}, None),
    ),
    ("pss-app-armor", (APP_ARMOR,), ("unconfined",), ("runtime/default", "localhost/mine", "")),
    (
        "pss-selinux",
        everywhere("seLinuxOptions"),
        ({"type": "spc_t"}, {"user": "system_u"}, {"role": "system_r"}),
        (
            {"type": "container_t"},
            {"type": "container_init_t"},
            {"type": "container_kvm_t"},
            {"type": "container_engine_t"},
            {"type": "", "user": "", "role": ""},
            {"level": "s0:c1"},
            None,
        ),
    ),
    ("pss-proc-mount", each("securityContext/procMount"), ("Unmasked",), ("Default", None)),
    ("pss-seccomp", everywhere("seccompProfile/type"), ("Unconfined",), ("RuntimeDefault", "Localhost")),
    (
        "pss-sysctls",
        ("spec/securityContext/sysctls",),
        ([{"name": "kernel.msgmax", "value": "1"}], [{"name": "net.core.somaxconn", "value": "1"}]),
        (*([{"name": name, "value": "1"}] for name in SAFE_SYSCTLS), [], None),
    ),
    (
        "pss-volume-types",
        (VOLUME,),
        tuple({"name": "scratch", **volume} for volume in VOLUMES_FORBIDDEN),
        tuple({"name": "scratch", **volume} for volume in VOLUMES_ALLOWED),
    ),
    ("pss-privilege-escalation", each("securityContext/allowPrivilegeEscalation"), (True, None), (False,)),
    ("pss-non-root", ("spec/securityContext/runAsNonRoot",), (False, None), (True,)),
    ("pss-non-root", each("securityContext/runAsNonRoot"), (False,), (True, None)),
    ("pss-non-root-user", everywhere("runAsUser"), (0,), (1000, None)),
    ("pss-seccomp-set", ("spec/securityContext/seccompProfile",), (None,), ({"type": "RuntimeDefault"},)),
    ("pss-drop-all", each("securityContext/capabilities/drop"), (["NET_RAW"], [], None), (["ALL"], ["NET_RAW", "ALL"])),
    (
        "pss-added-capabilities",
        each("securityContext/capabilities/add"),
        tuple([name] for name in ADDABLE if name != "NET_BIND_SERVICE"),
        (["NET_BIND_SERVICE"], None),
    ),
)
REFUSED = [(rule, path, value) for rule, paths, bad, _ in CONTROLS for path in paths for value in bad]
ALLOWED = [(rule, path, value) for rule, paths, _, good in CONTROLS for path in paths for value in good]


def with_field(path: str, value: object) -> dict[str, Any]:
    made = changed(path.replace("~", "\0"), value)
    if "~" in path:
        annotations = made["metadata"]["annotations"]
        made["metadata"]["annotations"] = {key.replace("\0", "/"): text for key, text in annotations.items()}
    return made


def named(rule: str, path: str, value: object) -> str:
    return f"{rule} {path} {value}".replace(" ", "-").replace("/", ".")


def test_the_pod_that_they_start_from_is_good() -> None:
    assert told(pod()) == []


@pytest.mark.parametrize("control", sorted({rule for rule, *_ in CONTROLS}))
def test_what_a_control_forbids_is_refused_by_its_rule_alone(control: str) -> None:
    for rule, path, value in REFUSED:
        if rule == control:
            assert told(with_field(path, value)) == [rule], f"{path}: {value}"


@pytest.mark.parametrize("control", sorted({rule for rule, *_ in CONTROLS}))
def test_what_a_control_allows_passes(control: str) -> None:
    for rule, path, value in ALLOWED:
        if rule == control:
            assert told(with_field(path, value)) == [], f"{path}: {value}"


def test_every_control_has_a_case_that_passes_and_one_that_fails() -> None:
    names = {rule.name for group, rules in GROUPS.items() if group.startswith("Pod Security") for rule in rules}
    assert len(names) == 19
    assert names == {rule for rule, *_ in REFUSED} == {rule for rule, *_ in ALLOWED}


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("securityContext/runAsNonRoot", "pss-non-root"),
        ("securityContext/seccompProfile", "pss-seccomp-set"),
    ],
)
def test_what_every_container_sets_the_pod_need_not(path: str, rule: str) -> None:
    value = {"type": "RuntimeDefault"} if path.endswith("Profile") else True
    made = changed(f"spec/{path}", None)
    for place in each(path):
        made = changed(place, value, make=made)
    assert told(made) == []
    assert told(changed(f"spec/initContainers/0/{path}", None, make=made)) == [rule]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("securityContext/allowPrivilegeEscalation", None),
        ("securityContext/capabilities", None),
        ("securityContext/capabilities/add", ["CHOWN"]),
    ],
)
def test_what_is_for_linux_alone_is_not_asked_of_a_windows_pod(path: str, value: object) -> None:
    made = changed(f"spec/containers/0/{path}", value)
    assert told(made) != []
    assert told(changed("spec/os", {"name": "windows"}, make=made)) == []


def test_a_windows_pod_needs_no_seccomp_profile_and_still_no_root() -> None:
    made = changed("spec/os", {"name": "windows"}, make=changed("spec/securityContext/seccompProfile", None))
    assert told(made) == []
    assert told(changed("spec/securityContext/runAsNonRoot", None, make=made)) == ["pss-non-root"]
    assert told(changed("spec/containers/0/securityContext/capabilities/add", ["SYS_ADMIN"], make=pod())) == [
        "pss-capabilities"
    ]


def test_the_root_of_the_node_is_called_what_it_is() -> None:
    made = changed(VOLUME, {"name": "scratch", "hostPath": {"path": "/"}})
    assert "the whole disk of the node" in str(problems({"pod.yaml": yaml.safe_dump(made)})[0])
