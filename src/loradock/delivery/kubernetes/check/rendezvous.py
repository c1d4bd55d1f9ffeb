"""Rules on the place where nodes meet: a host that there will be, and a port that leads to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from loradock.delivery.kubernetes.check.base import RUNTIMES, Manifest, rules
from loradock.delivery.kubernetes.check.command_line import option
from loradock.delivery.kubernetes.check.fields import Field, Found
from loradock.delivery.kubernetes.check.hosts import known, without_cluster
from loradock.delivery.kubernetes.check.meeting import counts, nnodes
from loradock.text.suggest import nearest

PORT = 29400
_OURS, _TORCHRUNS = ("--rdzv",), ("--rdzv-endpoint", "--rdzv_endpoint")
_MASTER, _MASTER_PORT = ("--master-addr", "--master_addr"), ("--master-port", "--master_port")
_ITSELF = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the nodes of a container are told to meet. `is_ours`: loradock needs a port, and node 0 as the host."""

    place: Field
    host: str
    port: str
    has_several: bool
    is_ours: bool = False
    is_anywhere: bool = False


def _meetings(manifest: Manifest) -> Iterator[Meeting]:
    """Every place of a meeting; what holds references that the manifest does not resolve is left out."""
    for pod in manifest.pods if manifest.kind not in RUNTIMES else ():
        for container in pod.main:
            ours, torchruns = option(container, *_OURS), option(container, *_TORCHRUNS)
            place = ours or torchruns or option(container, *_MASTER, variable="MASTER_ADDR")
            if place is None or "$" in place.text:
                continue
            apart = option(container, *_MASTER_PORT, variable="MASTER_PORT") or Field(None)
            host, port = _address(place.text) if ours or torchruns else (place.text, apart.text)
            nodes_set = nnodes(container)
            yield Meeting(
                place=place,
                host=host,
                port=port,
                has_several=max([*counts(manifest, pod), (nodes_set.count if nodes_set else None) or 1]) > 1,
                is_ours=ours is not None,
                is_anywhere=ours is None and torchruns is not None,
            )


def _address(text: str) -> tuple[str, str]:
    host, colon, port = text.rpartition(":")
    return (host, port) if colon else (text, "")


def rendezvous_host(manifest: Manifest) -> Iterator[Found]:
    """Nodes meet at the first pod, by a name that an object of the file makes."""
    names_made = list(known(manifest))
    firsts = [hosts.first for hosts in names_made if hosts.counts]
    for meeting in _meetings(manifest):
        host, name = meeting.host, without_cluster(meeting.host)
        numbers = next(
            (number_range for hosts in names_made if (number_range := hosts.numbers(name)) is not None), None
        )
        what = None
        if host.strip("[]") in _ITSELF:
            what = "where each node would wait for itself" if meeting.has_several else None
        elif numbers is None and _is_of_cluster(host):
            what = "a name that nothing in the file gives to a pod: the nodes never meet"
        elif numbers and any(numbers) and not meeting.is_anywhere:
            what = "which is not the first node: rank 0 keeps the rendezvous"
        if what is not None:
            yield meeting.place.found(f"is {host}, {what}", _first(firsts, host))


def _first(firsts: list[str], host: str) -> str:
    near = nearest(host, firsts, alike=0.0)
    return f"the first pod: {near}" if near else "a headless Service, subdomain: ITS NAME, and JOB-0.ITS NAME here"


def _is_of_cluster(host: str) -> bool:
    """True for a name that only the cluster could resolve; another one may lead anywhere."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return without_cluster(host) != host or host.count(".") <= 1
    return False


def rendezvous_port(manifest: Manifest) -> Iterator[Found]:
    """Nodes meet at a port of the Service (a warning where it is headless, and names ports only).

    A Service with an address forwards its ports alone; a headless one only names them.
    """
    for meeting in _meetings(manifest):
        if meeting.is_ours and not meeting.port:
            yield meeting.place.found("names no port, and loradock launch takes none by itself", f"HOST:{PORT}")
        name = without_cluster(meeting.host)
        service = manifest.neighbour("Service", name.partition(".")[2] or name)
        ports = [str(entry["port"].whole) for entry in service.spec["ports"]] if service else []
        if service and ports and meeting.port and meeting.port not in ports:
            is_headless = service.spec["clusterIP"].text == "None"
            what = f"says port {meeting.port}, and the Service {service.name} has {', '.join(ports)}"
            yield meeting.place.found(what, "make them one", level="warning" if is_headless else "error")


RULES = rules(rendezvous_host, rendezvous_port)
