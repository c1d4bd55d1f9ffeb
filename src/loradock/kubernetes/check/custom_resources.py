"""The fields of JobSet, TrainJob and training runtimes, which are not among Kubernetes' own schemas.

Written down by hand from kubernetes-sigs/jobset `api/jobset/v1alpha2` and kubeflow/trainer `pkg/apis/trainer/v1alpha1`
(2.2 and later). A name ending in `!` is a field that must be there; [type] is a list, "texts" a mapping of texts, "any"
is not looked into, and a long name is a definition of Kubernetes.
"""

from __future__ import annotations

CORE, BATCH = "io.k8s.api.core.v1", "io.k8s.api.batch.v1"
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

Type = str | list[str]

KINDS = {
    "jobset.x-k8s.io/v1alpha2/JobSet": "JobSet",
    "trainer.kubeflow.org/v1alpha1/TrainJob": "TrainJob",
    "trainer.kubeflow.org/v1alpha1/TrainingRuntime": "TrainingRuntime",
    "trainer.kubeflow.org/v1alpha1/ClusterTrainingRuntime": "TrainingRuntime",
}
"""The schema of each kind, by its apiVersion and name."""

SCHEMAS: dict[str, dict[str, Type]] = {
    "JobSet": {
        "apiVersion": "string",
        "kind": "string",
        "metadata": METADATA,
        "spec!": "JobSetSpec",
        "status": "any",
    },
    "JobSetSpec": {
        "replicatedJobs!": ["ReplicatedJob"],
        "network": "Network",
        "successPolicy": "SuccessPolicy",
        "failurePolicy": "FailurePolicy",
        "startupPolicy": "StartupPolicy",
        "suspend": "boolean",
        "coordinator": "Coordinator",
        "managedBy": "string",
        "ttlSecondsAfterFinished": "integer",
        "activeDeadlineSeconds": "integer",
        "volumeClaimPolicies": "any",
    },
    "ReplicatedJob": {
        "name!": "string",
        "groupName": "string",
        "replicas": "integer",
        "template!": f"{BATCH}.JobTemplateSpec",
        "dependsOn": ["DependsOn"],
    },
    "DependsOn": {"name!": "string", "status!": "string"},
    "Network": {"enableDNSHostnames": "boolean", "subdomain": "string", "publishNotReadyAddresses": "boolean"},
    "SuccessPolicy": {"operator!": "string", "targetReplicatedJobs": ["string"]},
    "FailurePolicy": {"maxRestarts": "integer", "restartStrategy": "string", "rules": ["FailurePolicyRule"]},
    "FailurePolicyRule": {
        "name": "string",
        "action!": "string",
        "onJobFailureReasons": ["string"],
        "targetReplicatedJobs": ["string"],
    },
    "StartupPolicy": {"startupPolicyOrder!": "string"},
    "Coordinator": {"replicatedJob!": "string", "jobIndex": "integer", "podIndex": "integer"},
    "TrainJob": {
        "apiVersion": "string",
        "kind": "string",
        "metadata": METADATA,
        "spec!": "TrainJobSpec",
        "status": "any",
    },
    "TrainJobSpec": {
        "runtimeRef!": "RuntimeRef",
        "initializer": "Initializer",
        "trainer": "Trainer",
        "runtimePatches": ["RuntimePatch"],
        "suspend": "boolean",
        "activeDeadlineSeconds": "integer",
        "managedBy": "string",
    },
    "RuntimeRef": {"name!": "string", "apiGroup": "string", "kind": "string"},
    "Initializer": {"dataset": "DatasetInitializer", "model": "ModelInitializer"},
    "DatasetInitializer": {
        "storageUri": "string",
        "env": [f"{CORE}.EnvVar"],
        "secretRef": f"{CORE}.LocalObjectReference",
    },
    "ModelInitializer": {
        "storageUri": "string",
        "env": [f"{CORE}.EnvVar"],
        "secretRef": f"{CORE}.LocalObjectReference",
    },
    "Trainer": {
        "image": "string",
        "command": ["string"],
        "args": ["string"],
        "env": [f"{CORE}.EnvVar"],
        "numNodes": "integer",
        "resourcesPerNode": f"{CORE}.ResourceRequirements",
        "numProcPerNode": "integer",
    },
    "RuntimePatch": {"manager!": "string", "time": "string", "trainingRuntimeSpec": "RuntimeSpecPatch"},
    "RuntimeSpecPatch": {"template": "JobSetTemplatePatch"},
    "JobSetTemplatePatch": {"metadata": "Metadata", "spec": "JobSetSpecPatch"},
    "JobSetSpecPatch": {"replicatedJobs": ["ReplicatedJobPatch"]},
    "ReplicatedJobPatch": {"name!": "string", "template": "JobTemplatePatch"},
    "JobTemplatePatch": {"metadata": "Metadata", "spec": "JobSpecPatch"},
    "JobSpecPatch": {"template": "PodTemplatePatch"},
    "PodTemplatePatch": {"metadata": "Metadata", "spec": "PodSpecPatch"},
    "Metadata": {"labels": "texts", "annotations": "texts"},
    "PodSpecPatch": {
        "serviceAccountName": "string",
        "volumes": [f"{CORE}.Volume"],
        "initContainers": ["ContainerPatch"],
        "containers": ["ContainerPatch"],
        "imagePullSecrets": [f"{CORE}.LocalObjectReference"],
        "securityContext": f"{CORE}.PodSecurityContext",
        "nodeSelector": "texts",
        "affinity": f"{CORE}.Affinity",
        "tolerations": [f"{CORE}.Toleration"],
        "schedulingGates": [f"{CORE}.PodSchedulingGate"],
    },
    "ContainerPatch": {
        "name!": "string",
        "env": [f"{CORE}.EnvVar"],
        "volumeMounts": [f"{CORE}.VolumeMount"],
        "securityContext": f"{CORE}.SecurityContext",
    },
    "TrainingRuntime": {
        "apiVersion": "string",
        "kind": "string",
        "metadata": METADATA,
        "spec!": "TrainingRuntimeSpec",
    },
    "TrainingRuntimeSpec": {"mlPolicy": "any", "podGroupPolicy": "any", "template!": "JobSetTemplate"},
    "JobSetTemplate": {"metadata": METADATA, "spec": "JobSetSpec"},
}
