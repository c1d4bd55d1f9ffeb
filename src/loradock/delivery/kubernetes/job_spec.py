"""The Job of a run, what follows when a pod of it fails, and what its pods may reach."""

from __future__ import annotations

from typing import Any

from loradock.delivery.kubernetes.container import RENDEZVOUS_PORT
from loradock.delivery.kubernetes.pod_spec import metadata, own_pods, template
from loradock.delivery.kubernetes.policy import pod_failure_policy
from loradock.delivery.kubernetes.workload import Workload

DNS, OPENSHIFTS_DNS = 53, 5353
"""OpenShift's own pods of DNS listen at another port than their service, and its network looks behind the service."""


def job_spec(workload: Workload, *, container: str, rendezvous: str | None, failures: int) -> dict[str, Any]:
    """`failures`: how many failed pods the Job bears before it fails itself."""
    content = {
        "backoffLimit": failures,
        "activeDeadlineSeconds": workload.deadline_seconds,
        "ttlSecondsAfterFinished": workload.ttl_seconds,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": pod_failure_policy(container),
        **indexed(workload),
        "template": template(workload, container=container, rendezvous=rendezvous),
    }
    return {key: value for key, value in content.items() if value is not None}


def indexed(workload: Workload) -> dict[str, Any]:
    """One pod a machine with its number; nothing where there is one machine."""
    if workload.nodes == 1:
        return {}
    return {"completionMode": "Indexed", "completions": workload.nodes, "parallelism": workload.nodes}


def headless_service(workload: Workload) -> dict[str, Any]:
    """Gives each pod of a Job a name before it is ready: the first one's is the rendezvous."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": workload.name},
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT, "protocol": "TCP"}],
        },
    }


def set_failure_policy(workload: Workload) -> dict[str, Any]:
    """Of a JobSet: what the Job's own policy failed is over; anything else starts the whole set again."""
    final = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {"maxRestarts": workload.failures, "rules": [final]}


def network() -> dict[str, Any]:
    """Of a JobSet: it makes the headless service itself, which names pods before they are ready."""
    return {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


def network_policy(workload: Workload) -> list[dict[str, Any]]:
    """A NetworkPolicy, where there is one; between the pods all ports, since gloo and NCCL choose theirs."""
    if workload.egress is None and not workload.is_guarded:
        return []
    peers = [{"podSelector": own_pods(workload)}] if workload.nodes > 1 else []
    spec: dict[str, Any] = {
        "podSelector": own_pods(workload),
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [peer]} for peer in peers],
    }
    if workload.egress is not None:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": _egress(workload, workload.egress, peers)}
    return [
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(workload), "spec": spec}
    ]


def _egress(workload: Workload, addresses: tuple[str, ...], peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """DNS, the run's own pods, and these addresses."""
    ports = (DNS, OPENSHIFTS_DNS) if workload.account.is_openshift else (DNS,)
    names = {"ports": [{"protocol": protocol, "port": port} for port in ports for protocol in ("UDP", "TCP")]}
    elsewhere = [{"ipBlock": {"cidr": address}} for address in addresses]
    return [names, *({"to": [rule]} for rule in (*peers, *elsewhere))]
