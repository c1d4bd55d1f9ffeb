"""`loradock merge`: an adapter and its base as one model directory."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.catalog.storages import STORAGES
from loradock.commands.model_options import BASE_MODEL, TRUST, quiet
from loradock.commands.page import console_on, say
from loradock.commands.paths import LocalPath
from loradock.process import signals, streams
from loradock.text.amounts import needed_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loradock.use.merge.job import Job
    from loradock.use.merge.merge import Merged
    from loradock.use.merge.plan import Kind


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("adapter", metavar="RUN|ADAPTER", type=LocalPath(exists=True, file_okay=False))
@click.argument("output", metavar="OUT", type=LocalPath())
@click.option(
    "--onto",
    type=click.Choice(("auto", "trained", "original")),
    default="auto",
    show_default=True,
    help="trained: the weights of training (dequantised NF4); original: the base's files. auto: trained for NF4 runs.",
)
@click.option(
    "--dtype",
    type=click.Choice(("auto", "bf16", "f16", "f32")),
    default="auto",
    show_default=True,
    help="Of the merged weights; auto: as the base's files.",
)
@click.option("--checkpoint", type=click.IntRange(min=0), metavar="N", help="Of a run: the adapter of step N.")
@click.option(
    "--verify",
    type=click.Choice(("weights", "full")),
    default="weights",
    show_default=True,
    help="weights: read the files back; full: also load them in another process and compare with base and adapter.",
)
@click.option("--compare", is_flag=True, help="Of an NF4 run: print the loss of both merges on its held-out rows.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and the disk and memory it needs.")
@click.option("--quantization", type=click.Choice(tuple(STORAGES)), help="How the base was stored, if not recorded.")
@BASE_MODEL
@TRUST
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def merge(
    adapter: Path, output: Path, *, verify: str, compare: bool, dry_run: bool, as_json: bool, **asked: Any
) -> None:
    """Merge an adapter into its base: OUT is a model directory that needs neither loradock nor PEFT.

    \b
    loradock merge runs/a-001 merged
    loradock merge runs/a-001 merged --dtype f32 --verify full

    An adapter of an NF4 run was trained on dequantised NF4 weights, so by default these are what it is added to.
    OUT appears whole or not at all. merge.json in it has the hashes of what was merged and of each file.
    """
    quiet()
    from loradock.files.staged import refuse_existing
    from loradock.use.merge.job import Asked, prepared

    refuse_existing(output)
    with redirect_stdout(sys.stderr), prepared(adapter, Asked(**asked)) as job:
        _show_job(job)
        compared = _compared(job) if compare else {}
        result = _facts(job) if dry_run else _merged(job, output, verify=verify)
    if not dry_run:
        streams.result_lies_elsewhere()
    if as_json:
        click.echo(json.dumps(result | compared, indent=2))
    elif dry_run:
        needs = f"{result['tensors']:,} tensors, {result['disk']} of disk, {result['memory']} of memory"
        click.echo(f"dry run, nothing is written: {output} would need {needs}")
    else:
        click.echo(f"{output}: {result['tensors']:,} tensors, {result['proof']}")


def _show_job(job: Job) -> None:
    from loradock.model.adapter_tensors import NO_TEXT

    plan = job.plan
    say(f"onto the {plan.onto} weights: {job.why}", stderr=True)
    kinds: tuple[Kind, ...] = ("merge", "replace", "dequantise")
    counts = ", ".join(f"{plan.count(kind)} to {kind}" for kind in kinds)
    copied = plan.count("copy") + plan.count("cast")
    untied = "; head and embedding become two" if plan.is_untied else ""
    say(f"tensors: {counts}, {copied} to copy{untied}", stderr=True)
    if parts := plan.adapted.beside:
        what = f"{len(parts)} tensors of the adapter are passed over (none of them trained)"
        say(f"note: {what}: {NO_TEXT}", stderr=True)


def _compared(job: Job) -> dict[str, Any]:

    from loradock.commands.model_options import counted
    from loradock.use.merge.compare import compare

    with console_on(stderr=True).status("held-out rows") as status:
        comparison = compare(job, progress=counted(status, "rows compared"))
    losses = (
        f"trained {comparison.trained:.5f}, original {comparison.original:.5f}, "
        f"the adapter itself {comparison.adapter:.5f}"
    )
    wins = f"onto trained is lower on {comparison.trained_wins} rows"
    say(f"loss a token over {comparison.rows} held-out rows, merged onto: {losses}; {wins}", stderr=True)
    return {"compared": asdict(comparison)}


def _facts(job: Job) -> dict[str, Any]:

    plan = job.plan
    return {
        "onto": plan.onto,
        "why": job.why,
        "tensors": len(plan.steps),
        "disk": needed_text(plan.disk_bytes),
        "disk_bytes": plan.disk_bytes,
        "memory": needed_text(plan.memory_bytes),
        "memory_bytes": plan.memory_bytes,
    }


def _merged(job: Job, output: Path, *, verify: str) -> dict[str, Any]:

    from loradock.use.merge.run import run

    with console_on(stderr=True).status("merge") as status:

        def show(done: int, total: int) -> None:
            signals.check()
            status.update(f"{done:,} of {total:,} tensors")

        merged, proven = run(job, output, is_full=verify == "full", progress=show)
    _warn_of_faint(merged)
    proof = "files read back"
    if verified := proven.get("verified"):
        proof = (
            f"scores differ from base and adapter by {verified['score_max']:.2g} at most"
            if "score_max" in verified
            else f"KL from base and adapter {verified['kl_mean']:.2g} nats per token{_of_rounding(verified)}"
        )
    return {**_facts(job), "output": str(output), "files": dict(merged.files), "proof": proof, **proven}


def _of_rounding(verified: Mapping[str, Any]) -> str:
    """What is said besides where rounding moved the answers further than usual."""
    if "kl_rounded" not in verified:
        return ""
    return f", all of it rounding: {verified['kl_rounded']:.2g} from PEFT's own merge rounded alike"


def _warn_of_faint(merged: Merged) -> None:
    if merged.faint:
        count = f"{len(merged.faint)} of {len(merged.unchanged)} layers"
        what = f"{count} keep more than 90 % of their weights after rounding"
        say(f"warning: {what}, first {merged.faint[0]}; --dtype f32 keeps what the adapter adds", stderr=True)
