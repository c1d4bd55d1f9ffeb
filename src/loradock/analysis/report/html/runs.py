"""What a run directory holds, read leniently: a run that failed early, goes on, or is older than this version."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loradock.errors import InputMissing
from loradock.files import foreign_json, nearby, regular
from loradock.files.system_errors import storage_error
from loradock.text import redact
from loradock.training.run_dir.paths import CHECKPOINTS, RECORD, STATUS

METRICS = "metrics.jsonl"
MONITOR = "monitor.jsonl"
SCORES = "evaluations/results.json"
"""What `loradock evaluate` found of the run last."""
FILES = (RECORD, STATUS, METRICS, MONITOR, SCORES)

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. `train`, `evaluations` and `checkpoints` are metric lines in the order of their steps.

    `label` names it among the others of a report; `samples` are those of the monitor; `scores` what `loradock evaluate`
    found last; `kept` names the checkpoints that are left; `notes` says what could not be read.
    """

    directory: Path
    label: str
    record: Mapping[str, Any]
    status: Mapping[str, Any]
    train: Sequence[Line]
    evaluations: Sequence[Line]
    checkpoints: Sequence[Line]
    samples: Sequence[Line]
    scores: Mapping[str, Any]
    kept: tuple[str, ...]
    notes: tuple[str, ...]

    def at(self, *path: str, default: Any = None) -> Any:
        """What run.json holds under these keys; `default` where it holds nothing there."""
        return at(self.record, *path, default=default)

    def section(self, *path: str) -> Mapping[str, Any]:
        """The object under these keys; empty where there is none."""
        section = self.at(*path)
        return section if isinstance(section, Mapping) else {}

    @property
    def decisions(self) -> list[Mapping[str, Any]]:
        """The decisions of the plan, and those that the engine took once it had the model."""
        decisions = [*listed(self.at("plan", "decisions")), *listed(self.at("engine"))]
        return [decision for decision in decisions if "name" in decision]


def read(directories: Sequence[Path]) -> list[Run]:
    """The runs in these directories. InputMissing for one without a run, StorageError for one that cannot be read."""
    return labelled([read_one(directory) for directory in directories])


def read_one(directory: Path) -> Run:
    """The run in a directory; what is no secret of this process or of a known form."""
    if not (directory / RECORD).is_file():
        is_here = directory.exists()
        hint = "name the directory that holds run.json" if is_here else nearby.hint(directory, str(directory))
        raise InputMissing(f"there is no run in {directory}", hint=hint)
    notes: list[str] = []
    secrets = redact.of(os.environ)
    names = (RECORD, STATUS, SCORES)
    record, status, scores = (cleaned(document(directory / name, notes), secrets) for name in names)
    metrics = [line for line in lines(directory / METRICS, notes) if number(line.get("step")) is not None]
    return Run(
        directory=directory,
        label=directory.resolve().name,
        record=record,
        status=status,
        train=of_kind(metrics, "train"),
        evaluations=of_kind(metrics, "eval"),
        checkpoints=of_kind(metrics, "checkpoint"),
        samples=lines(directory / MONITOR, notes),
        scores=scores,
        kept=tuple(path.name for path in kept(directory)),
        notes=tuple(notes),
    )


def kept(directory: Path) -> list[Path]:
    """The checkpoints that lie in a run directory, by step."""
    steps = [path for path in (directory / CHECKPOINTS).glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(steps, key=lambda path: int(path.name[11:]))


def labelled(runs: Sequence[Run]) -> list[Run]:
    """The runs, each under a label of its own: the name, with its folder or a number where two have the same."""
    names = [run.label for run in runs]
    full = [
        run.label if names.count(run.label) == 1 else f"{run.directory.resolve().parent.name}/{run.label}"
        for run in runs
    ]
    return [
        replace(run, label=label if full.count(label) == 1 else f"{label} ({position})")
        for position, (run, label) in enumerate(zip(runs, full, strict=True), start=1)
    ]


def stamp(directories: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Size and time (ns) of every file that a report is made of; another stamp means that something was written."""
    marks: list[tuple[int, int]] = []
    for directory in directories:
        for name in FILES:
            try:
                state = (directory / name).stat()
                marks.append((state.st_size, state.st_mtime_ns))
            except OSError:
                marks.append((-1, 0))
    return tuple(marks)


def document(file: Path, notes: list[str]) -> dict[str, Any]:
    """The object in a JSON file; empty, with a note, where there is none in it."""
    text = text_of(file)
    if text is None:
        return {}
    try:
        content = foreign_json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict):
        return content
    notes.append(f"{file.name} holds no JSON object")
    return {}


def lines(file: Path, notes: list[str]) -> list[Line]:
    """The whole lines of a JSON-lines file; a note tells how many were passed over, save one that is being written."""
    texts = (text_of(file) or "").splitlines()
    parsed: list[Line] = []
    broken = 0
    for position, text in enumerate(texts, start=1):
        try:
            line = foreign_json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict):
            parsed.append(line)
        elif position < len(texts):
            broken += 1
    if broken:
        notes.append(f"{file.name}: {broken} damaged line{'s were' if broken > 1 else ' was'} passed over")
    return parsed


def text_of(file: Path) -> str | None:
    """The text of a file, None where there is none."""
    try:
        return regular.read(file, most_bytes=regular.MOST_LINES_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, file) from error


def of_kind(metrics: Sequence[Line], kind: str) -> list[Line]:
    """The lines of one kind by step; of two of the same step the later one, which was made again."""
    line_of = {line["step"]: line for line in metrics if line.get("kind") == kind}
    return [line_of[step] for step in sorted(line_of)]


def cleaned(value: Any, secrets: Mapping[str, str]) -> Any:
    """The value with no secret in any of its texts: a report is passed around."""
    if isinstance(value, dict):
        return {str(key): cleaned(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list):
        return [cleaned(inner, secrets) for inner in value]
    return redact.without(value, secrets) if isinstance(value, str) else value


def at(content: Any, *path: str, default: Any = None) -> Any:
    """What lies under these keys in nested objects; `default` where nothing does."""
    for key in path:
        if not isinstance(content, Mapping) or content.get(key) is None:
            return default
        content = content[key]
    return content


def listed(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """A finite number, or None; of what JSON holds, a truth value is no number."""
    try:
        return float(value) if type(value) in (float, int) and math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


def numbers(records: Sequence[Line], key: str) -> list[float]:
    """The finite numbers under a key, in order."""
    return [value for line in records if (value := number(line.get(key))) is not None]
