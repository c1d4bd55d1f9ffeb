"""The types of a manifest rule: the manifest that it looks at, with its pods, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from loradock.config.strict_yaml import KeyPath
from loradock.delivery.kubernetes.check.command_line import words
from loradock.delivery.kubernetes.check.fields import Field, Found, Level

CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
TRAINER = "node"
"""The replicated job and the container of a training runtime that a TrainJob's trainer becomes."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod or a pod's template: metadata, spec, and the spec of the Job that makes it, where one does.

    `is_partial` marks what is laid over a template that stands elsewhere (a TrainJob's): what it lacks may be there.
    `beneath` is that template, where it is at hand. `trainer` is a TrainJob's trainer, which is a container in all but
    its name.
    """

    metadata: Field
    spec: Field
    job: Field | None = None
    is_partial: bool = False
    trainer: Field | None = None
    beneath: Pod | None = None

    @cached_property
    def main(self) -> tuple[Field, ...]:
        """The containers that run side by side."""
        return (*self.spec["containers"], *((self.trainer,) if self.trainer else ()))

    @cached_property
    def containers(self) -> tuple[Field, ...]:
        """Every container: main, init and ephemeral."""
        remaining = (container for name in CONTAINER_LISTS[1:] for container in self.spec[name])
        return (*self.main, *remaining)

    @cached_property
    def security_contexts(self) -> tuple[Field, ...]:
        """The security context of the pod and of each container."""
        return (self.spec["securityContext"], *(container["securityContext"] for container in self.containers))

    @property
    def confined(self) -> tuple[Field, ...]:
        """The containers that can have a security context; a TrainJob's trainer has none."""
        return tuple(container for container in self.containers if container is not self.trainer and container.members)

    @property
    def is_windows(self) -> bool:
        """True where the pod says that it runs on Windows."""
        return self.spec.at("os.name").text == "windows"

    @property
    def is_training(self) -> bool:
        """True where a container trains."""
        return any(is_training(container) for container in self.main)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One object of a file.

    `lines` gives the line of each path, `blocks` the first line of the text in each literal block (`|`); `beside` holds
    every object that is checked together, itself too.
    """

    root: Field
    file: str
    lines: Mapping[KeyPath, int]
    first_line: int
    blocks: Mapping[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    beside: list[Manifest] = field(default_factory=list, repr=False)

    @property
    def kind(self) -> str:
        """The kind, as written."""
        return self.root["kind"].text

    @property
    def name(self) -> str:
        """metadata.name, as written."""
        return self.root.at("metadata.name").text

    @property
    def spec(self) -> Field:
        """The specification."""
        return self.root["spec"]

    def line(self, path: KeyPath) -> int:
        """The line of the path, or of the nearest thing above it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, self.first_line)

    def neighbour(self, kind: str, name: str) -> Manifest | None:
        """The object of this kind and name beside this one; where both say so, in the same namespace."""
        candidates = (manifest for manifest in self.beside if (manifest.kind, manifest.name) == (kind, name))
        mine = self.root.at("metadata.namespace").text
        return next(
            (
                candidate
                for candidate in candidates
                if candidate.root.at("metadata.namespace").text in ("", mine) or not mine
            ),
            None,
        )

    @property
    def runtime(self) -> Manifest | None:
        """The runtime that a TrainJob refers to, where it is beside it."""
        reference = self.spec["runtimeRef"]
        kind = reference["kind"].text or RUNTIMES[0]
        return self.neighbour(kind, reference["name"].text) if kind in RUNTIMES else None

    @cached_property
    def replicated_jobs(self) -> tuple[Field, ...]:
        """The replicated jobs of a JobSet, or of a runtime that holds one."""
        places = {"JobSet": "replicatedJobs", "TrainingRuntime": "template.spec.replicatedJobs"}
        place = places.get(self.kind.removeprefix("Cluster"))
        return tuple(self.spec.at(place)) if place else ()

    @cached_property
    def claim_templates(self) -> tuple[Field, ...]:
        """The claims that a controller makes from this object, each a volume of its pods by the template's name."""
        if self.kind == "StatefulSet":
            return tuple(self.spec["volumeClaimTemplates"])
        if self.kind == "TrainJob":
            return self.runtime.claim_templates if self.runtime else ()
        place = "template.spec.volumeClaimPolicies" if self.kind in RUNTIMES else "volumeClaimPolicies"
        return tuple(template for policy in self.spec.at(place) for template in policy["templates"])

    @cached_property
    def jobs(self) -> tuple[Field, ...]:
        """The specification of each Job that this object is or makes."""
        if self.kind == "Job":
            return (self.spec,)
        if self.kind == "CronJob":
            return (self.spec.at("jobTemplate.spec"),)
        return tuple(job.at("template.spec") for job in self.replicated_jobs)

    @property
    def containers(self) -> Iterator[Field]:
        """Every container of every pod."""
        return (container for pod in self.pods for container in pod.containers)

    @property
    def volumes(self) -> Iterator[Field]:
        """Every volume of every pod."""
        return (volume for pod in self.pods for volume in pod.spec["volumes"])

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """Each pod, or template of pods, that this object holds."""
        if self.kind == "Pod":
            return (Pod(metadata=self.root["metadata"], spec=self.spec),)
        if self.kind == "PodTemplate":
            return (_templated(self.root["template"]),)
        if self.kind == "TrainJob":
            return _of_train_job(self)
        if self.jobs:
            return tuple(_templated(job["template"], job=job) for job in self.jobs)
        template = self.spec["template"]
        return (_templated(template),) if template.at("spec.containers") else ()


