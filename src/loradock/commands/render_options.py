"""The options of `loradock render` that describe where and how a run is to be run, by section of the help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from loradock.commands.paths import LocalPath
from loradock.commands.run_options import RunCommand


@dataclass(frozen=True, kw_only=True)
class Site:
    """The options as they were given; texts are not checked yet."""

    name: str | None
    image: str | None
    whole_config: bool
    net_check: bool
    reproduce: Path | None
    whole: bool
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
    network_policy: bool | None
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
        _text("--name", "NAME", "Name of the objects; default: from the configuration's name, model and data."),
        _text("--image", "REF@sha256:...", "The image, by its digest."),
        _flag("--whole-config", "Render default values too, so that another image's defaults change nothing."),
        _flag("--net-check", "Render `loradock net-check` between the ranks instead of the run."),
        _text(
            "--reproduce",
            "RUN",
            "Render `loradock reproduce RUN` instead: its record is read here, and the pod finds RUN "
            "at the same path, a relative one at the data volume.",
            type=LocalPath(),
        ),
        _flag("--whole", "With --reproduce: all steps, and the adapter's bytes."),
    ),
    "Sizes": (
        _text("--gpu", "NAME", "Size the pods for this GPU model (a10, h200, ...)."),
        _count("--gpus", "N", "GPUs per node; one process per GPU. Default 1; 0 for --demo.", min=0),
        _count("--nodes", "N", "Number of nodes.", default=1, show_default=True),
        _count("--cpus", "N", "CPUs per node; default: by the number of GPUs."),
        _text("--memory", "64Gi", "Memory per node; default: from the plan."),
        _text("--shm", "8Gi", "Size of /dev/shm; default: from the plan."),
        _text("--storage", "50Gi", "Size of scratch (/tmp); default: by the model."),
        _many("--device", "NAME=N", "Devices per node: rdma/hca=1, nvidia.com/mig-1g.10gb=1."),
        _text(
            "--from-run",
            "DIR",
            "Run directory whose measured times are used.",
            type=LocalPath(file_okay=False),
        ),
    ),
    "Volumes": (
        _text("--data-claim", "PVC", "Volume claim mounted at /data, read-only; relative paths start there."),
        _text("--output-claim", "PVC", "Volume claim for what the run writes: checkpoints, adapter, record."),
        _text("--cache-claim", "PVC", "Volume claim that keeps downloads and prepared data between runs."),
        _many("--host-path", "data|output|cache=DIR", "A directory of the node instead of a volume claim."),
        _text("--fetch-image", "REF", "Image of an init container that fills /data, for example from an object store."),
        _many("--fetch-arg", "ARG", "An argument of that container; may be repeated."),
        _text("--fetch-size", "50Gi", "Space for what it fetches.", default="50Gi", show_default=True),
    ),
    "Environment and metadata": (
        _many("--env", "NAME=VALUE", "An environment variable."),
        _many("--secret-env", "NAME=SECRET:KEY", "An environment variable whose value stays in a Secret."),
        _text("--pull-secret", "SECRET", "Image pull secret, for a private registry."),
        _text("--namespace", "NAME", "Namespace of all objects."),
        _text("--run-id", "ID", "Run id in the annotations."),
        _many("--label", "KEY=VALUE", "A label of all objects and pods."),
        _many("--annotation", "KEY=VALUE", "An annotation of all objects and pods."),
    ),
    "Scheduling": (
        _text("--queue", "NAME", "Kueue LocalQueue; the run starts suspended."),
        _text("--priority-class", "NAME", "PriorityClass of the pods."),
        _many("--node-selector", "KEY=VALUE", "Node selector: only nodes with this label."),
        _many("--toleration", "KEY[=VALUE][:EFFECT]", "A taint that the pods tolerate."),
        _text("--topology", "KEY", "Place the pods close together, by this node label."),
        _text("--scheduler-name", "NAME", "Scheduler instead of the cluster's default."),
        _text("--runtime-class", "NAME", "RuntimeClass of the pods, for example nvidia."),
    ),
    "Security": (
        _text("--service-account", "NAME", "ServiceAccount of the pods; its token is not mounted."),
        _count("--uid", "N", "User id of the processes; default 65532, the image's.", max=MOST_UID),
        _count("--fs-group", "N", "Group id that may write to volumes; default 65532.", max=MOST_UID),
        _flag("--openshift", "Let the cluster choose uid and fsGroup."),
        click.Option(
            ["--read-only-root/--no-read-only-root"],
            default=True,
            show_default=True,
            help="Mount the container's root file system read-only.",
        ),
        click.Option(
            ["--network-policy/--no-network-policy"],
            default=None,
            help="Close all traffic but between the pods and to DNS. [default: several pods: only what comes in]",
        ),
        _many("--allow-egress", "CIDR", "Also allow traffic to these addresses."),
    ),
    "Ending": (
        _count("--failures", "N", "Retries after failures that may be temporary.", min=0, default=3, show_default=True),
        _count("--deadline-seconds", "S", "Hard time limit of the run."),
        _count("--grace-seconds", "S", "Time to save after a signal; default: from the plan and --from-run."),
        _count("--ttl-seconds", "S", "Delete a Job or JobSet this long after it ends.", min=0),
    ),
}


class SiteCommand(RunCommand):
    """A command with these options, which its function receives as one keyword, `site: Site`."""

    def __init__(self, *given: Any, params: Sequence[click.Parameter] = (), **more: Any) -> None:
        site_params = [*params, *(option for section in SECTIONS.values() for option in section)]
        super().__init__(*given, params=site_params, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Put them together."""
        ctx.params["site"] = Site(**{field.name: ctx.params.pop(field.name) for field in fields(Site)})
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first, then these by section."""
        ours = {option for section in SECTIONS.values() for option in section}
        options_beside = [
            param for param in self.get_params(ctx) if isinstance(param, click.Option) and param not in ours
        ]
        for title, options in {"Options": options_beside, **SECTIONS}.items():
            with formatter.section(title):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
