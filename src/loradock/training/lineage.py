"""How an adapter was trained, as `training.json` beside it says it: what whoever uses it has to know of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from loradock.catalog.storages import StorageName
from loradock.config.sections.data import Reading
from loradock.config.sections.model import ModelConfig
from loradock.config.sections.values import NamedPlace, Section
from loradock.errors import Problem, StorageError
from loradock.files import sidecar
from loradock.model.opening import LOADED
from loradock.training.run_dir import recorded
from loradock.training.run_dir.paths import ADAPTER, RECORD
from loradock.training.run_dir.resume import recorded_config

FILE = "training.json"
HINT = "copy the adapter directory again; loradock writes it when a run ends"


class Lineage(Section):
    """The base, how it was loaded, and how rows became tokens; the keys are those of a configuration.

    `conversations`: rows had turns, and the adapter's tokenizer holds the chat template they were rendered with.
    `date` (YYYY-MM-DD): what that template wrote for today's. `load_dtype`: what "auto" of `compute_dtype` came to, in
    which the base's weights were loaded, and quantised where they were. `base_weights`: `model.content.digest` of the
    base's weight files; None of adapters that were written before it was kept. `readings`: how the columns of its
    sources were read, where their names are not a format's own.
    """

    base: NamedPlace
    revision: str | None = None
    quantization: StorageName
    double_quant: bool
    compute_dtype: Literal["auto", "bfloat16", "float16", "float32"]
    rope_scaling: Literal["off", "linear", "yarn"] = "off"
    rope_factor: Annotated[float, Field(ge=1, le=1024)] = 1.0
    special_tokens: Literal["auto", "as_text", "as_control"]
    conversations: bool
    date: str | None = None
    load_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    base_weights: str | None = None
    readings: tuple[Reading, ...] = ()
    tools: Literal["keep", "text"] = "keep"
    reasoning: Literal["as_template", "all_turns", "drop"] = "as_template"
    template_arguments: dict[str, bool | int | float | str] = Field(default_factory=dict[str, bool | int | float | str])

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """That of a run, by its run.json."""
        base, data = record["base"], record.get("data") or {}
        model, chosen = record["config"]["model"], record["config"]["data"]
        return cls.model_validate(
            {
                **{key: model[key] for key in LOADED if key in model},
                "base": base["name"] if base["revision"] else base["path"],
                "revision": base["revision"],
                "special_tokens": record["config"]["data"]["special_tokens"],
                "conversations": bool(data.get("conversations", True)),
                "date": data.get("date"),
                "load_dtype": _decided(record, "compute_dtype"),
                "base_weights": (record.get("fingerprint") or {}).get("base.weights"),
                "readings": _readings(record["config"]["data"]["sources"]),
                **{key: chosen[key] for key in ("tools", "reasoning", "template_arguments") if key in chosen},
            }
        )

    @classmethod
    def found(cls, directory: Path) -> Self | None:
        """That of an adapter or model directory, by the record of the run where it is a run's. Raises as both."""
        run = directory.parent
        record = recorded.read(run) if directory.name == ADAPTER and (run / RECORD).is_file() else {}
        return cls.recorded(record, run) if record else cls.read(directory)

    @classmethod
    def recorded(cls, record: Mapping[str, Any], directory: Path) -> Self:
        """That of the run in a directory, whose run.json was read back. StorageError where that does not say it."""
        file = directory / RECORD
        config = recorded_config(record, directory).model_dump(mode="json")
        if not record.get("base"):
            problem = Problem(what="base is missing", file=str(file))
            raise StorageError(f"{file} does not say what was trained", hint=recorded.HINT, problems=[problem])
        try:
            return cls.of({**record, "config": config})
        except ValidationError as error:
            problems = sidecar.wrong(error, file)
            raise StorageError(
                f"{file} does not say how it was trained", hint=recorded.HINT, problems=problems
            ) from error

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """That of an adapter directory; None where it has none. ModelError where it is wrong."""
        return sidecar.read(folder / FILE, cls, hint=HINT)

    def write(self, folder: Path) -> None:
        """Put it into an adapter directory."""
        sidecar.write(folder / FILE, self)

    def model(self) -> ModelConfig:
        """The base as it was loaded; code that it ships is never trusted by a file."""
        loaded = self.model_dump(include=set(LOADED))
        return ModelConfig.model_validate({"name": self.base, "revision": self.revision, **loaded})


def _readings(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How sources are read, each way once; without those whose columns bear the names of fields."""
    found: list[dict[str, Any]] = []
    for source in sources:
        reading = {name: source[name] for name in Reading.model_fields if source.get(name)}
        if reading not in found and reading not in ({}, {"format": "auto"}):
            found.append(reading)
    return found


def _decided(record: Mapping[str, Any], name: str) -> Any:
    """The value of a decision of the plan; None in a record that has none."""
    decisions = (record.get("plan") or {}).get("decisions", [])
    return next((decision["value"] for decision in decisions if decision["name"] == name), None)
