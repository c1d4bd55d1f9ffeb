"""The page made from the rules: docs/manifest-check.md."""

from __future__ import annotations

from loradock.manifests.check import GROUPS, RULES
from loradock.manifests.check.health import LEAST_GRACE_SECONDS, LEAST_WINDOW_SECONDS
from loradock.manifests.check.schema import KUBERNETES
from loradock.manifests.check.security_baseline import STANDARD

HEAD = """\
# Checking a Kubernetes manifest

<!-- Made from the rules: pytest tests/manifests --write-manifest-rules -->

    loradock render --check job.yaml             # ours or any other; several with --check A --check B
    loradock render --check job.yaml --json      # for programs, and all where there are more than 20

It needs no cluster. Every problem of every object in a file is told at once, with its line, the rule and a remedy;
the exit code is 78 where there is one, else 0:

```
error: 5 problem(s) in 1 file(s)
  job.yaml:47: schema: spec.backofLimit is no field that Kubernetes knows (did you mean backoffLimit?)
  job.yaml:69: failure-policy-zero: spec.podFailurePolicy.rules[2].onExitCodes.values[0] is 0, which is success: a \
rule is for failures (delete the 0)
  job.yaml:76: failure-policy-restart: spec.template.spec.restartPolicy is OnFailure: the container starts again in \
its pod, and podFailurePolicy never sees its exit code (write restartPolicy: Never)
  job.yaml:119: quantity: spec.template.spec.volumes[2].emptyDir.sizeLimit is '8Gb', which is no quantity (a number \
and k, M, G, Ki, Mi or Gi: 16Gi)
  job.yaml:163: pss-privileged: spec.template.spec.containers[0].securityContext.privileged gives the container the \
node (delete it; cards come through the device plugin)
```

## What is read, and against what

- Files of several documents, and `List`. YAML is read as Kubernetes reads it: an unquoted `yes` or `on` is a truth
  value, 0644 is octal. Refused: a key given twice, merge keys (`<<`), tags, aliases that expand beyond 10 000 values,
  nesting beyond 32 levels, more than 1 MB.
- The schemas of Kubernetes {kubernetes} for its own kinds, read strictly. JobSet (v1alpha2), TrainJob, TrainingRuntime
  and ClusterTrainingRuntime (v1alpha1, Trainer 2.2 and later) from their published fields. Another kind is a problem:
  it is said to be unknown, not passed over.
- The [Pod Security Standards](https://kubernetes.io/docs/concepts/security/pod-security-standards/) as published for
  Kubernetes {standard}: each control of baseline and restricted is a rule `pss-...`, for main, init and ephemeral
  containers. What the standard asks of Linux alone is not asked where `spec.os.name` is `windows`. The relaxations
  that a cluster may grant to pods with user namespaces (`hostUsers: false`) are not granted here.
- Some rules hold for what trains: a container that asks for a card, runs `loradock` or `torchrun`, or whose image's
  name holds loradock. It needs {grace} s to stop, /dev/shm in memory, a liveness probe that waits for the start and for
  {window} s of silence.

## What it cannot know

- What is in the cluster: claims, Secrets, queues, priority classes, node labels, quotas, admission policies.
  `kubectl apply --dry-run=server --filename FILE` asks it.
- What a TrainJob's runtime holds, unless the file has it: only what its trainer and patches say is judged.
- Values of fields that the schema calls text and no rule here knows.
"""


def markdown() -> str:
    """The page: how to use the check, and a table of the rules for each group."""
    head = HEAD.format(kubernetes=KUBERNETES, standard=STANDARD, grace=LEAST_GRACE_SECONDS, window=LEAST_WINDOW_SECONDS)
    parts = [
        head,
        f"\n## The rules\n\n{len(RULES)} rules. How to add one: the docstring of `manifests/check/__init__.py`.\n",
    ]
    for group, rules in GROUPS.items():
        parts.append(f"\n### {group}\n\n| rule | what it holds to |\n|---|---|\n")
        parts += [f"| `{rule.name}` | {rule.says.replace('|', chr(92) + '|')} |\n" for rule in rules]
    return "".join(parts)
