"""A run that was made in several parts: what changed between them, and how far one repeat can follow it to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loradock.analysis.reproduce.difference import Difference
from loradock.training.run_dir import identity
from loradock.training.run_dir.record import made_with

VERSIONS, FOLLOWS = "versions.", "plan."
MICRO_BATCH = "micro-batch"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """From the step after `step` on, the run had `now` in the place of `was`. `is_setting`: a person changed it."""

    step: int
    name: str
    was: str
    now: str
    why: str
    is_setting: bool = False

    @property
    def difference(self) -> Difference:
        """For the list of what differs."""
        changes = "results" if self.is_setting or self.name.startswith(VERSIONS) else "last bits"
        return Difference(name=f"{self.name} from step {self.step + 1}", was=self.was, now=self.now, changes=changes)


def turns(record: Mapping[str, Any]) -> list[Turn]:
    """Everything that changed on the way, by step."""
    return sorted(
        [*_continued(record), *_shrunk(record)], key=lambda turn: (turn.step, turn.name.startswith(FOLLOWS), turn.name)
    )


def _continued(record: Mapping[str, Any]) -> Iterator[Turn]:
    """What was allowed to change where the run was continued, and what was otherwise without being asked."""
    for step, previous, attempt in identity.continued(record):
        why = f"continued from step {step}"
        for name, values in (attempt.get("allowed_changes") or {}).items():
            is_setting = not name.startswith(VERSIONS)
            yield Turn(step=step, name=name, was=values["was"], now=values["now"], why=why, is_setting=is_setting)
        earlier, later = (
            part.get("made_with") or (made_with(part) if part is record else {}) for part in (previous, attempt)
        )
        for name in sorted({*earlier, *later}) if earlier and later else ():
            if earlier.get(name) != later.get(name):
                yield Turn(step=step, name=name, was=earlier.get(name, "none"), now=later.get(name, "none"), why=why)


def _shrunk(record: Mapping[str, Any]) -> Iterator[Turn]:
    for event in record.get("shrunk", ()):
        if event["decision"] == "micro_batch" and event["step"]:
            yield Turn(
                step=event["step"],
                name=MICRO_BATCH,
                was=str(event["before"]),
                now=str(event["value"]),
                why=event["why"],
            )


def first_micro_batch(record: Mapping[str, Any]) -> int | None:
    """Of the first step: what was left after the run went back to its beginning, else what was planned then."""
    values = [
        each["value"] for each in record.get("shrunk", ()) if each["decision"] == "micro_batch" and not each["step"]
    ]
    if values:
        return min(values)
    first = next((part["made_with"] for part in record.get("attempts", ()) if part.get("made_with")), made_with(record))
    value = first.get(MICRO_BATCH, "")
    return int(value) if value.isdecimal() else None
