"""Why a field of a rendered manifest is there: the comments of `loradock render --explain`.

A table of endings of a field's path; the longest that fits is taken. Reasons of sizes come from the sizes themselves.
"""

from __future__ import annotations

from loradock.delivery.kubernetes.policy import POLICY
from loradock.delivery.kubernetes.sizes import Sizes
from loradock.delivery.kubernetes.workload import Workload
from loradock.delivery.kubernetes.write import Explain, Path

FIXED: dict[tuple[str, ...], str] = {
    ("ConfigMap", "immutable"): "a change of the configuration is another object, its digest in the name",
    (
        "ConfigMap",
        "data",
    ): "relative paths in it begin at the container's working directory\n`output` is moved to the output's volume",
    ("Service", "spec", "clusterIP"): "headless: a name for each pod",
    ("spec", "publishNotReadyAddresses"): "ranks find one another before any pod is ready",
    ("annotations", "loradock/run-id"): "which run this is: --run-id, else the name with the configuration's digest",
    ("annotations", "loradock/lock-sha256"): "the first 32 digits of the lock of the packages",
    ("labels", "kueue.x-k8s.io/queue-name"): "Kueue admits it from this queue when all its pods fit",
    ("spec", "suspend"): "begins suspended: the queue lets it start",
    ("spec", "restartPolicy"): "a failed container is not started again in place: the policy of the Job decides",
    ("spec", "podReplacementPolicy"): "the next pod begins when the last one has ended: two never write one run",
    ("spec", "podFailurePolicy"): "by the exit code (src/loradock/errors.py); the first rule that fits decides",
    ("spec", "activeDeadlineSeconds"): "asked for: ends it whatever it does, also where exit code 75 is ignored",
    ("spec", "ttlSecondsAfterFinished"): "asked for: deleted so long after its end, with its pods and their logs",
    (
        "NetworkPolicy",
        "spec",
        "ingress",
    ): "from the run's own pods, where there are several; all ports, since gloo and NCCL choose theirs",
    ("NetworkPolicy", "spec", "egress"): "DNS, the run's own pods, and what --allow-egress names",
    ("spec", "automountServiceAccountToken"): "a training needs no access to the cluster",
    ("spec", "enableServiceLinks"): "no variables for every service of the namespace",
    ("spec", "completionMode"): "each pod has its number: the rank of its machine",
    ("spec", "subdomain"): "the headless service gives the pods their host names",
    ("spec", "topologySpreadConstraints"): "one pod a machine",
    ("spec", "affinity"): "near one another, where there is room",
    ("spec", "mlPolicy"): "no torch policy: `loradock launch` starts the processes and keeps exit codes and signals",
    ("spec", "runtimePatches"): "Trainer 2.2 or later; what is this run's own on top of the runtime",
    ("spec", "failurePolicy"): "what the Job's policy failed is over; anything else restarts all nodes",
    ("securityContext", "fsGroupChangePolicy"): "a large volume is not walked through at each start",
    ("securityContext", "fsGroup"): "volumes become writable for the run",
    ("securityContext", "runAsUser"): "the image's own user; any other works too",
    ("securityContext", "readOnlyRootFilesystem"): "everything that is written lies on a volume",
    ("resources", "requests"): "as the limits: what the plan counted on is there, and the pod is evicted late",
    ("startupProbe", "exec"): "done with the first heartbeat",
    ("livenessProbe", "exec"): "the image's own healthcheck: how old is the heartbeat?",
    ("hostPath", "path"): "of the node itself; Pod Security `baseline` and `restricted` refuse it",
    ("valueFrom", "secretKeyRef"): "the value stays in the Secret",
    ("initContainers", "0", "name"): "fills the data volume before the training starts",
}


def explain(workload: Workload) -> Explain:
    """The reasons for the fields of this workload's objects; several lines where a rule has several codes."""
    table = {**FIXED, **_of_policy(), **_of_sizes(workload.sizes, workload.card_resource)}
    if workload.account.is_openshift:
        table["securityContext", "runAsNonRoot"] = "OpenShift gives uid and fsGroup itself"

    def reason(path: Path) -> str | None:
        texts = tuple(str(part) for part in path)
        return next((table[texts[start:]] for start in range(len(texts)) if texts[start:] in table), None)

    return reason


def _of_policy() -> dict[tuple[str, ...], str]:
    """The rules in the order of `pod_failure_policy`."""
    failing, ignored, counted = (_codes(action) for action in ("FailJob", "Ignore", "Count"))
    disrupted = "preempted, drained or evicted: not the run's fault"
    rules = (f"no other try:\n{failing}", disrupted, f"costs no try:\n{ignored}", f"one try less:\n{counted}")
    return {("podFailurePolicy", "rules", str(index), "action"): why for index, why in enumerate(rules)}


def _codes(action: str) -> str:
    return "\n".join(f"  {code.code}: {code.why}" for code in POLICY if code.action == action)


def _of_sizes(sizes: Sizes, card_resource: str) -> dict[tuple[str, ...], str]:
    return {
        ("spec", "terminationGracePeriodSeconds"): sizes.grace_seconds.why,
        ("limits", "cpu"): sizes.cpus.why,
        ("limits", "memory"): sizes.memory_bytes.why,
        ("limits", "ephemeral-storage"): sizes.storage_bytes.why,
        ("limits", card_resource): sizes.gpus.why,
        ("startupProbe", "failureThreshold"): sizes.start_seconds.why,
        ("livenessProbe", "failureThreshold"): sizes.silence_seconds.why,
        ("emptyDir", "medium"): f"in RAM, and part of the memory limit: {sizes.shm_bytes.why}",
    }
