"""What the pods of a run may reach, and who may reach them: one another, names in DNS, and what was asked for."""

from __future__ import annotations

from typing import Any

from loradock.kubernetes.pod_spec import metadata, own_pods
from loradock.kubernetes.workload import Workload

DNS, OPENSHIFTS_DNS = 53, 5353
"""OpenShift's own pods of DNS listen at another port than their service, and its network looks behind the service."""


def network_policy(workload: Workload) -> list[dict[str, Any]]:
    """A NetworkPolicy, where one was asked for; between the pods all ports, since gloo and NCCL choose theirs."""
    if workload.egress is None:
        return []
    peers = [{"podSelector": own_pods(workload)}] if workload.nodes > 1 else []
    ports = (DNS, OPENSHIFTS_DNS) if workload.account.is_openshift else (DNS,)
    names = {"ports": [{"protocol": protocol, "port": port} for port in ports for protocol in ("UDP", "TCP")]}
    elsewhere = [{"ipBlock": {"cidr": address}} for address in workload.egress]
    reached = [{"to": [each]} for each in (*peers, *elsewhere)]
    spec = {
        "podSelector": own_pods(workload),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [each]} for each in peers],
        "egress": [names, *reached],
    }
    return [
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(workload), "spec": spec}
    ]