Look = Callable[[Manifest], Iterable[Found]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: its name (kebab-case), what it holds to in a sentence for the docs, and what looks.

    An error is what Kubernetes refuses, what cannot work, loses work or endangers others; a warning is what works and
    may not be meant, or what the file alone cannot tell.
    """

    name: str
    says: str
    look: Look
    level: Level = "error"


def rules(*looks: Look, warnings: tuple[Look, ...] = ()) -> tuple[Rule, ...]:
    """The rules that functions are: each by its name, and by the first paragraph of its docstring."""
    return tuple(
        Rule(
            name=look.__name__.replace("_", "-"),
            says=" ".join((look.__doc__ or "").partition("\n\n")[0].split()),
            look=look,
            level="warning" if look in warnings else "error",
        )
        for look in looks
    )


def resources(container: Field) -> Field:
    """What a container asks for; a TrainJob's trainer gives it another name."""
    return container["resourcesPerNode"] or container["resources"]


def is_gpu(resource: str) -> bool:
    """True for the name of an accelerator: nvidia.com/gpu, amd.com/gpu, nvidia.com/mig-1g.10gb."""
    domain, _, name = resource.partition("/")
    return bool(domain) and name.startswith(("gpu", "mig-", "gaudi"))


def asks_for_gpus(container: Field) -> bool:
    """True where the container's limits or requests name an accelerator."""
    requested = resources(container)
    return any(is_gpu(name) for part in ("limits", "requests") for name, _ in requested[part].members)


def is_training(container: Field) -> bool:
    """True where a container asks for a GPU, or runs loradock or torchrun."""
    return runs_loradock(container) or asks_for_gpus(container) or "torchrun" in _programs(container)


def runs_loradock(container: Field) -> bool:
    """True where a container runs loradock, or an image whose name holds it."""
    is_ours = "loradock" in container["image"].text.partition("@")[0].rpartition("/")[2]
    return is_ours or "loradock" in _programs(container)


def _programs(container: Field) -> set[str]:
    return {word.text.rpartition("/")[2] for word in words(container)}


def _templated(template: Field, *, job: Field | None = None) -> Pod:
    return Pod(metadata=template["metadata"], spec=template["spec"], job=job)


def _of_train_job(train_job: Manifest) -> tuple[Pod, ...]:
    """The trainer, which Trainer puts into the group and container TRAINER, and the patched templates."""
    runtime = train_job.runtime
    groups = zip(runtime.replicated_jobs, runtime.pods, strict=False) if runtime else ()
    beneath = {group["name"].text: pod for group, pod in groups}
    patched = tuple(
        Pod(metadata=pod["metadata"], spec=pod["spec"], is_partial=True, beneath=beneath.get(group["name"].text))
        for patch in train_job.spec["runtimePatches"]
        for group in patch.at("trainingRuntimeSpec.template.spec.replicatedJobs")
        for pod in (group.at("template.spec.template"),)
    )
    trainer = train_job.spec["trainer"]
    nowhere = Field(None, trainer.path)
    owner_pod = Pod(metadata=nowhere, spec=nowhere, is_partial=True, trainer=trainer, beneath=beneath.get(TRAINER))
    return (*((owner_pod,) if trainer else ()), *patched)
