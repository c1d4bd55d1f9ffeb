"""`loradock render`: a run as Kubernetes objects, sized from its plan; and the check of any manifest."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import click

from loradock.commands.page import say
from loradock.commands.paths import LocalPath, OutputFile
from loradock.commands.render_check import check, refusals
from loradock.commands.render_options import Site, SiteCommand
from loradock.commands.run_options import Ask, run_options
from loradock.errors import DiskFull, NotWritable, UsageError
from loradock.files import atomic_io

KIND_NAMES = ("pod", "job", "jobset", "trainjob")
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@click.command(cls=SiteCommand)
@click.argument("kind", required=False, type=click.Choice(KIND_NAMES))
@run_options
@click.option("--demo", is_flag=True, help="Render the embedded demo, which needs no GPU.")
@click.option(
    "--explain", "is_explained", is_flag=True, help="Add a comment above each field that says why it is there."
)
@click.option("--json", "as_json", is_flag=True, help="Print objects, sizes with reasons and warnings as JSON.")
@click.option("-o", "file", type=OutputFile(".yaml", ".yml", ".json"), metavar="FILE", help="Write to FILE.")
@click.option(
    "--check", "checked", type=LocalPath(), multiple=True, metavar="FILE",
    help="Check a manifest instead, ours or any other.",
)  # fmt: skip
@click.option("--skip", "skipped", multiple=True, metavar="RULE", help="With --check: skip a rule.")
@click.option("--strict", "is_strict", is_flag=True, help="With --check: warnings are errors.")
def render(
    ask: Ask,
    *,
    kind: str | None,
    demo: bool,
    site: Site,
    is_explained: bool,
    as_json: bool,
    file: Path | None,
    checked: tuple[Path, ...],
    skipped: tuple[str, ...],
    is_strict: bool,
) -> None:
    """Write a run as Kubernetes objects: KIND is pod, job, jobset or trainjob.

    \b
    loradock render pod --demo
    loradock render job run.yaml --image REF@sha256:... --gpu h200 --data-claim data --output-claim runs
    loradock render jobset run.yaml --gpu h200 --gpus 8 --nodes 2 --queue team-a --explain
    loradock render job --reproduce runs/mine --gpu h200 --data-claim data --output-claim runs --whole
    loradock render --check manifest.yaml

    The configuration becomes a ConfigMap. Its relative paths start at the data volume; no cluster is contacted.
    """
    from loradock.commands.render_workload import described
    from loradock.delivery.kubernetes import kinds
    from loradock.delivery.kubernetes.explain import explain
    from loradock.delivery.kubernetes.write import yaml_text

    if checked:
        check(checked, skipped=skipped, is_strict=is_strict, as_json=as_json)
        return
    if skipped or is_strict:
        raise UsageError(f"{'--skip' if skipped else '--strict'} is for --check", hint="--check FILE")
    if kind is None:
        raise UsageError("which kind?", hint=f"loradock render {'|'.join(KIND_NAMES)} ..., or --check FILE")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    workload, warnings = described(ask, site=site, is_demo=demo)
    objects = kinds.named(kind).objects(workload)
    text = yaml_text(objects, explain=explain(workload) if is_explained else None)
    warnings += refusals(text)
    for warning in warnings:
        say(f"warning: {warning}", stderr=True)
    if as_json:
        content = {"objects": objects, "sizes": workload.sizes.as_dict(), "warnings": warnings}
        text = json.dumps(content, indent=2) + "\n"
    put(text, file)


def put(text: str, file: Path | None) -> None:
    """To the file, whole or not at all, or to stdout."""
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        if file.exists() and not file.is_file():  # a pipe or a device
            file.write_text(text, encoding="utf-8")
        else:
            atomic_io.replace(file.resolve(), text)
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else NotWritable
        raise kind(f"cannot write {file}: {error.strerror}", hint="-o FILE elsewhere") from error
