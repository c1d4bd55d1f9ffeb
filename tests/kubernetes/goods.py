"""Good manifests: the Job of good.yaml, and those of the other kinds, made from its pod."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from loradock.delivery.kubernetes.check.reading import read

GOOD = (Path(__file__).parent / "good.yaml").read_text(encoding="utf-8")
DIGEST = "@sha256:" + "0123456789abcdef" * 4
CONFIG_MAP = GOOD.split("---\n")[0]
JOB: dict[str, Any] = next(made.root.value for made in read(GOOD, file="good.yaml")[0] if made.kind == "Job")  # type: ignore[assignment]
IMAGE = f"registry.example.com/loradock{DIGEST}"


def dumped(*objects: dict[str, Any]) -> str:
    """The objects, and the ConfigMap that their pods mount."""
    text = yaml.safe_dump_all(deepcopy(list(objects)), sort_keys=False, default_flow_style=False, width=200)
    return f"{text}---\n{CONFIG_MAP}"


def template(**spec: Any) -> dict[str, Any]:
    """The good Job's pod without what belongs to a group of nodes."""
    made = deepcopy(JOB["spec"]["template"])
    made["spec"]["containers"][0]["args"] = ["train", "/etc/loradock/config.yaml"]
    made["spec"].pop("subdomain")
    made["spec"].update(spec)
    return made


def of(version: str, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "demo", **metadata}, "spec": spec}


QUEUED = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
REPLICATED: dict[str, Any] = {
    "name": "node",
    "replicas": 1,
    "template": {"spec": {"backoffLimit": 0, "template": template()}},
}
JOBSET = dumped(
    of(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {
            "suspend": True,
            "network": {"enableDNSHostnames": True},
            "coordinator": {"replicatedJob": "node", "jobIndex": 0, "podIndex": 0},
            "failurePolicy": {
                "maxRestarts": 3,
                "rules": [{"action": "RestartJobSet", "targetReplicatedJobs": ["node"]}],
            },
            "replicatedJobs": [REPLICATED],
        },
        **QUEUED,
    )
)
_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_PATCH = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {"name": "node", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}], "securityContext": _SECURITY}
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
}
_NODE = deepcopy(REPLICATED)
_NODE["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "node"
RUNTIME = of(
    "trainer.kubeflow.org/v1alpha1",
    "ClusterTrainingRuntime",
    {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [_NODE]}}},
)
TRAINJOB = dumped(
    of(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "numNodes": 2,
                "numProcPerNode": 4,
                "args": ["launch", "--nnodes", "$(PET_NNODES)", "train"],
                "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
                "resourcesPerNode": {"limits": {"memory": "64Gi", "ephemeral-storage": "20Gi", "nvidia.com/gpu": 4}},
            },
            "runtimePatches": [
                {
                    "manager": "loradock.dev/render",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [
                                    {"name": "node", "template": {"spec": {"template": {"spec": _PATCH}}}},
                                ]
                            }
                        }
                    },
                }
            ],
        },
    ),
    RUNTIME | {"metadata": {"name": "torch-distributed"}},
)
CRONJOB = dumped(
    of("batch/v1", "CronJob", {"schedule": "0 2 * * *", "jobTemplate": {"spec": {"template": template()}}}),
)
POD = dumped({**of("v1", "Pod", template()["spec"]), "metadata": {"name": "demo", **template()["metadata"]}})
DEPLOYMENT = dumped(
    of(
        "apps/v1",
        "Deployment",
        {"selector": {"matchLabels": template()["metadata"]["labels"]}, "template": template(restartPolicy="Always")},
    )
)
LIST = dumped({"apiVersion": "v1", "kind": "List", "items": list(yaml.safe_load_all(JOBSET + "---\n" + POD))[::2]})
GOODS = {
    "Job": GOOD,
    "Service": GOOD.split("---\n")[2],
    "JobSet": JOBSET,
    "TrainJob": TRAINJOB,
    "ClusterTrainingRuntime": dumped(RUNTIME),
    "CronJob": CRONJOB,
    "Pod": POD,
    "Deployment": DEPLOYMENT,
    "List": LIST,
}
