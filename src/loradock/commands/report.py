"""`loradock report`: what one or several runs did, as one HTML file, or live in a browser."""

from __future__ import annotations

import shlex
import webbrowser
from pathlib import Path

import click

from loradock.commands.paths import LocalPath, OutputFile
from loradock.errors import InputMissing, NotWritable, UsageError
from loradock.text.amounts import some_of
from loradock.training.run_dir.paths import RECORD

REPORT = "report.html"
NAMED_RUNS = 3
LISTED_RUNS = 8


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=LocalPath())
@click.option("-o", "--output", type=OutputFile(".html", ".htm"), help="Output file. [default: RUN/report.html]")
@click.option("--watch", is_flag=True, help="Serve the report on localhost, updated, until Ctrl-C; write no file.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port for --watch. [default: a free one]")
@click.option("--open", "is_opened", is_flag=True, help="Open it in the browser.")
def report(runs: tuple[Path, ...], *, output: Path | None, watch: bool, port: int | None, is_opened: bool) -> None:
    """Write one HTML file about the run directories RUN: curves, plan, time, memory, machine; several are compared.

    \b
    loradock report runs/first
    loradock report runs/first runs/second --output both.html
    loradock report runs/first --watch

    The file opens from disk and loads nothing from a network. A run may be unfinished or failed.
    """
    if watch and output:
        raise UsageError("--watch writes no file", hint="leave out --output, or --watch")
    if port and not watch:
        raise UsageError("--port is for --watch", hint="leave out --port, or add --watch")
    if output and not output.absolute().parent.is_dir():
        folder = output.parent
        raise NotWritable(f"the folder {folder} does not exist", hint=f"mkdir -p {shlex.quote(str(folder))}")
    runs = tuple(map(run_directory, runs))
    if watch:
        serve(runs, port=port or 0, is_opened=is_opened)
        return
    from loradock.analysis.report.html import render
    from loradock.analysis.report.html.runs import read
    from loradock.files import atomic_io
    from loradock.files.system_errors import storage_error

    text = render.html(read(runs))
    file = output or default_file(runs)
    try:
        atomic_io.replace(file, text)
    except OSError as error:
        raise storage_error(error, file) from error
    click.echo(file)
    if is_opened:
        show(file.resolve().as_uri())


def run_directory(named: Path) -> Path:
    """The run that was meant: the directory itself, that of its run.json, or the only run in a folder of runs.

    InputMissing with the runs that lie in a folder of several, the newest first; what holds none is left to the reader.
    """
    if named.name == RECORD and named.is_file():
        return named.parent
    if (named / RECORD).is_file() or not named.is_dir():
        return named
    records = sorted(named.glob(f"*/{RECORD}"), key=lambda file: -file.stat().st_mtime)
    directories = [record.parent for record in records]
    if len(directories) < 2:
        return directories[0] if directories else named
    listed = some_of(directories, most=LISTED_RUNS)
    hint = f"loradock report {shlex.quote(str(directories[0]))} (the newest)"
    raise InputMissing(f"{named} is a folder of several runs: {listed}", hint=hint)


def serve(runs: tuple[Path, ...], *, port: int, is_opened: bool) -> None:
    """Answer until a signal comes: that is how it ends, and no error."""
    from loradock.analysis.report.html.server import Server

    with Server(runs, port=port) as server:
        server.page()  # what is wrong with a run is reported now
        click.echo(server.url)
        click.echo("Ctrl-C ends it", err=True)
        if is_opened:
            show(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("ended", err=True)


def default_file(runs: tuple[Path, ...]) -> Path:
    """Inside the run; of several, in the current folder and named after them."""
    if len(runs) == 1:
        return runs[0] / REPORT
    names = [run.resolve().name for run in runs]
    suffix = [f"{len(names) - NAMED_RUNS}-more"] if len(names) > NAMED_RUNS else []
    return Path("report-" + "-vs-".join([*names[:NAMED_RUNS], *suffix]) + ".html")


def show(address: str) -> None:
    """Ask for a browser; a machine may have none."""
    if not webbrowser.open(address):
        click.echo(f"no browser was found; open {address}", err=True)
