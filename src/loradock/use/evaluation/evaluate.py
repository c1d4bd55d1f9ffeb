"""A model on tasks and rows: what it answered, how good that is, where it was trained on them; and another model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loradock import __version__
from loradock.config.sections.data import SourceConfig
from loradock.data.readers import hub
from loradock.errors import InputMissing
from loradock.files import atomic_io
from loradock.files.system_errors import storage_error
from loradock.training.run_dir.paths import RECORD
from loradock.training.run_dir.resume import read, recorded_config
from loradock.use.evaluation import contamination
from loradock.use.evaluation.asked import Wanted
from loradock.use.evaluation.compare import Comparison, compare
from loradock.use.evaluation.contamination import Contamination
from loradock.use.evaluation.scoring import Scored, remove_staged, score
from loradock.use.evaluation.summary import Score, Summary, score_of, summary, without
from loradock.use.inference.opener import Opened, Origin

RESULTS = "results.json"
FOLDER = "evaluations"
LOOK = "--training-data FILE names what to look at"
RULES = {
    "accuracy": "Wilson's interval; pairs: Newcombe's interval, exact McNemar, Holm over tasks",
    "others": "bootstrap over rows; pairs: bootstrap, random sign flips, Holm over tasks",
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that was evaluated, with what came of each task by name."""

    given: str
    kind: str
    base: str
    digest: str
    dtype: str
    device: str
    has_adapter: bool
    scored: Mapping[str, Scored]

    @property
    def name(self) -> str:
        """As tables name it."""
        return self.given if self.has_adapter or self.kind in ("merged", "base") else f"{self.given} without adapter"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is said of a task; `clean`: the score of the rows that were not trained on, None where all or none were."""

    wanted: Wanted
    scored: Scored
    summary: Summary
    contamination: Contamination | None
    clean: Score | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """An evaluation: the model's results in order, and the comparison of each task where there was another model."""

    model: Model
    settings: Mapping[str, Any]
    results: Sequence[Result]
    other: Model | None
    comparisons: Mapping[str, Comparison]


def evaluate(
    opened: Opened,
    wanted: Sequence[Wanted],
    *,
    given: Path,
    directory: Path,
    batch_tokens: int,
    progress: Callable[[str, int], None],
    has_adapter: bool = True,
) -> Model:
    """All rows of an open model; `has_adapter` False: of its base alone. Raises as `scoring.score` does."""
    origin = opened.origin
    is_adapted = opened.has_adapter and has_adapter
    identity = {
        "model": origin.digest,
        "has_adapter": is_adapted,
        "dtype": str(opened.dtype),
        "device": opened.model.device.type,
    }
    scored: dict[str, Scored] = {}
    for task in wanted:
        name = task.items.name
        method, scorer = task.method(opened), (lambda rows, name=name: progress(name, rows))
        identified = {**identity, "metric": task.metric}
        given_to = {"directory": directory, "identity": identified, "batch_tokens": batch_tokens, "progress": scorer}
        if opened.has_adapter and not has_adapter:
            with opened.without_adapter():
                scored[name] = score(method, task.items, **given_to)
        else:
            scored[name] = score(method, task.items, **given_to)
    return Model(
        given=str(given),
        kind=origin.kind,
        base=origin.base.name,
        digest=identity["model"],
        dtype=str(opened.dtype).removeprefix("torch."),
        device=opened.model.device.type,
        has_adapter=is_adapted,
        scored=scored,
    )


def report(
    model: Model,
    wanted: Sequence[Wanted],
    *,
    settings: Mapping[str, Any],
    other: Model | None = None,
    trained: Sequence[SourceConfig] = (),
) -> Report:
    """What the outcomes say. Raises as `compare` and, for the training rows, `samples` do."""
    texts = list(contamination.texts_of(trained)) if trained else None
    results: list[Result] = []
    for task in wanted:
        scored = model.scored[task.items.name]
        matches = contamination.find(task.items.items, texts) if texts is not None else None
        clean_outcomes = without(scored.outcomes, matches.rows) if matches else []
        results.append(
            Result(
                wanted=task,
                scored=scored,
                summary=summary(task.metric, task.items, scored.outcomes),
                contamination=matches,
                clean=score_of(task.metric, clean_outcomes) if matches and matches.rows and clean_outcomes else None,
            )
        )
    comparisons: dict[str, Comparison] = {}
    if other:
        metrics = {task.items.name: task.metric for task in wanted}
        model_outcomes, baseline_outcomes = (
            {name: scored.outcomes for name, scored in m.scored.items()} for m in (model, other)
        )
        comparisons = compare(metrics, model_outcomes, baseline_outcomes)
    return Report(model=model, settings=settings, results=results, other=other, comparisons=comparisons)


