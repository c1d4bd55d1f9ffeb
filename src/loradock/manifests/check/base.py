"""The types of a manifest rule: the manifest that it looks at, with its pods, and the rule itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from loradock.config.strict_yaml import KeyPath
from loradock.manifests.check.fields import Field, Found

CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
BASELINE_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
"""What the Pod Security Standard "baseline" lets a container add."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod or a pod's template: metadata, spec, and the spec of the Job that makes it, where one does.

    `is_partial` marks what is laid over a template that stands elsewhere (a TrainJob's): what it lacks may be there.
    `trainer` is a TrainJob's trainer, which is a container in all but its name.
    """

    metadata: Field
    spec: Field
    job: Field | None = None
    is_partial: bool = False
    trainer: Field | None = None

    @cached_property
    def main(self) -> tuple[Field, ...]:
        """The containers that run side by side."""
        return (*self.spec["containers"], *((self.trainer,) if self.trainer else ()))

    @cached_property
    def containers(self) -> tuple[Field, ...]:
        """Every container: main, init and ephemeral."""
        rest = (container for name in CONTAINER_LISTS[1:] for container in self.spec[name])
        return (*self.main, *rest)

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
    """One object of a file. `lines` gives the line of each path; `beside` holds every object of the file."""

    root: Field
    lines: Mapping[KeyPath, int]
    first_line: int
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

    @cached_property
    def replicated_jobs(self) -> tuple[Field, ...]:
        """The replicated jobs of a JobSet, or of a runtime that holds one."""
        places = {"JobSet": "replicatedJobs", "TrainingRuntime": "template.spec.replicatedJobs"}
        place = places.get(self.kind.removeprefix("Cluster"))
        return tuple(self.spec.at(place)) if place else ()

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
            return _of_train_job(self.spec)
        if self.jobs:
            return tuple(_templated(job["template"], job=job) for job in self.jobs)
        template = self.spec["template"]
        return (_templated(template),) if template.at("spec.containers") else ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: its name (kebab-case), what it holds to in a sentence for the docs, and what looks."""

    name: str
    says: str
    look: Callable[[Manifest], Iterable[Found]]


def resources(container: Field) -> Field:
    """What a container asks for; a TrainJob's trainer gives it another name."""
    return container["resources"] or container["resourcesPerNode"]


def is_card(resource: str) -> bool:
    """True for the name of an accelerator: nvidia.com/gpu, amd.com/gpu, nvidia.com/mig-1g.10gb."""
    domain, _, name = resource.partition("/")
    return bool(domain) and name.startswith(("gpu", "mig-", "gaudi"))


def asks_for_cards(container: Field) -> bool:
    """True where the container's limits or requests name an accelerator."""
    asked = resources(container)
    return any(is_card(name) for part in ("limits", "requests") for name, _ in asked[part].members)


def added_capabilities(manifest: Manifest) -> Iterator[tuple[Pod, Field]]:
    """Each capability that a container adds, with its pod."""
    for pod in manifest.pods:
        for container in pod.containers:
            yield from ((pod, added) for added in container.at("securityContext.capabilities.add"))


def words(container: Field) -> list[Field]:
    """The command line of a container, as far as the manifest gives it."""
    return [*container["command"], *container["args"]]


def is_training(container: Field) -> bool:
    """True where a container asks for a card, or runs loradock or torchrun."""
    programs = [word.text.rpartition("/")[2] for word in words(container)]
    is_ours = "loradock" in container["image"].text.partition("@")[0].rpartition("/")[2]
    return is_ours or asks_for_cards(container) or not {"loradock", "torchrun"}.isdisjoint(programs)


def _templated(template: Field, *, job: Field | None = None, is_partial: bool = False) -> Pod:
    return Pod(metadata=template["metadata"], spec=template["spec"], job=job, is_partial=is_partial)


def _of_train_job(spec: Field) -> tuple[Pod, ...]:
    patched = tuple(
        _templated(job.at("template.spec.template"), is_partial=True)
        for patch in spec["runtimePatches"]
        for job in patch.at("trainingRuntimeSpec.template.spec.replicatedJobs")
    )
    nowhere = Field(None, spec["trainer"].path)
    trainer = spec["trainer"]
    own = (Pod(metadata=nowhere, spec=nowhere, is_partial=True, trainer=trainer),) if trainer else ()
    return (*own, *patched)
