"""What differs between two fingerprints, in words, and which changes a continued run may make."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from loradock.config.suggest import unknown_key
from loradock.errors import NoCheckpoint, Problem, UsageError
from loradock.plan.plan import HELD
from loradock.text.suggest import nearest, sentence
from loradock.training.events import EARLY_STOP
from loradock.training.run_dir import recorded
from loradock.training.run_dir.fingerprint import JUDGED_KEYS, LATER_KEYS, is_free, text_of
from loradock.training.run_dir.paths import RECORD

FOLLOWS = {
    **{f"plan.{name}": (".".join(path),) for name, path in HELD.items()},
    "plan.engine": ("engine", "train.parallel"),
    "plan.compile": ("train.compile",),
    "plan.steps": ("train.max_steps", "train.epochs", "train.global_batch", "data"),
}
"""What a decision follows from: where that is allowed to change, so is the decision."""

FOUND = ("plan", "base", "data", "adapter", "versions", "world_size")
"""What fields begin with that are found on the machine rather than asked for."""

OF_SHAPE = frozenset(("lora.rank", "lora.dora", "adapter.layout"))
"""Fields that say which weights an adapter has: a checkpoint holds those of before, which no permission changes."""

SHOWN_DIGITS = 12

LISTED_FIELDS = 3
"""Of more fields than this in one section, the hint names the section."""


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[Problem]:
    """Each field that differs, in words: "train.learning_rate was 0.0002, now 0.001"."""
    return [Problem(what=_difference(key, before, now)) for key in _changed(before, now)]


BEFORE_THE_KEY = {"data.text": "line"}
"""What runs had before there was the key, where its default is another: nobody chose the change."""


def check(
    before: Mapping[str, str], now: Mapping[str, str], *, allowed: Collection[str], directory: Path
) -> dict[str, dict[str, str]]:
    """The changes that `allowed` names, {field: {"was": text, "now": text}}, for the record.

    An allowed name is a field or all that lies below it ("versions"). Raises NoCheckpoint with every other change,
    UsageError for an allowed name that is no field. A change of OF_SHAPE cannot be allowed.
    """
    changed = _changed(before, now)
    for name in allowed:
        _refuse_unknown(name, fields={*before, *now})
    if other_shape := [key for key in changed if key in OF_SHAPE]:
        raise NoCheckpoint(
            f"the adapter of the run in {directory} has other weights than these settings ask for",
            hint="no checkpoint of it fits them; --fresh or another --output starts a new run beside it",
            problems=[Problem(what=_difference(key, before, now)) for key in other_shape],
        )
    left = [key for key in changed if not any(_covers(name, each) for name in allowed for each in _with_cause(key))]
    if left:
        names = [*sorted(allowed), *_sections(left)]
        done = _steps_made(directory, changed, now)
        if done and "train.max_steps" not in names:
            names.insert(0, "train.max_steps")
        accept = " ".join(f"--allow-change {name}" for name in names)
        if done:
            accept = f"all {done} steps are made: with a larger N, --max-steps N {accept}"
        as_before = [f"--set {key}={text}" for key, text in BEFORE_THE_KEY.items() if key in left and key not in before]
        accept = "".join(f"{each} continues it as it began; " for each in as_before) + accept
        raise NoCheckpoint(
            f"the run in {directory} was started with other settings",
            hint=f"{accept} continues it with these changes; --fresh or another --output starts a new run beside it",
            problems=[Problem(what=_difference(key, before, now)) for key in left],
        )
    return {key: {"was": _said(before, key), "now": _said(now, key)} for key in changed}


def continued(record: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """(step, attempt before, attempt) of each that took the run up, but for those whose steps were all made again."""
    parts = [*record.get("attempts", []), record]
    steps = [int(name.rpartition("-")[2]) if (name := part.get("resumed_from")) else 0 for part in parts]
    previous: Mapping[str, Any] = {}
    for number, (step, part) in enumerate(zip(steps, parts, strict=True)):
        if any(later <= step for later in steps[number + 1 :]):
            continue
        if step:
            yield step, previous, part
        previous = part


def _steps_made(directory: Path, changed: Collection[str], now: Mapping[str, str]) -> int | None:
    """How many steps a finished run has, where no change gives it more; None for one that goes on, or ended early."""
    record = recorded.read(directory) if (directory / RECORD).exists() else {}
    outcome = record.get("outcome") or {}
    if record.get("status") != "finished" or outcome.get("ended") == EARLY_STOP:
        return None
    steps, asked = int(outcome.get("steps") or 0), now.get("train.max_steps", "")
    if asked.isdecimal():
        return steps if int(asked) <= steps else None
    return None if any(_covers(cause, key) for key in changed for cause in FOLLOWS["plan.steps"]) else steps


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]


def _difference(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    was, is_now = (
        re.sub(r"\b[0-9a-f]{40,64}\b", lambda match: match[0][:SHOWN_DIGITS], _said(table, key))
        for table in (before, now)
    )
    return f"{key} was {was}, now {is_now}"


def _said(table: Mapping[str, str], key: str) -> str:
    """What a table says of a field. A later key that it leaves out is at its first default, unless nothing judges."""
    if key in table or key in JUDGED_KEYS or key not in LATER_KEYS:
        return table.get(key, "absent")
    return text_of(LATER_KEYS[key])


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name.removesuffix('.')}.")


def _with_cause(key: str) -> tuple[str, ...]:
    """The field, and what it follows from."""
    return (key, *FOLLOWS.get(key, ()))


def _sections(fields: list[str]) -> list[str]:
    """The fields as they are typed: one by one, or their section where many of it changed."""
    in_section: dict[str, list[str]] = {}
    for key in fields:
        in_section.setdefault(key.split(".")[0], []).append(key)
    return [
        name
        for section, members in in_section.items()
        for name in (members if len(members) <= LISTED_FIELDS else [section])
    ]


def _refuse_unknown(name: str, *, fields: Collection[str]) -> None:
    """UsageError for a name that is neither a field, nor a section, nor a key that may be absent from the table."""
    if any(_covers(name, key) for key in fields) or name in JUDGED_KEYS or name.split(".")[0] in FOUND:
        return  # which of the found ones there are differs from machine to machine, and from stage to stage
    if is_free(name):
        raise UsageError(f"{name} may change without being named", hint=f"leave out --allow-change {name}")
    field = nearest(name, sorted(fields)) or unknown_key(tuple(name.split("."))).meant
    hint = sentence(f"--allow-change {field}") if field else "loradock config show lists the keys"
    raise UsageError(f"--allow-change {name}: a run has no such field", hint=hint)
