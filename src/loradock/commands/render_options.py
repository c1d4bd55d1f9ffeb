"""The options of `loradock render` that describe where and how a run is to be run, by section of the help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, kw_only=True)
class Site:
    """The options as they were given; texts are not checked yet."""

    name: str | None
    image: str | None
    whole_config: bool
    net_check: bool
    gpu: str | None
    gpus: int | None
    nodes: int
    cpus: int | None
    memory: str | None
    shm: str | None
    storage: str | None
    device: tuple[str, ...]
    from_run: Path | None
    data_claim: str | None
    output_claim: str | None
    cache_claim: str | None
    host_path: tuple[str, ...]
    fetch_image: str | None
    fetch_arg: tuple[str, ...]
    fetch_size: str
    env: tuple[str, ...]
    secret_env: tuple[str, ...]
    pull_secret: str | None
    namespace: str | None
    run_id: str | None
    label: tuple[str, ...]
    annotation: tuple[str, ...]
    queue: str | None
    priority_class: str | None
    node_selector: tuple[str, ...]
    toleration: tuple[str, ...]
    topology: str | None
    scheduler_name: str | None
    runtime_class: str | None
    service_account: str | None
    uid: int | None
    fs_group: int | None
    openshift: bool
    read_only_root: bool
    network_policy: bool
    allow_egress: tuple[str, ...]
    failures: int
    deadline_seconds: int | None
    grace_seconds: int | None
    ttl_seconds: int | None


def _text(flag: str, metavar: str, text: str, **more: Any) -> click.Option:
    return click.Option([flag], metavar=metavar, help=text, **more)


def _many(flag: str, metavar: str, text: str) -> click.Option:
    return _text(flag, metavar, text, multiple=True)


def _flag(flag: str, text: str) -> click.Option:
    return click.Option([flag], is_flag=True, help=text)


def _count(flag: str, metavar: str, text: str, **more: Any) -> click.Option:
    span = click.IntRange(min=more.pop("min", 1), max=more.pop("max", None))
    return _text(flag, metavar, text, type=span, **more)


MOST_UID = 2**31 - 1
SECTIONS: dict[str, Sequence[click.Parameter]] = {
    "The run": (
        _text("--name", "NAME", "Of the objects; default: from the configuration's name, model and data."),
        _text("--image", "REF@sha256:...", "The image, by its digest."),
        _flag("--whole-config", "Render defaults too, so that those of a later image change nothing."),
        _flag("--net-check", "Render the check of the network between the processes, instead of the run."),
    ),
    "Sizes": (
        _text("--gpu", "NAME", "Size for this GPU (a10, h200, ...)."),
        _count("--gpus", "N", "GPUs, and processes, of each machine; default 1, for --demo 0.", min=0),
        _count("--nodes", "N", "Machines.", default=1, show_default=True),
        _count("--cpus", "N", "Processors of each machine; default by the GPUs."),
        _text("--memory", "64Gi", "Memory of each machine; default by the plan."),
        _text("--shm", "8Gi", "Size of /dev/shm; default by the plan."),
        _text("--storage", "50Gi", "Size of the scratch (/tmp); default by the model."),
        _many("--device", "NAME=N", "Devices of each machine: rdma/hca=1, nvidia.com/mig-1g.10gb=1."),
        _text("--from-run", "DIR", "Measured times of a run.", type=click.Path(path_type=Path, file_okay=False)),
    ),
    "Volumes": (
        _text("--data-claim", "PVC", "What lies there is at /data, read-only; relative paths begin there."),
        _text("--output-claim", "PVC", "What the run writes: checkpoints, adapter, record."),
        _text("--cache-claim", "PVC", "Keeps what is downloaded and prepared between runs."),
        _many("--host-path", "data|output|cache=DIR", "A directory of the node instead of a claim."),
        _text("--fetch-image", "REF", "An init container that fills /data, as from an object store."),
        _many("--fetch-arg", "ARG", "Its arguments, one each."),
        _text("--fetch-size", "50Gi", "Room for what it fetches.", default="50Gi", show_default=True),
    ),
    "Environment and metadata": (
        _many("--env", "NAME=VALUE", "A variable of the environment."),
        _many("--secret-env", "NAME=SECRET:KEY", "A variable whose value stays in a Secret."),
        _text("--pull-secret", "SECRET", "For a registry that asks who pulls."),
        _text("--namespace", "NAME", "Namespace of all objects."),
        _text("--run-id", "ID", "What the annotations call this run."),
        _many("--label", "KEY=VALUE", "A label of all objects and pods."),
        _many("--annotation", "KEY=VALUE", "An annotation of all objects and pods."),
    ),
    "Scheduling": (
        _text("--queue", "NAME", "Kueue's LocalQueue; the run begins suspended."),
        _text("--priority-class", "NAME", "PriorityClass of the pods."),
        _many("--node-selector", "KEY=VALUE", "Only nodes with this label."),
        _many("--toleration", "KEY[=VALUE][:EFFECT]", "A taint that the pods bear."),
        _text("--topology", "KEY", "Several machines near one another, by this label of nodes."),
        _text("--scheduler-name", "NAME", "Another scheduler than the cluster's own."),
        _text("--runtime-class", "NAME", "RuntimeClass of the pods, as nvidia."),
    ),
    "Security": (
        _text("--service-account", "NAME", "ServiceAccount of the pods; its token is not mounted."),
        _count("--uid", "N", "The user of the processes; default 65532, the image's own.", max=MOST_UID),
        _count("--fs-group", "N", "The group that volumes become writable for; default 65532.", max=MOST_UID),
        _flag("--openshift", "Leave uid and fsGroup to the cluster."),
        click.Option(
            ["--read-only-root/--no-read-only-root"], default=True, show_default=True, help="The container's."
        ),
        _flag("--network-policy", "Let the pods reach one another and DNS, and nothing else."),
        _many("--allow-egress", "CIDR", "... and these addresses."),
    ),
    "Ending": (
        _count("--failures", "N", "How often what may pass is tried again.", min=0, default=3, show_default=True),
        _count("--deadline-seconds", "S", "End it after so long, whatever it does."),
        _count("--grace-seconds", "S", "For the last save; default from plan and --from-run."),
        _count("--ttl-seconds", "S", "Delete a Job or JobSet so long after its end.", min=0),
    ),
}


class SiteCommand(click.Command):
    """A command with these options, which its function receives as one keyword, `site: Site`."""

    def __init__(self, *given: Any, params: Sequence[click.Parameter] = (), **more: Any) -> None:
        own = [*params, *(option for section in SECTIONS.values() for option in section)]
        super().__init__(*given, params=own, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Put them together."""
        ctx.params["site"] = Site(**{each.name: ctx.params.pop(each.name) for each in fields(Site)})
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first, then these by section."""
        ours = {option for section in SECTIONS.values() for option in section}
        others = [each for each in self.get_params(ctx) if isinstance(each, click.Option) and each not in ours]
        for title, options in {"Options": others, **SECTIONS}.items():
            with formatter.section(title):
                formatter.write_dl([record for each in options if (record := each.get_help_record(ctx))])
