"""What a setting costs in accuracy: the baseline and settings trained for as many steps, and asked the same questions.

Everything is done by the commands that a person would type, `train` and `evaluate --against`, in runs that the same
diagnosis continues where it was stopped.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.analysis.diagnose.arms import Arm
from loradock.analysis.diagnose.search import Search
from loradock.analysis.diagnose.verdict import conclude
from loradock.process import python
from loradock.training.run_dir.paths import slug

FOLDER = "accuracy"
TAKEN = ("cause", "helps a little")
BASELINE = "baseline"
TrainWords = Callable[[Sequence[str]], list[str]]
"""Further settings -> the words of `train` after `loradock`."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The tasks, each NAME=FILE; the steps that each run makes; the rows of each task, None for all."""

    tasks: tuple[str, ...]
    steps: int
    limit: int | None = None


def arms_of(search: Search, *, names: Sequence[str]) -> list[Arm]:
    """Whose accuracy is asked: the trials that were named, else those that are faster, and what is recommended."""
    baseline = search.baseline.measured
    if baseline is None:
        return []
    measured = [arm for arm in search.arms if arm.rounds and not arm.failure]
    if names:
        return [arm for arm in measured if len(arm.trials) > 1 or arm.name in names]
    return [arm for arm in measured if arm is search.best or conclude(search.case(arm), baseline).word in TAKEN]


def measure(
    arms: Sequence[Arm], job: Asked, *, train: TrainWords, folder: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Train and ask the baseline, then each arm: `{"steps", "limit", "tasks", "rows": {name: figures or failure}}`.

    An arm that cannot be trained or asked has `failure`, the last line of what it said; without a baseline there is
    nothing to compare with, and no arm is tried.
    """
    baseline = folder / FOLDER / BASELINE
    rows: dict[str, Any] = {}
    for name, settings in ((BASELINE, ()), *((arm.name, arm.settings) for arm in arms)):
        tell(f"accuracy of {name}: {job.steps} steps, then {', '.join(job.tasks)} ...")
        run = folder / FOLDER / slug(name)
        arguments = [*train((*settings, f"train.max_steps={job.steps}")), "--output", str(run)]
        failure = _loradock(arguments, log=run.with_name(f"{run.name}.log"))
        rows[name] = {"failure": failure} if failure else _ask(run, job, against=run != baseline and baseline)
        if "failure" in rows[BASELINE]:
            break
    return {"steps": job.steps, "limit": job.limit, "tasks": list(job.tasks), "rows": rows}


def _ask(run: Path, job: Asked, *, against: Path | bool) -> dict[str, Any]:
    """Each task's score, and its difference from the baseline."""
    arguments = ["evaluate", str(run), *(word for task in job.tasks for word in ("--task", task))]
    arguments += ["--limit", str(job.limit)] if job.limit else []
    arguments += ["--against", str(against)] if against else []
    if failure := _loradock(arguments, log=run.with_name(f"{run.name}.evaluate.log")):
        return {"failure": failure}
    results = json.loads((run / "evaluations" / "results.json").read_text(encoding="utf-8"))
    compared = results.get("against", {}).get("tasks", {})
    scores = {task["task"]: {**task["score"], "majority": task.get("majority")} for task in results["tasks"]}
    return {name: {**score, **_difference(compared.get(name))} for name, score in scores.items()}


def _difference(compared: Mapping[str, Any] | None) -> dict[str, Any]:
    if compared is None:
        return {}
    interval = compared["difference"]
    return {
        "difference": interval["difference"],
        "interval": [interval["low"], interval["high"]],
        "p_holm": compared["p_holm"],
    }


def _loradock(arguments: Sequence[str], *, log: Path) -> str | None:
    """Run the command with its words in a log; None where it went well, else its last error."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            python.command("-m", "loradock", *arguments), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code == 0:
        return None
    output = log.read_text(encoding="utf-8", errors="replace").strip()
    if "error: " not in output:
        return f"exit code {code}: {output[output.rfind(chr(10)) + 1 :]}"
    return "; ".join(line.strip() for line in output[output.rindex("error: ") + len("error: ") :].splitlines())


def lines(content: Mapping[str, Any]) -> Iterator[str]:
    """What came of it, for a person."""
    rows = content["rows"]
    of_each = f", {content['limit']} rows each" if content["limit"] else ""
    yield f"accuracy after {content['steps']} steps ({', '.join(content['tasks'])}{of_each}):"
    for name, outcome in rows.items():
        if "failure" in outcome:
            yield f"  {name}: not measured: {outcome['failure']}"
            continue
        yield f"  {name}: " + "; ".join(_line(task, score) for task, score in outcome.items())


def _line(task: str, score: Mapping[str, Any]) -> str:
    score_text = f"{task} {100 * score['value']:.1f} %"
    if "difference" not in score:
        return f"{score_text} ({100 * score['low']:.1f} to {100 * score['high']:.1f})"
    low, high = (100 * bound for bound in score["interval"])
    verdict = " (worse)" if high < 0 else " (better)" if low > 0 else ""
    return f"{score_text}, {100 * score['difference']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}{verdict}"