def trained_on(origin: Origin, given: Sequence[Path]) -> tuple[list[SourceConfig], list[str]]:
    """The training rows that can be looked at: those given, else the run's own; and what is to be said of others.

    A run that began with the adapter of another has learned that one's rows as well. A source of which the run used no
    row is left out; of others all rows of the file are looked at.
    """
    if given:
        if missing := [file for file in given if not file.exists()]:
            raise InputMissing(f"{missing[0]} does not exist", hint="--training-data names rows that were trained on")
        return [SourceConfig(path=str(file)) for file in given], []
    sources: list[SourceConfig] = []
    remarks: list[str] = []
    record, run = origin.record, origin.directory.parent
    looked_at = {run.resolve()}
    while record:
        config = recorded_config(record, run)
        known = record.get("data") or {}
        unused = {source["path"] for source in known.get("sources") or () if source.get("rows") == 0}
        for source in config.data.sources:
            if source.path in unused:
                continue
            if hub.is_hub(source.path) or not Path(source.path).exists():
                remarks.append(f"{run} was trained on {source.path}, which is not there: {LOOK}")
            else:
                sources.append(source)
        held_out = config.data.validation
        if known.get("skipped_rows") or (isinstance(held_out, float) and held_out > 0):
            remarks.append(f"rows that {run} left out or held out are looked at as if it had learned them: {LOOK}")
        adapter = config.lora.adapter
        if adapter is None:
            break
        run = _run_of(Path(adapter))
        record = read(run) if (run / RECORD).is_file() and run.resolve() not in looked_at else {}
        looked_at.add(run.resolve())
        if not record:
            remarks.append(f"training began with the adapter {adapter}, whose rows nobody recorded here: {LOOK}")
    return sources, remarks


def _run_of(adapter: Path) -> Path:
    """The directory of the run whose adapter this is; there need not be one."""
    return adapter if (adapter / RECORD).is_file() else adapter.parent


def directory_of(origin: Origin, given: Path) -> Path:
    """Where evaluations of a model are kept unless named: in the run's directory, of others below the working one.

    Never in an adapter or model directory, which is for others.
    """
    if origin.record:
        return origin.directory.parent / FOLDER
    return Path(FOLDER) / given.resolve().name


def write(report_made: Report, directory: Path) -> Path:
    """Put results.json in place, whole. DiskFull, NotWritable or StorageError."""
    file = directory / RESULTS
    try:
        remove_staged(file)
        atomic_io.replace(file, json.dumps(as_dict(report_made), indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise storage_error(error, file) from error
    return file


def as_dict(report_made: Report) -> dict[str, Any]:
    """The report as JSON; what does not apply is left out."""
    content: dict[str, Any] = {
        "loradock": __version__,
        "model": _model(report_made.model),
        "settings": dict(report_made.settings),
        "statistics": RULES,
        "tasks": [_result(result) for result in report_made.results],
    }
    if report_made.other:
        against = {
            "model": _model(report_made.other),
            "tasks": {n: _plain(comparison) for n, comparison in report_made.comparisons.items()},
        }
        files = {name: str(scored.file) for name, scored in report_made.other.scored.items()}
        content["against"] = against | {"rows": files}
    return content


def _model(model: Model) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if name != "scored"}


def _result(result: Result) -> dict[str, Any]:
    items, scored = result.wanted.items, result.scored
    content: dict[str, Any] = {"task": items.name, "file": items.file, "sha256": items.sha256}
    content |= {"rows_of_file": items.of_file, "rows": str(scored.file), **_plain(result.summary)}
    content |= {"computed": scored.computed, "seconds": round(scored.seconds, 2)}
    if result.contamination:
        content["contamination"] = {
            **_plain(result.contamination),
            "clean": _plain(result.clean) if result.clean else None,
        }
    return content


def _plain(value: Any) -> dict[str, Any]:
    return {name: member for name, member in asdict(value).items() if member is not None}
