"""What is made from the registry: docs/checks.md, and the JSON Schema of what `env-check --json` prints."""

from __future__ import annotations

from typing import Any

from loradock.env_check import CHECKS, GROUPS
from loradock.env_check.base import LEVELS, SEVERITIES
from loradock.env_check.examination import FORMAT, NEEDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HEAD = """\
# Environment checks

<!-- Made from the registry: loradock env-check --list > docs/checks.md -->

    loradock env-check                          # quick and compute
    loradock env-check --config run.yaml        # also what this run needs
    loradock env-check --only gpu,compute       # groups, or single checks by name
    loradock env-check --level bench --json     # speeds too, as JSON
    loradock env-check --compare a.json b.json  # against what other nodes printed

`train` makes the quick and compute levels and refuses on an error: what needs no computing first, then the model's
files and the data, and what computes (the group `compute`, and `lock` beside it) once the plan is known, with the
attention and the optimiser that were decided on. A check that found nothing wrong is not recomputed while all that it
depends on is as it was (files, Python, own code, boot, limits, driver, GPUs, variables, the model and its files), for a
week at most; a line at the start and `run.json` (`env_check.kept`) say what was taken from where, and why the rest was
computed. The memory for a base that a run has opened before is estimated by what was counted then (`model-facts.json`).
`--full-env-check` computes all, as `env-check` does each time; `--skip-env-check` is recorded. A finding is an error
only where the run would use what is wrong. A check that breaks by itself is undecided: a warning that says what to
report. The exit code is that of the first error found, 0 where there is none. What each fault looks like, with its
remedy and its exit code, is in [faults.md](faults.md). How to add a check is in [adding.md](adding.md).
"""


def markdown() -> str:
    """The whole text of docs/checks.md."""
    parts = [HEAD]
    for group, about in GROUPS.items():
        rows = [check for check in CHECKS if check.group == group]
        if rows:
            parts.append(f"\n## {group}: {about}\n\n| check | level | needs | what it proves |\n|---|---|---|---|\n")
            parts += [f"| `{c.name}` | {c.level} | {_needs(c.needs)} | {c.proves} |\n" for c in rows]
    return "".join(parts)


def _needs(needs: str) -> str:
    return NEEDS[needs].replace("--config", "`--config`")


def schema() -> dict[str, Any]:
    """The JSON Schema of an examination."""
    text, kinds, figure = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}
    finding = _object(
        check={"enum": [check.name for check in CHECKS]},
        group={"enum": list(GROUPS)},
        severity={"enum": list(SEVERITIES)},
        what={**text, "minLength": 1, "description": "One line."},
        remedy={**text, "description": "One line that can be typed; empty where all is well."},
        exit_code=kinds,
    )
    properties: dict[str, Any] = {
        "format": {"const": FORMAT},
        "loradock": text,
        "level": {"enum": list(LEVELS)},
        "worst": {"enum": list(SEVERITIES)},
        "exit_code": {**kinds, "description": "That of the first error; the process ends with it."},
        "findings": {"type": "array", "items": finding},
        "left_out": {
            "type": "object",
            "description": "Checks that were asked for and not made, and what they need.",
            "additionalProperties": text,
        },
        "measured": {
            "type": "object",
            "description": "Figures by check and name; the unit is in the name.",
            "additionalProperties": {"type": "object", "additionalProperties": figure},
        },
        "seconds": {"type": "object", "additionalProperties": figure, "description": "Wall clock of each check."},
        "node": {"type": "object", "description": "What should be the same on every node.", "required": ["name"]},
        "gpus": {
            "type": "array",
            "items": {"type": "object", "required": ["index"]},
            "description": "Every GPU as NVML described it at the end; null where it does not say.",
        },
        "facts": {"type": "object", "description": "The machine as a run sees it."},
    }
    schema = {"$schema": DIALECT, "title": "loradock env-check --json", **_object(**properties)}
    difference = _object(subject=text, severity={"enum": list(SEVERITIES)}, what=text, remedy=text)
    schema["properties"]["comparison"] = {
        "type": "array",
        "items": difference,
        "description": "With --compare: first what differs between the nodes, then which of them is slow.",
    }
    return schema


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
