"""Run campaigns: `PYTHONPATH=tests python -m faults.campaign P1 --trials 200`; a campaign goes on where it stopped.

Lines that go to bench/results/reliability/ bring docs/reliability.md up to date.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from faults.campaign import calls, failing, kills, records, stops, table
from faults.campaign.bench import Bench, make_inputs
from faults.campaign.processes import ENVIRONMENT, Process, adopt, die_with_parent, preload
from faults.campaign.subjects import ENGINES, SUBJECTS, Stock, subject_named

CAMPAIGNS: dict[str, ModuleType] = {each.PROMISE: each for each in (kills, calls, stops, failing)}
SHORT = {"P1": 2, "P2": 6, "P6": 3, "P19": 2}


def main() -> None:
    """Run what was asked for; exit 1 where a trial of the product was not ok."""
    asked = arguments().parse_args()
    if asked.table:
        click.echo(table.text(place=asked.place), nl=False)
        return
    os.environ.update(ENVIRONMENT)
    sys.path[:0] = [str(records.ROOT / "src"), str(records.ROOT / "tests")]
    adopt()
    subject = subject_named(asked.subject, engine=asked.engine)
    preload(subject.package, libraries=subject.libraries)
    folder = Path(tempfile.mkdtemp(prefix="campaign-", dir=asked.folder))
    bench = Bench(folder=folder, subject=subject, inputs=make_inputs(folder / "inputs"))
    flawed = [line for promise in asked.promises for line in campaign(promise, asked, bench) if line["result"] != "ok"]
    if asked.place == records.PLACE:
        records.pack()
        table.PAGE.write_text(table.text(), encoding="utf-8")
    if flawed and asked.subject != Stock.name:
        click.echo(f"what the last trials left is in {folder}", err=True)
        sys.exit(1)
    shutil.rmtree(folder)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="faults.campaign", description=__doc__)
    parser.add_argument("promises", nargs="*", choices=[[], *CAMPAIGNS], help="P1, P2, P6, P19")
    parser.add_argument("--subject", default="loradock", choices=SUBJECTS)
    parser.add_argument("--engine", default="fast", choices=ENGINES, help="the training loop of loradock")
    parser.add_argument("--trials", type=int, help="stop when so many are done (default: all)")
    parser.add_argument("--short", action="store_true", help="a few of each, as in CI")
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side")
    parser.add_argument("--place", type=Path, default=records.PLACE, help="where the JSON lines are kept")
    parser.add_argument("--folder", type=Path, help="where the runs are made (default: the temporary directory)")
    parser.add_argument("--table", action="store_true", help="print docs/reliability.md from the JSON lines")
    return parser


def campaign(promise: str, asked: Any, bench: Bench) -> list[records.Line]:
    """Make the trials that this commit still lacks, side by side; returns all of its lines."""
    module, folder = CAMPAIGNS[promise], bench.folder
    every = list(failing.QUICK) if asked.short and module is failing else module.trials(bench)
    bench.total = len(every)
    wanted = every[: SHORT[promise] if asked.short else asked.trials]
    left = [trial for trial in wanted if trial not in {line["trial"] for line in own_lines(promise, asked, bench)}]
    name = f"{promise} {asked.subject} ({bench.subject.engine})"
    click.echo(f"{name} {records.commit()}: {len(wanted)} trials, {len(left)} to make")
    workers = [
        Process(
            lambda part=left[job :: asked.jobs]: work(module, part, bench, asked.place),
            cwd=folder,
            log=folder / f"{promise}-worker-{job}",
            environment={},
        )
        for job in range(min(asked.jobs, len(left)))
    ]
    for worker in workers:
        ended = worker.finish(seconds=1e6)
        assert ended.exit_code == 0, worker.text()[-3000:]
    lines = [line for line in own_lines(promise, asked, bench) if line["trial"] in wanted]
    click.echo(f"{name}: {tally(lines)}")
    return lines


def work(module: ModuleType, trials: Sequence[Any], bench: Any, place: Path) -> None:
    """Make these trials one after the other, and append a line for each."""
    adopt()
    die_with_parent()
    for trial in trials:
        try:
            line = module.trial(trial, bench)
        except Exception:
            traceback.print_exc()
            raise
        click.echo(records.append(line, place=place))


def own_lines(promise: str, asked: Any, bench: Bench) -> list[records.Line]:
    """The lines of this commit, subject and engine."""
    wanted = (records.commit(), asked.subject, bench.subject.engine)
    return [
        line
        for line in records.lines(promise, place=asked.place)
        if (line["commit"], line["subject"], line.get("engine")) == wanted
    ]


def tally(lines: Sequence[records.Line]) -> dict[str, int]:
    """How often each result came."""
    results = [line["result"] for line in lines]
    return {result: results.count(result) for result in sorted(set(results))}


if __name__ == "__main__":
    main()
