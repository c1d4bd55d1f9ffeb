"""The run that is to be made again: its record, its measured steps, and its configuration with what was decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loradock.analysis.reproduce.attempts import first_micro_batch
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, InputMissing, Problem, UsageError
from loradock.training.run_dir import enclosed, recorded
from loradock.training.run_dir.paths import ADAPTER, RECORD
from loradock.training.run_dir.record import metrics

BUNDLED = enclosed.FOLDER
"""The part of a bundle, or the folder in an adapter, that holds the record of a run."""
CARD = "README.md"


@dataclass(frozen=True, kw_only=True)
class Original:
    """A recorded run. `train` and `evaluations` are its lines of metrics.jsonl, none where only the record is there.

    `bundle`: the adapter, or the folder of a bundle that was laid out, where it lies in one.
    """

    directory: Path
    record: Mapping[str, Any]
    config: RunConfig
    train: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    bundle: Path | None = None

    @property
    def title(self) -> Path:
        """What it is called in messages, and its repeat is named after."""
        return self.bundle or self.directory

    @property
    def steps(self) -> int:
        """How many steps it made, as far as it is known."""
        outcome = self.record.get("outcome") or {}
        return int(outcome.get("steps") or (self.train[-1]["step"] if self.train else 0))

    @property
    def processes(self) -> int:
        """How many trained it."""
        return int((self.record.get("facts") or {}).get("world_size") or 1)

    def decided(self, name: str) -> Any:
        """The value of one of the plan's decisions; None where it has none of that name."""
        decisions = (self.record.get("plan") or {}).get("decisions", [])
        return next((each["value"] for each in decisions if each["name"] == name), None)

    @property
    def resumed_at(self) -> frozenset[int]:
        """The steps that it was continued from."""
        return resumed_at(self.record)

    @property
    def first_evaluation(self) -> int | None:
        """The step of the first evaluation."""
        return self.evaluations[0]["step"] if self.evaluations else None

    def last_evaluation(self, steps: int) -> int:
        """The step of the last evaluation up to `steps` that a repeat holds, too; 0 where there is none.

        A run whose cadence was widened had evaluations before that its repeat, with the last cadence, has not.
        """
        every = (self.decided("cadence") or {}).get("evaluate")
        held = [line["step"] for line in self.evaluations if line["step"] <= steps]
        return max((step for step in held if step >= self.steps or (every and step % every == 0)), default=0)

    def last_measured(self, steps: int) -> int:
        """The last step up to `steps` that a repeat can be compared at; `steps` itself where none is known."""
        return max((line["step"] for line in (*self.train, *self.evaluations) if line["step"] <= steps), default=steps)


def resumed_at(record: Mapping[str, Any]) -> frozenset[int]:
    """The steps of the checkpoints that a recorded run was continued from."""
    names = [each.get("resumed_from") for each in (*record.get("attempts", ()), record)]
    return frozenset(int(name.removeprefix("checkpoint-")) for name in names if name)


def opened(path: Path) -> Original:
    """The run of a directory, of its run.json, of an adapter or its card, or of a bundle's folder.

    InputMissing where there is none, StorageError for a record that is damaged, ConfigError for one whose
    configuration this version does not know.
    """
    path = path.absolute()
    directory = folder = path.parent if path.name in (RECORD, CARD) else path
    is_in_run = folder.name == ADAPTER and (folder.parent / RECORD).is_file()
    is_bundle = not is_in_run and not (folder / RECORD).is_file() and (folder / BUNDLED / RECORD).is_file()
    if is_bundle:
        directory = folder / BUNDLED
    elif not (folder / RECORD).is_file() and (folder.parent / RECORD).is_file():
        directory = folder.parent
    if not (directory / RECORD).is_file():
        is_adapter = (path / "adapter_config.json").is_file()
        hint = f"loradock runs {path if path.is_dir() else path.parent}"
        if is_adapter:
            hint = "an older adapter: run.json lies beside its folder; ask who trained it for that"
        raise InputMissing(f"{path} is not a run: there is no {RECORD} in it", hint=hint)
    record = recorded.read(directory)
    if not record.get("fingerprint"):
        what = f"{directory / RECORD}: the run ended before its first step, and recorded nothing to repeat"
        raise UsageError(what, hint="loradock train with its settings")
    try:
        config = RunConfig.model_validate(record["config"])
    except ValidationError as error:
        problems = [
            Problem(what=f"{'.'.join(map(str, each['loc']))}: {each['msg']}", file=str(directory / RECORD))
            for each in error.errors()
        ]
        what = f"the configuration in {directory / RECORD} is another version's (loradock {record.get('loradock')})"
        raise ConfigError(what, hint="use that version, or its image", problems=problems) from None
    train, evaluations = (metrics(directory, kind) for kind in ("train", "eval"))
    return Original(
        directory=directory,
        record=record,
        config=config,
        train=train,
        evaluations=evaluations,
        bundle=folder if is_bundle else None,
    )


def as_repeated(original: Original, config: RunConfig, *, output: Path, trusted: str | None) -> RunConfig:
    """The configuration of the repeat: a located one with what was decided, in another directory, nothing after it.

    A record may come from anybody: it names no place to write. UsageError where the model's own code was run and
    `trusted` does not name it.
    """
    record = original.record
    if config.model.trust_remote_code and not trusted:
        what = f"the run executed the code of {config.model.trust_remote_code}; a record alone does not allow that"
        raise UsageError(what, hint=f"--trust-remote-code {config.model.trust_remote_code}")
    cadence = original.decided("cadence") or {}
    evaluation: dict[str, Any] = {"tasks": ()}
    if original.evaluations and cadence.get("evaluate"):
        evaluation["every"] = cadence["evaluate"]
    date = (record.get("data") or {}).get("date") or config.data.date
    micro_batch = first_micro_batch(record)
    threads = original.decided("threads")
    train = {"micro_batch": micro_batch} if micro_batch else {}
    train |= {"threads": threads} if threads else {}
    return config.model_copy(
        update={
            "name": None,
            "output": str(output),
            "engine": original.decided("engine") or config.engine,
            "model": config.model.model_copy(update={"trust_remote_code": trusted}),
            "data": config.data.model_copy(update={"date": date, "cache": None}),
            "train": config.train.model_copy(update=train),
            "evaluation": config.evaluation.model_copy(update=evaluation),
            "logging": config.logging.model_copy(update={"every": cadence.get("log", 1), "trackers": ()}),
            "after": type(config.after)(),
        }
    )
