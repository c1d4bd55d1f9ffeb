"""run.json, read back: what the code takes from it has its type, and what has not is told with its field.

Another version, or a person with an editor, may have written it. Parts that nobody reads back may hold anything.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from loradock.errors import StorageError
from loradock.files import foreign_json, sidecar
from loradock.training.run_dir.paths import RECORD

HINT = "put back what loradock wrote, or start a new run with another --output"


def _moment(text: str) -> str:
    datetime.fromisoformat(text)  # ValueError
    return text


Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Moment = Annotated[str, StringConstraints(max_length=64), AfterValidator(_moment)]
FileName = Annotated[str, StringConstraints(pattern=r"^[^/]{1,255}$")]
Count = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Numbers = dict[str, Seconds]


class Part(BaseModel):
    """An object of the record. What is not named here passes."""

    model_config = ConfigDict(extra="allow", strict=True)


class Change(Part):
    """A field that was allowed to change."""

    was: str
    now: str


class Attempt(Part):
    """One time that the run was started."""

    resumed_from: Annotated[str, StringConstraints(pattern=r"^checkpoint-\d{1,15}$")] | None = None
    allowed_changes: dict[str, Change] | None = None
    made_with: dict[str, str] = {}


class Shrunk(Part):
    """Less of what a decision gave, from the step after this one on."""

    step: Count
    decision: str
    value: Count
    before: Count
    why: str


class Base(Part):
    """The base model."""

    name: Text
    revision: Text | None
    path: Text


class Source(Part):
    """Rows."""

    path: Text
    sha256: str


class Data(Part):
    """What was trained on. `conversations`: rows that had turns."""

    sources: list[Source] = []
    validation_sources: list[Source] = []
    conversations: Count = 1
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    embedding_template_sha256: str | None = None


class Decision(Part):
    """One of the plan."""

    name: str
    value: Any
    why: str


class Plan(Part):
    """What was decided."""

    decisions: list[Decision] = []


class Outcome(Part):
    """How training ended."""

    steps: Count
    ended: str
    best_step: Count | None = None


class Gpu(Part):
    """A GPU of the machine."""

    name: str


class Facts(Part):
    """The machine."""

    instruction_set: str | None = None
    cpus: Count = 1
    gpus: list[Gpu] = []
    packages: dict[str, str | None] = {}


class Alert(Part):
    """What was told while training."""

    name: str


class Task(Part):
    """What the finished run was asked."""

    asked: str


class Record(Attempt):
    """run.json, as far as anything is read back from it."""

    loradock: str | None = None
    run_id: Text | None = None
    status: str | None = None
    started: Moment | None = None
    continued: Moment | None = None
    name: Text | None = None
    attempts: list[Attempt] = []
    config: dict[str, Any] | None = None
    working_directory: Text | None = None
    fingerprint: dict[str, str] = {}
    facts: Facts | None = None
    base: Base | None = None
    data: Data | None = None
    plan: Plan | None = None
    outcome: Outcome | None = None
    shrunk: list[Shrunk] = []
    timings_seconds: Numbers = {}
    adapter_sha256: dict[FileName, str] = {}
    weights_sha256: dict[str, str] | None = None
    alerts: list[Alert] = []
    tasks: list[Task] = []
    embedding: dict[str, Any] | None = None


def read(directory: Path) -> dict[str, Any]:
    """The content of run.json. StorageError where it cannot be read, is no JSON, or a field holds something else."""
    file = directory / RECORD
    try:
        content = foreign_json.read(file)
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}", hint=HINT) from error
    except ValueError as error:
        raise StorageError(f"{file} is not JSON: {error}", hint=HINT) from error
    try:
        Record.model_validate(content)
    except ValidationError as error:
        raise StorageError(
            f"{file} is damaged, or another version's", hint=HINT, problems=sidecar.wrong(error, file)
        ) from None
    return content
