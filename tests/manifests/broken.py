"""Broken manifests: the good one with one change each, the rule that refuses it, and the line that is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GOOD = (Path(__file__).parent / "good.yaml").read_text(encoding="utf-8")
JOB, INIT, TRAIN = "kind: Job\n", "initContainers:", "      containers:\n"
DIGEST = "@sha256:" + "0123456789abcdef" * 4


@dataclass(frozen=True, kw_only=True)
class Broken:
    """`old`, the first one after `after`, becomes `new`. The line named is the first that holds `at`, from `near` on.

    Without `near` that is from the changed line on; without `at` it is the changed line.
    """

    rule: str
    why: str
    old: str
    new: str
    says: str = ""
    after: str = ""
    at: str = ""
    near: str = ""

    @property
    def text(self) -> str:
        return GOOD[: self._start] + self.new + GOOD[self._start + len(self.old) :]

    @property
    def line(self) -> int:
        changed = GOOD.rindex("\n", 0, self._start) + 1 if self._start else 0
        begin = self.text.index(self.near) if self.near else changed
        return self.text.count("\n", 0, self.text.index(self.at, begin) if self.at else self._start) + 1

    @property
    def _start(self) -> int:
        return GOOD.index(self.old, GOOD.index(self.after))


def broken(rule: str, why: str, old: str, new: str, says: str = "", **where: str) -> Broken:
    return Broken(rule=rule, why=why, old=old, new=new, says=says, **where)


LONG = "a" * 64

BROKEN = (
    # schema and values
    broken("schema", "a misspelt field", "backoffLimit: 3", "backofLimit: 3", "did you mean backoffLimit?"),
    broken("schema", "a text where a number stands", "backoffLimit: 3", 'backoffLimit: "3"', "is text, not a whole number"),
    broken("schema", "a number as a variable's value", "value: demo-0.demo-peers", "value: 3", "not text (put it in quotes"),
    broken("schema", "a word that YAML 1.1 reads as true", "value: demo-0.demo-peers", "value: yes", "is true or false"),
    broken("schema", "a mapping where a list stands", "command: [fetch, /out]", "command: {fetch: /out}", "a mapping, not a list"),
    broken("schema", "a field that is missing", "                  key: token\n", "", "lacks key", at="secretKeyRef:", near="HF_TOKEN"),
    broken("schema", "a mapping as a quantity", "cpu: 500m", "cpu: {}", "not text or a number", at="requests: {cpu: {}"),
    broken("kind", "a kind that nobody knows", "kind: PersistentVolumeClaim", "kind: PersistentVolumeKlaim", "nothing in it was"),
    broken("kind", "an apiVersion of long ago", "apiVersion: batch/v1", "apiVersion: batch/v1beta1", "did you mean batch/v1 Job",
           at="kind: Job"),
    broken("kind", "no kind", "kind: PersistentVolumeClaim\n", "", "kind is missing", at="apiVersion", near="---"),
    broken("word", "a pull policy that is none", "imagePullPolicy: IfNotPresent", "imagePullPolicy: IfNotPresentt", "did you mean"),
    broken("word", "an access mode that is none", "ReadWriteMany", "ReadWriteAll", "is 'ReadWriteAll'", at="ReadWriteAll"),
    broken("number", "a negative parallelism", "parallelism: 2", "parallelism: -2", "write 0 or more"),
    broken("number", "a port beyond the last one", "containerPort: 29400", "containerPort: 99400", "write 1 to 65535"),
    broken("number", "a time to live below zero", "ttlSecondsAfterFinished: 604800", "ttlSecondsAfterFinished: -1"),
    # names
    broken("object-name", "large letters in a name", "name: demo-output\nspec", "name: Demo_Output\nspec", "demo-output",
           at="name: Demo_Output"),
    broken("object-name", "a Job's name too long for a label", "name: demo\n  namespace", f"name: {LONG}\n  namespace", "64 char",
           at="name: aaa"),
    broken("object-name", "no name", "  name: demo-output\nspec", "  labels: {}\nspec", "is missing", at="metadata:",
           near="kind: PersistentVolumeClaim"),
    broken("object-name", "a namespace with a dot", "namespace: training", "namespace: team.training", "RFC 1123"),
    broken("container-name", "two containers of one name", "- name: fetch", "- name: train", "so is another", at="- name: train",
           near=INIT),
    broken("container-name", "an underscore in a container's name", "- name: fetch", "- name: fetch_it", "RFC 1123"),
    broken("volume-name", "two volumes of one name", "        - name: shm\n          emptyDir",
           "        - name: output\n          emptyDir: {}\n        - name: shm\n          emptyDir", "so is another",
           at="- name: output"),
    broken("label", "a label with a space", "app.kubernetes.io/name: loradock\ndata", "app.kubernetes.io/name: lora dock\ndata",
           "no label may be", at="name: lora dock"),
    broken("label", "a label's key with two slashes", "    app.kubernetes.io/name: loradock\ndata",
           "    app/kubernetes.io/name: loradock\ndata", "a key that Kubernetes refuses", at="app/kubernetes.io/name"),
    broken("label", "an annotation's key without a name", "loradock.dev/run-id: run-1", "loradock.dev/: run-1", "a key that"),
    # containers
    broken("containers", "a pod without containers", GOOD[GOOD.index(TRAIN) :], "      containers: []\n", "nothing would run"),
    broken("image", "no image", f"          image: registry.example.com/fetch{DIGEST}\n", "", "image is missing", at="- name: fetch", near=INIT),
    broken("image", "an image's name with a space", "registry.example.com/fetch", "registry.example.com/my fetch", "no image's",
           at="my fetch"),
    broken("image-latest", "an image as :latest", f"fetch{DIGEST}", "fetch:latest", at="fetch:latest"),
    broken("image-latest", "an image without a tag", f"example.com/fetch{DIGEST}", "example.com:5000/fetch", at="com:5000/fetch"),
    broken("image-digest", "an image by its tag", f"fetch{DIGEST}", "fetch:1.2", "a tag can be moved", at="fetch:1.2"),
    broken("image-digest", "a digest cut short", f"fetch{DIGEST}", "fetch@sha256:0123", "a digest that is none", at="sha256:0123"),
    broken("variable-twice", "a variable set twice", "            - name: HF_TOKEN\n",
           "            - name: HEAD\n              value: other\n            - name: HF_TOKEN\n", "a second time",
           at="- name: HEAD\n              value: other"),
    broken("variable-source", "a value and a source", "              valueFrom:\n", "              value: $(HEAD)\n              valueFrom:\n",
           "beside a value", at="valueFrom:"),
    broken("variable-reference", "an argument that refers to nothing", "$(HEAD):29400", "$(HEADD):29400", "$(HEADD)", at="args:"),
    broken("variable-reference", "a variable used before it is defined", "            - name: HEAD\n",
           "            - name: URL\n              value: http://$(HEAD)\n            - name: HEAD\n", "$(HEAD)", at="value: http"),
    broken("secret-variable", "a token in the open", "            - name: HF_TOKEN\n",
           "            - name: WANDB_API_KEY\n              value: 0a1b2c3d4e5f\n            - name: HF_TOKEN\n",
           "stands in the open", at="value: 0a1b"),
    broken("secret-variable", "a token as an argument", "command: [fetch, /out]", "command: [fetch, hf_abcdefgh123456]", "in the open"),
    broken("secret-object", "a token in a ConfigMap", "      name: base\n", "      name: base\n      token: hf_abcdefgh123456\n",
           "holds a secret", at="config.yaml: |", near="data:"),
    broken("secret-object", "a Secret with its value", "kind: ConfigMap", "kind: Secret", "base64 or not", at="config.yaml: |"),
    # quantities
    broken("quantity", "gigabytes by another name", "storage: 50Gi", "storage: 50Gb", "no quantity"),
    broken("quantity", "a space in a quantity", "sizeLimit: 8Gi", "sizeLimit: 8 Gi", "no quantity"),
    broken("quantity", "a negative amount", "storage: 50Gi", "storage: -50Gi", "less than nothing"),
    broken("quantity", "memory in thousandths", "sizeLimit: 8Gi", "sizeLimit: 8000m", "is 8000m, which is 8 bytes"),
    broken("whole-cards", "half a card", "nvidia.com/gpu: 1\n            limits", 'nvidia.com/gpu: "0.5"\n            limits',
           "handed out whole", at='"0.5"'),
    broken("card-requests", "a card requested without a limit", "              nvidia.com/gpu: 1\n          securityContext",
           "          securityContext", "has no limit", at="nvidia.com/gpu: 1", near=TRAIN),
    broken("card-requests", "another number of cards as the limit", "nvidia.com/gpu: 1\n            limits",
           "nvidia.com/gpu: 2\n            limits", "one number", at="nvidia.com/gpu: 2"),
    broken("request-over-limit", "a request above its limit", "memory: 64Gi", "memory: 65Gi", "the limit is 64Gi"),
    broken("memory-limit", "no limit of memory", "              memory: 64Gi\n", "", "is missing", after="limits:\n", at="limits:",
           near=TRAIN),
    broken("storage-limit", "no limit of ephemeral storage", "limits: {cpu: 500m, memory: 1Gi, ephemeral-storage: 1Gi}",
           "limits: {cpu: 500m, memory: 1Gi}", "is missing"),
    # volumes
    broken("mount-volume", "a mount of no volume", "            - name: output\n              mountPath: /out\n      containers",
           "            - name: outputs\n              mountPath: /out\n      containers", "there is config, output, shm"),
    broken("volume-unused", "a volume that nobody mounts", "            - name: config\n              mountPath: /etc/loradock\n", "",
           "no container mounts", at="- name: config", near="      volumes:"),
    broken("mount-path", "two mounts at one path", "mountPath: /etc/loradock", "mountPath: /out/", "mounted already",
           at="mountPath: /out\n", near=TRAIN),
    broken("mount-path", "a relative path", "mountPath: /etc/loradock", "mountPath: etc/loradock", "no absolute path"),
    broken("volume-source", "a volume that is two things", "          persistentVolumeClaim:\n",
           "          emptyDir: {}\n          persistentVolumeClaim:\n", "emptyDir and persistentVolumeClaim", at="- name: output",
           near="      volumes:"),
    broken("key-reference", "a key that the ConfigMap lacks", "            defaultMode: 0444\n",
           "            items: [{key: run.yaml, path: config.yaml}]\n", "it has config.yaml"),
    broken("key-reference", "a mount of a file that the ConfigMap lacks", "              mountPath: /etc/loradock\n",
           "              mountPath: /etc/loradock\n              subPath: run.yaml\n", "lacks", at="subPath: run.yaml"),
    broken("shared-memory", "nothing at /dev/shm", "mountPath: /dev/shm", "mountPath: /scratch", "64 MB", at="volumeMounts:",
           near="livenessProbe:"),
    broken("shared-memory", "a disk at /dev/shm", "            medium: Memory\n", "", "lies on a disk", at="emptyDir:", near="- name: shm"),
    broken("shared-memory-size", "more shared memory than memory", "sizeLimit: 8Gi", "sizeLimit: 80Gi", "more than the memory limit"),
    # starting and stopping
    broken("probe-handler", "a probe in two ways", "            periodSeconds: 10\n",
           "            periodSeconds: 10\n            tcpSocket: {port: 29400}\n", "exec and tcpSocket", at="startupProbe:", near=TRAIN),
    broken("liveness-startup", "liveness without a startup probe",
           "          startupProbe:\n            exec:\n              command: [healthcheck]\n            periodSeconds: 10\n"
           "            failureThreshold: 60\n", "", "killed while it starts", at="livenessProbe:"),
    broken("liveness-window", "liveness that kills after 30 s", "periodSeconds: 30", "periodSeconds: 10", "after 30 s",
           at="livenessProbe:", near=TRAIN),
    broken("grace-period", "a negative grace period", "terminationGracePeriodSeconds: 180", "terminationGracePeriodSeconds: -1",
           "less than nothing"),
    broken("grace-period", "a grace period shorter than a save", "terminationGracePeriodSeconds: 180",
           "terminationGracePeriodSeconds: 20", "is 20 s: a step"),
    broken("grace-period", "no grace period", "      terminationGracePeriodSeconds: 180\n", "", "which means 30 s", at="    spec:",
           near="instance: demo\n    spec"),
    broken("active-deadline", "a deadline shorter than the grace period", "activeDeadlineSeconds: 86400",
           "activeDeadlineSeconds: 100", "stopping alone"),
    # jobs
    broken("restart-policy", "a Job that restarts for ever", "restartPolicy: Never", "restartPolicy: Always", "does not take it"),
    broken("restart-policy", "no restart policy", "      restartPolicy: Never\n", "", "which means Always", at="    spec:",
           near="instance: demo\n    spec"),
    broken("failure-policy-restart", "OnFailure beside podFailurePolicy", "restartPolicy: Never", "restartPolicy: OnFailure",
           "never sees its exit code"),
    broken("backoff-limit", "a negative backoff limit", "backoffLimit: 3", "backoffLimit: -3", "less than nothing"),
    broken("completions", "indexes without a number", "  completions: 2\n", "", "is missing", at="spec:", near="run-1"),
    broken("completions", "more pods at once than in all", "parallelism: 2", "parallelism: 3", "only 2 pods"),
    broken("indexed", "nodes without an index", "  completionMode: Indexed\n", "", "is not Indexed", at="spec:", near="run-1"),
    broken("nodes", "nodes that never all run", "parallelism: 2", "parallelism: 1", "never all run"),
    broken("nodes", "another number of nodes than pods", '--nnodes, "2"', '--nnodes, "4"', "says 4 nodes", at="args:"),
    broken("queue", "suspended without a queue", "    kueue.x-k8s.io/queue-name: gpus\n", "", "nobody would start it", at="suspend: true",
           near=JOB),
    broken("queue", "a queue without suspension", "  suspend: true\n", "", "before it is admitted", at="queue-name", near=JOB),
    broken("failure-policy-zero", "exit code 0 in a rule", "values: [75]", "values: [0, 75]", "is 0, which is success"),
    broken("failure-policy-values", "exit codes out of order", "values: [64, 65, 66, 77, 78]", "values: [64, 66, 65, 77, 78]", "in order"),
    broken("failure-policy-values", "an exit code that there is not", "values: [75]", "values: [75, 300]", "go up to 255"),
    broken("failure-policy-action", "an action that there is not", "- action: FailJob", "- action: Fail", "no action"),
    broken("failure-policy-condition", "a rule without a condition",
           "        onPodConditions:\n          - type: DisruptionTarget\n            status: \"True\"\n", "", "no condition",
           at="- action: Ignore", near=JOB),
    broken("failure-policy-container", "a rule for no container", "containerName: train", "containerName: trainer", "there is fetch, train"),
    broken("failure-policy-codes", "a stop by a signal that ends the Job", "values: [64, 65, 66, 77, 78]",
           "values: [64, 65, 66, 75, 77, 78]", "a new pod goes on"),
    broken("failure-policy-codes", "bad data ignored for ever", "values: [75]", "values: [75, 83]", "for ever"),
    # services and nodes
    broken("service-selector", "a Service that selects no pod", "app.kubernetes.io/instance: demo\n  ports",
           "app.kubernetes.io/instance: other\n  ports", "app.kubernetes.io/instance: demo", at="instance: other"),
    broken("headless-service", "a subdomain without a Service", "subdomain: demo-peers", "subdomain: demo-nodes", "lead nowhere"),
    broken("headless-service", "a Service with an address", "  clusterIP: None\n", "", "an address of its own", at="subdomain:",
           near=JOB),
    broken("topology-spread", "a spread without a selector",
           "          labelSelector:\n            matchLabels:\n              app.kubernetes.io/instance: demo\n", "",
           "counts no pod", at="- maxSkew: 1", near="tolerations:"),
    broken("topology-spread", "a spread that counts other pods", "              app.kubernetes.io/instance: demo\n",
           "              app.kubernetes.io/instance: other\n", "does not select this pod", at="labelSelector:", near="maxSkew"),
    broken("node-selector", "a node selector against the affinity", "kubernetes.io/arch: amd64", "kubernetes.io/arch: arm64",
           "fits nowhere"),
    broken("toleration", "Exists with a value", "          operator: Exists\n", "          operator: Exists\n          value: x\n",
           "takes none", at="value: x"),
    broken("toleration", "a toleration without a key", "        - key: nvidia.com/gpu\n          operator: Exists\n          effect",
           "        - effect", "has no key", at="- effect: NoSchedule"),
)
