"""`loradock reproduce`: a run made again from its record, compared step by step."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loradock.commands.page import say
from loradock.commands.paths import LocalPath
from loradock.errors import NotReproduced, UsageError, WithinBound
from loradock.text.amounts import counted
from loradock.training.run_dir.paths import RECORD

if TYPE_CHECKING:
    from loradock.analysis.reproduce.comparison import Comparison
    from loradock.analysis.reproduce.differences import Difference
    from loradock.analysis.reproduce.original import Original
    from loradock.config.schema import RunConfig

MOST_STEPS = 50
SKIP_CHECK = "--skip-env-check"
FILE = LocalPath(exists=True, dir_okay=False)


class Rows(LocalPath):
    """A file of rows; the address that a run has in its place stays text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or the address."""
        from loradock.analysis.reproduce.places import is_fetched

        return value if is_fetched(str(value)) else super().convert(value, param, ctx)


@click.command()
@click.argument("run", type=LocalPath(exists=True))
@click.option("--check-only", is_flag=True, help="Say what differs from the record, and train nothing.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Repeat this many [default: to the first evaluation, at most 50]."
)
@click.option("--whole", is_flag=True, help="Repeat all steps, and compare the adapter's bytes.")
@click.option("--model", type=LocalPath(exists=True, file_okay=False), help="Where the base lies now.")
@click.option("--data", type=Rows(), multiple=True, help="Where the rows lie now, once for each source.")
@click.option("--validation", type=Rows(), multiple=True, help="Where its validation files lie, once for each.")
@click.option("--template", type=FILE, help="Where a chat template in a file of its own lies.")
@click.option("--embedding-template", type=FILE, help="Where an embedding template in a file of its own lies.")
@click.option("--adapter", type=LocalPath(exists=True), help="Where the adapter lies that the run began with.")
@click.option("--deepspeed", type=FILE, help="Where the run's own DeepSpeed configuration lies.")
@click.option("--fetch", is_flag=True, help="Fetch rows from the addresses that the record names.")
@click.option("-o", "--output", type=LocalPath(), help="Directory of the repeat [default: RUN-again].")
@click.option("--trust-remote-code", metavar="NAME", help="Run the model's own code: its name, repeated.")
@click.option(SKIP_CHECK, "skips_check", is_flag=True, help="Train without the environment check.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on stdout.")
def reproduce(
    run: Path,
    *,
    check_only: bool,
    steps: int | None,
    whole: bool,
    output: Path | None,
    trust_remote_code: str | None,
    skips_check: bool,
    as_json: bool,
    **places: Any,
) -> None:
    """Make RUN again from its record, and compare: losses, gradient norms, evaluations, the adapter's bytes.

    \b
    loradock reproduce runs/mine --check-only
    loradock reproduce runs/mine
    loradock reproduce runs/mine --whole
    loradock reproduce run.json --model DIR --data rows.jsonl
    loradock reproduce again.tar

    RUN is a run's directory, its run.json, the adapter in it, or a bundle of it (loradock bundle create --run).
    First it says what differs here from the record (code, packages, machine, base, rows, settings), and what each may
    change. Then it trains in a directory of its own, which the same command continues after a kill. It ends with 0
    where all that was compared is equal to the last bit, with 86 where only the CPU's kernels differ and no step lies
    further apart than was measured for such, and with 85 otherwise; with --check-only, with 85 where something differs
    that may change a bit.
    """
    from loradock.analysis.reproduce import differences
    from loradock.analysis.reproduce.artefact import places_in
    from loradock.analysis.reproduce.original import CARD, as_repeated, opened
    from loradock.analysis.reproduce.places import Places, located, require
    from loradock.machine import Host, probe

    if check_only and (whole or steps):
        raise UsageError(
            "--check-only trains nothing: --steps and --whole have no effect", hint="leave one of them out"
        )
    if whole and steps:
        raise UsageError("--whole and --steps cannot be used together", hint="leave one of them out")
    original = opened(laid_out(run) if run.is_file() and run.name not in (RECORD, CARD) else run)
    output = output or original.title.absolute().with_name(f"{original.title.absolute().name}-again")
    inputs = Places(**places)
    if original.bundle:
        inputs = inputs.before(places_in(original.bundle, original))
    config = as_repeated(original, located(original, inputs), output=output, trusted=trust_remote_code)
    require(original, config, fetches=inputs.fetch)
    findings = differences.all_of(original, config, probe.gather(Host()))
    result: dict[str, Any] = {"run": str(original.title), "differences": [asdict(each) for each in findings]}
    if not as_json:
        for line in heading(original, findings):
            say(line)
    if check_only:
        finish(result, as_json=as_json, parted=differing(findings))
        return
    steps_wanted = steps_to_repeat(original, steps=steps, whole=whole)
    if steps and steps_wanted and steps_wanted < min(steps, original.steps):
        say(f"the run measured step {steps_wanted}, and none from there to step {steps}", stderr=as_json)
    options = (SKIP_CHECK,) if skips_check else ()
    compared = repeated(original, config, steps_wanted=steps_wanted, options=options, result=result, as_json=as_json)
    finish(result, as_json=as_json, parted=verdict(original, compared, result))


def steps_to_repeat(original: Original, *, steps: int | None, whole: bool) -> int | None:
    """How many steps are repeated, None for all: of those asked for, up to the last that the run measured.

    UsageError where the run had something else from a step before on.
    """
    from loradock.analysis.reproduce.attempts import turns

    changed = turns(original.record)
    count = steps or (original.steps if whole else min(original.first_evaluation or MOST_STEPS, MOST_STEPS))
    count = min(count, original.steps)
    setting = next((turn for turn in changed if turn.is_setting), None)
    if setting:
        what = f"from step {setting.step + 1} on the run had {setting.name} {setting.now}, and {setting.was} before"
        raise UsageError(f"{what}: no one configuration makes it again", hint="--check-only says what differs")
    first = changed[0] if changed else None
    if first and first.step < count:
        what = f"from step {first.step + 1} on the run had {first.name} {first.now}, and {first.was} before"
        if whole or steps or not first.step:
            raise UsageError(f"{what} ({first.why}): no one run repeats both", hint=f"--steps {max(1, first.step)}")
        return first.step
    return None if whole else original.last_measured(count)


def laid_out(file: Path) -> Path:
    """The folder of a bundle, beside it; UsageError where another bundle lies there."""
    from loradock.delivery.image.bundle.load import holds, lay_out

    folder = file.with_suffix("")
    if folder == file:
        raise UsageError(
            f"{file} is not a run, and not a bundle (.tar)", hint="a run's directory, run.json, or NAME.tar"
        )
    if not holds(folder, file):
        manifest = lay_out(file, folder)
        say(f"laid out {file} ({manifest.digest}) in {folder}", stderr=True)
    return folder


def heading(original: Original, findings: list[Difference]) -> list[str]:
    """What the run was, and what differs."""
    record = original.record
    about = f"{original.title}: loradock {record.get('loradock')}, {str(record.get('started'))[:10]}"
    lines = [f"{about}, {counted(original.steps, 'step')}, {original.processes} process(es)"]
    return lines + ([f"differs: {each.line}" for each in findings] or ["nothing differs from the record"])


def differing(findings: list[Difference]) -> str | None:
    """What may change a bit, by name; None where nothing may."""
    names = [each.name for each in findings if each.changes != "nothing"]
    return f"differs: {', '.join(names)}" if names else None


def repeated(
    original: Original,
    config: RunConfig,
    *,
    steps_wanted: int | None,
    options: tuple[str, ...],
    result: dict[str, Any],
    as_json: bool,
) -> Comparison:
    """Train, and compare; what only a started run knows is added to the differences."""
    from loradock.analysis.reproduce import differences
    from loradock.analysis.reproduce.comparison import Measured, compared
    from loradock.analysis.reproduce.original import resumed_at
    from loradock.analysis.reproduce.repeat import repeat
    from loradock.commands.page import console_on
    from loradock.training.run_dir import recorded
    from loradock.training.run_dir.record import metrics

    output = Path(config.output or "")
    say(
        f"repeating {steps_wanted or original.steps} of {counted(original.steps, 'step')} in {output} ...",
        stderr=as_json,
    )

    with console_on(stderr=True).status("training") as status:

        def show(step: int) -> None:
            status.update(f"step {step} of {steps_wanted or original.steps}")

        repeat(
            config,
            processes=original.processes,
            steps=steps_wanted,
            evaluation=original.last_evaluation(steps_wanted or original.steps),
            options=options,
            on_step=show,
        )
    record_now = recorded.read(output)
    more = differences.of_start(original.record["fingerprint"], record_now["fingerprint"])
    result["differences"] += [asdict(each) for each in more]
    for each in more:
        say(f"differs: {each.line}", stderr=as_json)
    first = Measured({"train": original.train, "eval": original.evaluations}, original.resumed_at)
    lines = {kind: metrics(output, kind) for kind in first.lines}
    comparison = compared(first, Measured(lines, resumed_at(record_now)), steps=steps_wanted or original.steps)
    result["comparison"] = comparison.as_dict()
    with contextlib.suppress(KeyError):
        name = "adapter_model.safetensors"
        result["adapter"] = {"was": original.record["adapter_sha256"][name], "now": record_now["adapter_sha256"][name]}
    return comparison


def verdict(original: Original, compared: Comparison, result: dict[str, Any]) -> str | None:
    """Why the repeat is another run than the first; None where it is the same. Adds the verdict's words.

    `is_within_bound`: all that differs are kernels of a CPU, and no step lies further apart than was measured for such.
    """
    from loradock.analysis.reproduce import bound

    causes = [each["name"] for each in result["differences"] if each["changes"] != "nothing"]
    cause = f"; differs: {', '.join(causes)}" if causes else "; nothing was found to differ"
    if not compared.steps:
        return f"no step of {original.title} could be compared: its metrics.jsonl has none"
    if compared.parted is not None:
        far = f"largest relative difference {compared.largest:.1e} at step {compared.at}"
        dtype = original.decided("compute_dtype") if original.decided("device") == "cpu" else None
        if bound.is_kernels(causes, dtype=dtype) and bound.is_within(compared.differences):
            result["is_within_bound"] = True
            limit = f"{bound.bound_at(compared.at or 1):.1e}"
            return f"within the bound of another instruction set ({limit} there): {far}{cause}"
        known = f"; {bound.unknown(causes, dtype=dtype)}" if causes else ""
        return f"parted at step {compared.parted} ({far}){cause}{known}"
    adapter = result.get("adapter")
    if adapter and adapter["was"] != adapter["now"]:
        return f"identical to step {compared.steps}, and the adapters differ{cause}"
    result["verdict"] = f"identical to step {compared.steps}" + (", with the same adapter" if adapter else "")
    return None


def finish(result: dict[str, Any], *, as_json: bool, parted: str | None) -> None:
    """Print the verdict. NotReproduced where it is that something parted, WithinBound where that is bounded."""
    result["verdict"] = parted or result.get("verdict", "nothing differs that may change a bit")
    if as_json:
        click.echo(json.dumps(result, indent=2))
    elif not parted:
        say(result["verdict"])
    if parted:
        raise (WithinBound if result.get("is_within_bound") else NotReproduced)(parted)
