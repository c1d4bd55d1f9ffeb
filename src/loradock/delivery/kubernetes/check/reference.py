"""The page made from the rules: docs/manifest-check.md."""

from __future__ import annotations

from loradock.delivery.kubernetes.check import GROUPS, RULES
from loradock.delivery.kubernetes.check.base import Rule
from loradock.delivery.kubernetes.check.health import LEAST_GRACE_SECONDS, LEAST_WINDOW_SECONDS
from loradock.delivery.kubernetes.check.pod_security import STANDARD
from loradock.delivery.kubernetes.check.schema import KUBERNETES

HEAD = """\
# Checking a Kubernetes manifest

<!-- Made from the rules: pytest tests/kubernetes --write-manifest-rules -->

    loradock render --check job.yaml             # ours or any other; several with --check A --check B
    loradock render --check job.yaml --json      # as JSON, and all where there are more than 20
    loradock render --check job.yaml --strict    # warnings are errors
    loradock render --check job.yaml --skip image-digest

It needs no cluster. Everything that is wrong with every object in the files, of every class, is reported at once, with
its line, the rule and a remedy. **Errors** are what Kubernetes refuses, what cannot work, loses work or endangers
others: the exit code is 78. **Warnings** are what works and may not be meant, or what files alone cannot tell: the
exit code stays 0, unless `--strict` makes them errors. `--skip RULE`, as often as needed, leaves a rule out:

```
{example}```

## What is read, and against what

- Files of several documents, and `List`; all files of one call are looked at side by side, as they would be applied.
  YAML is read as Kubernetes reads it: an unquoted `yes` or `on` is a truth value, 0644 is octal. Refused: a key given
  twice, merge keys (`<<`), tags, aliases that expand beyond 10 000 values, nesting beyond 32 levels, more than 1 MB.
- The schemas of Kubernetes {kubernetes} for its own kinds, read strictly, and what the API server refuses beyond them:
  fixed words, ranges, names, labels, quantities (`delivery/kubernetes/check/api_server.yaml`). JobSet (v1alpha2),
  TrainJob, TrainingRuntime and ClusterTrainingRuntime (v1alpha1, Trainer 2.2 and later) from their published fields.
  Another kind is a problem: it is reported as unknown, not skipped.
- The [Pod Security Standards](https://kubernetes.io/docs/concepts/security/pod-security-standards/) as published for
  Kubernetes {standard}: each control of baseline and restricted is a rule `pss-...`, for main, init and ephemeral
  containers, and tried there with values that it forbids and that it allows. What the standard asks of Linux alone is
  not asked where `spec.os.name` is `windows`. The relaxations that a cluster may grant to pods with user namespaces
  (`hostUsers: false`) are not granted here.
- Some rules hold for what trains: a container that asks for a GPU, runs `loradock` or `torchrun`, or whose image's
  name holds loradock. It needs {grace} s to stop, /dev/shm in memory, a liveness probe that waits for the start and for
  {window} s of silence.
- What `train` is given from a ConfigMap of the files is read as loradock reads it, with the options beside it; its
  problems are reported at their lines of the manifest, where it stands in a block (`|`).
- Command lines are read through `sh -c` and the variables that the manifest gives; what else they refer to is left.

## What it cannot know

- What is in the cluster: claims, Secrets, queues, priority classes, node labels, quotas, admission policies.
  `kubectl apply --dry-run=server --filename FILE` asks it.
- What a TrainJob's runtime holds, unless a file has it: only what its trainer and patches say is judged, and a warning
  says so. What lies in the image, and whether a host outside the cluster (a name with two dots, an address) is there.
- Values of fields that the schema calls text and no rule here knows.
"""


EXAMPLE = """\
warning: job.yaml:124: image-digest: spec.template.spec.initContainers[0].image is registry.example.com/fetch:1.2: a \
tag can be moved, a digest cannot (docker image inspect --format '{{index .RepoDigests 0}}' IMAGE)
error: 6 problem(s) in 1 file(s)
  job.yaml:10: configuration: data['config.yaml']: unknown key: model.names (did you mean model.name?)
  job.yaml:49: schema: spec.backofLimit is an unknown field (did you mean backoffLimit?)
  job.yaml:71: schema: spec.podFailurePolicy.rules[2].onExitCodes.values[0] is 0, which is success: a rule is for \
failures (delete the 0)
  job.yaml:121: schema: spec.template.spec.volumes[2].emptyDir.sizeLimit is '8Gb', not a quantity (a number of \
0 or more and k, M, G, Ki, Mi or Gi: 16Gi; for CPUs 500m or 4)
  job.yaml:141: processes: spec.template.spec.containers[0].args[2] starts 2 processes on 1 GPU(s), and NCCL needs a \
GPU for each (write 1, or a limit of 2 GPUs)
  job.yaml:166: pss-privileged: spec.template.spec.containers[0].securityContext.privileged gives the container the \
node (delete it; GPUs come through the device plugin)
"""
TESTS = "tests/kubernetes/test_pod_security.py"
CONTROLS = {
    "pss-host-process": "HostProcess",
    "pss-host-namespaces": "Host Namespaces",
    "pss-privileged": "Privileged Containers",
    "pss-capabilities": "Capabilities (baseline)",
    "pss-host-path": "HostPath Volumes",
    "pss-host-ports": "Host Ports",
    "pss-host-probes": "Host Probes / Lifecycle Hooks",
    "pss-app-armor": "AppArmor",
    "pss-selinux": "SELinux",
    "pss-proc-mount": "/proc Mount Type",
    "pss-seccomp": "Seccomp (baseline)",
    "pss-sysctls": "Sysctls",
    "pss-volume-types": "Volume Types",
    "pss-privilege-escalation": "Privilege Escalation",
    "pss-non-root": "Running as Non-root",
    "pss-non-root-user": "Running as Non-root user",
    "pss-seccomp-set": "Seccomp (restricted)",
    "pss-drop-all": "Capabilities (restricted): drop",
    "pss-added-capabilities": "Capabilities (restricted): add",
}
"""The name of each control in the standard, by the rule that holds to it."""


def markdown() -> str:
    """The page: how to use the check, and a table of the rules for each group."""
    head = HEAD.format(
        example=EXAMPLE,
        kubernetes=KUBERNETES,
        standard=STANDARD,
        grace=LEAST_GRACE_SECONDS,
        window=LEAST_WINDOW_SECONDS,
    )
    parts = [
        head,
        f"\n## The rules\n\n{len(RULES)} rules. How to add one: the docstring of ",
        "`delivery/kubernetes/check/__init__.py`.\n",
    ]
    for group, rules in GROUPS.items():
        parts.append(f"\n### {group}\n\n{table(rules)}")
    return "".join(parts)


def table(rules: tuple[Rule, ...]) -> str:
    """A row for each rule; those of the Pod Security Standards with the name of their control, and its test."""
    rows = [_row(rule) for rule in rules]
    titles = ("rule", "control", "what it holds to", "tests")
    titles = titles if len(rows[0]) == len(titles) else ("rule", "what it holds to")
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (titles, ["---"] * len(titles), *rows))


def _row(rule: Rule) -> tuple[str, ...]:
    name, says = f"`{rule.name}`", rule.says.replace("|", "\\|")
    if rule.name in CONTROLS:
        return name, CONTROLS[rule.name], says, f"`{TESTS} -k {rule.name}`"
    return name, f"Warning: {says}" if rule.level == "warning" else says
