"""`loradock launch`: one command as the processes of a run, on this machine and on others."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from loradock.commands.paths import LocalPath
from loradock.distributed import processes, schedulers, seal
from loradock.distributed.place import AUTO, LAUNCHER, interfaces, mistakes, place_of
from loradock.errors import EnvironmentUnfit, LoradockError, Problem, UsageError
from loradock.process import python, termination_log

SHOWN_LINES = 30
TORCHRUNS = "TORCHELASTIC_"
LAUNCHED = ("train", "net-check")
UNREAD = "loradock.launch.unread"


class Option(click.Option):
    """One whose unreadable value is noted, so that it is reported with every other mistake."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """The value, None where it cannot be read."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as unread:
            ctx.meta.setdefault(UNREAD, []).append(Problem(what=unread.format_message()))
            return None


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--nproc",
    default=AUTO,
    envvar=["PET_NPROC_PER_NODE", "SKYPILOT_NUM_GPUS_PER_NODE"],
    metavar="N|auto",
    help="Processes on this node; auto: one per visible GPU, one without a GPU.",
)
@click.option(
    "--nnodes",
    cls=Option,
    type=click.IntRange(min=1),
    default=1,
    envvar=["PET_NNODES", "SKYPILOT_NUM_NODES", "SLURM_STEP_NUM_NODES"],
    help="Number of nodes.",
)
@click.option(
    "--node-rank",
    cls=Option,
    type=int,
    envvar=["JOB_COMPLETION_INDEX", "PET_NODE_RANK", "SKYPILOT_NODE_RANK", "SLURM_NODEID"],
    help="Rank of this node, from 0. [default: $JOB_COMPLETION_INDEX]",
)
@click.option("--rdzv", metavar="HOST:PORT", help="Rendezvous address: node 0's host and a free port on it.")
@click.option(
    "--grace",
    cls=Option,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time after a signal until running processes are killed. [default: no limit]",
)
@click.option("--logs", type=LocalPath(), help="Folder for the output of all processes but the first.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def launch(
    context: click.Context,
    *,
    nproc: str,
    nnodes: int | None,
    node_rank: int | None,
    rdzv: str | None,
    grace: float | None,
    logs: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND (train or net-check, with its options) as several processes, one per GPU.

    \b
    loradock launch train run.yaml
    loradock launch --nproc 2 train run.yaml --set device=cpu
    loradock launch --nnodes 2 --node-rank 0 --rdzv node-0:29500 train run.yaml

    The exit code is that of the process that failed first; 128 plus the signal number if it was killed.
    """
    meeting, nodes = rdzv or kubeflows() or schedulers.meeting(os.environ), nnodes or 1
    problems = [*context.meta.get(UNREAD, ()), *mistakes(processes=nproc, nodes=nodes, node=node_rank, meeting=meeting)]
    wrong = misspelt(context, command)
    refuse([*problems, *wrong], unfit=None if wrong else unfit(context, command))
    place = place_of(processes=counted(nproc), nodes=nodes, node=node_rank, meeting=meeting)
    names = interfaces(place, os.environ)
    for name, interface in names.items():
        click.echo(f"launch: {name}={interface}, which leads to {place.host}", err=True)
    started_by = {LAUNCHER: shlex.join(["loradock", *sys.argv[1 : -len(command)]])}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(TORCHRUNS)}
    folder = log_folder(logs)
    launched = processes.launch(
        python.command("-m", "loradock", *command),
        place=place,
        environment=environment | names | started_by | secret(nodes),
        folder=folder,
        grace_seconds=grace,
    )
    problem = processes.told(launched)
    if problem and (culprit := launched.culprit):
        show(culprit, problem, folder=folder)
    elif logs is None:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(launched.culprit.code if launched.culprit else 0)


def secret(nodes: int) -> dict[str, str]:
    """What signs the reports of this launch, where nobody gave a secret; UsageError for one that cannot be used."""
    if seal.secret_in(os.environ):
        return {}
    if nodes == 1:
        return {seal.SECRET: seal.drawn()}
    note = f"launch: reports between nodes are not signed; {seal.SECRET}, the same on every node, signs them"
    click.echo(note, err=True)
    return {}


def misspelt(context: click.Context, command: tuple[str, ...]) -> list[Problem]:
    """Why the command is none that can be launched, or does not take its options, as each process would say it."""
    name, *arguments = command
    group = context.find_root().command
    page = group.get_command(context, name) if isinstance(group, click.Group) and name in LAUNCHED else None
    if page is None:
        what = f"unknown option of launch: {name}" if name.startswith("-") else f"{name} cannot be launched"
        return [Problem(what=what, hint=f"loradock launch [OPTIONS] {' or '.join(LAUNCHED)} [ITS OPTIONS]")]
    return [
        Problem(what=f"{name}: {mistake.format_message()}", hint=f"loradock {name} --help")
        for mistake in not_taken(page, arguments, context=context)
    ]


def not_taken(page: click.Command, arguments: Sequence[str], *, context: click.Context) -> list[click.UsageError]:
    """Every option that the command does not have, or else what it says first of those that it has."""
    remaining, unknown = list(arguments), list[click.UsageError]()
    while True:
        try:
            page.make_context(str(page.name), list(remaining), parent=context.parent)
        except click.NoSuchOption as mistake:
            unknown.append(mistake)
            place = next((at for at, word in enumerate(remaining) if word.split("=")[0] == mistake.option_name), None)
            if place is None:
                return unknown
            remaining = remaining[:place] + remaining[place + 1 :]
        except click.UsageError as mistake:
            return unknown or [mistake]
        else:
            return unknown


def unfit(context: click.Context, command: tuple[str, ...]) -> LoradockError | None:
    """Why `train` would refuse its configuration, as each process would say it; None for another command."""
    from loradock.commands.train import train, wanted

    name, *arguments = command
    if name != train.name:
        return None
    parameters = train.make_context(name, arguments, parent=context.parent).params
    try:
        wanted(
            parameters["ask"],
            demo=parameters["demo"],
            resume=parameters["resume"],
            fresh=parameters["fresh"],
            allowed=parameters["allowed"],
        )
    except LoradockError as error:
        return error
    return None


def refuse(problems: list[Problem], *, unfit: LoradockError | None) -> None:
    """UsageError with all of them, where there are any, or what is unfit alone; nothing was started."""
    if unfit and not problems:
        raise unfit
    if unfit:
        problems = [*problems, *(unfit.problems or [Problem(what=unfit.what, hint=unfit.hint)])]
    if len(problems) == 1:
        raise UsageError(problems[0].what, hint=problems[0].hint)
    if problems:
        what = f"{len(problems)} wrong options; nothing was started"
        raise UsageError(what, hint="loradock launch --help", problems=problems)


def counted(nproc: str) -> int:
    """How many processes; auto counts the GPUs without importing torch."""
    if nproc != AUTO:
        return int(nproc)
    from loradock.machine import Host, probe

    return max(1, len(probe.gather(Host()).gpus))


def kubeflows() -> str | None:
    """Where Kubeflow's trainer says that the machines meet."""
    host, port = os.environ.get("PET_MASTER_ADDR"), os.environ.get("PET_MASTER_PORT")
    return f"{host}:{port}" if host and port else None


def log_folder(logs: Path | None) -> Path:
    """A folder for what is not shown. EnvironmentUnfit where none can be made."""
    try:
        if logs is None:
            return Path(tempfile.mkdtemp(prefix="loradock-launch-"))
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"no folder for the logs of the processes can be made: {error}"
        raise EnvironmentUnfit(what, hint="--logs DIR, or TMPDIR=DIR") from error
    return logs


def show(culprit: processes.Rank, problem: str, *, folder: Path) -> None:
    """Say which process ended the run, and what it wrote last where that was not on the screen."""
    code = culprit.code or 0
    if culprit.log:
        lines = culprit.log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
        for line in lines:
            click.echo(f"[rank {culprit.number}] {line}", err=True)
    click.echo(f"launch: {problem} (logs: {folder})", err=True)
    if code > processes.BY_SIGNAL:  # it could not say so itself
        termination_log.write(code, problem)
