"""Nodes compared: first what differs between them, then which of them is slow, and why."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loradock.checks.base import Severity
from loradock.checks.gpu_state import suspects
from loradock.checks.node import SAME
from loradock.errors import DataError, InputMissing, LoradockError, Problem

TOLERANCE = 0.05
RATES = ("_tflops", "_gb_per_second", "_mb_per_second")
MADE_BY = "loradock env-check --level bench --json > NODE.json"
SHOWN_CHARACTERS = 60
# What makes nodes the same again, by what differs.
REMEDIES = {
    "driver": "sudo apt-get install nvidia-driver-570-server && sudo reboot",
    "image_digest": "docker run IMAGE@sha256:... on every node",
    "lock_sha256": "docker run IMAGE@sha256:... on every node",
    "loradock": "docker run IMAGE@sha256:... on every node",
    "commit": "docker run IMAGE@sha256:... on every node",
    "config_sha256": "loradock env-check --config run.yaml with one file for all nodes",
    "kernel": "uname -r on each node",
    "gpus": "nvidia-smi -L on each node",
    "clocks": "sudo nvidia-smi -rac on each node",
    "power limits": "sudo nvidia-smi -pl WATTS on each node",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which nodes differ: `ok` where it slows nobody down, with a remedy otherwise."""

    subject: str
    severity: Severity
    what: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The form for programs."""
        return asdict(self)


def read(files: Sequence[Path], *, format: str) -> list[dict[str, Any]]:
    """What env-check printed on other nodes. One error for all files that are missing, or that are none of that."""
    nodes: list[dict[str, Any]] = []
    problems: list[Problem] = []
    error: type[LoradockError] = DataError
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as failure:
            error = InputMissing
            problems.append(Problem(file=str(file), what=str(failure.strerror)))
        except ValueError as failure:
            problems.append(Problem(file=str(file), what=f"no JSON: {failure}"))
        else:
            if wrong := _foreign(content, format):
                problems.append(Problem(file=str(file), what=wrong))
            else:
                nodes.append({**content, "file": file.name})
    if problems:
        raise error("--compare cannot read every file", hint=f"on each node: {MADE_BY}", problems=problems)
    return nodes


def _foreign(content: Any, format: str) -> str | None:
    """Why this is not what env-check printed; None where it is."""
    if not isinstance(content, dict) or "format" not in content:
        return "not what env-check --json prints"
    if content["format"] != format:
        return f"its format is {content['format']!r}, this loradock compares {format!r}"
    missing = [
        key for key, kind in (("node", dict), ("cards", list), ("measured", dict)) if type(content.get(key)) is not kind
    ]
    if missing or not isinstance(content["node"].get("name"), str):
        return f"it lacks {', '.join(missing or ['the name of its node'])}"
    if not all(isinstance(figures, dict) for figures in content["measured"].values()):
        return "its measured figures are no numbers by name"
    return None


def compare(nodes: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """What differs, then who is slow. The first node is this machine; there is always one finding at least."""
    named = _named(nodes)
    found = [*_differences(named), *_outliers(named)]
    if not found:
        what = f"{len(named)} nodes run the same, and no figure is off by more than {TOLERANCE:.0%}"
        found = [Difference(subject="all", severity="ok", what=what)]
    return found


def lines(differences: Sequence[Difference]) -> list[str]:
    """The table for people: a line for each difference, its remedy below."""
    text: list[str] = []
    for each in differences:
        text.append(
            f"{each.severity if each.severity == 'ok' else each.severity.upper():8}{each.subject:30}{each.what}"
        )
        if each.remedy:
            text.append(f"{'':38}-> {each.remedy}")
    return text


def _named(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The nodes by name; two of one name are told apart by their files."""
    names = [node["node"]["name"] for node in nodes]
    return {
        name if names.count(name) == 1 else f"{name} ({node.get('file', 'here')})": node
        for name, node in zip(names, nodes, strict=True)
    }


def _differences(nodes: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    of_cards = {
        "clocks": ("sm_application_mhz", "memory_application_mhz", "sm_max_mhz"),
        "power limits": ("power_enforced_watts",),
    }
    values = {subject: {name: node["node"].get(subject) for name, node in nodes.items()} for subject in SAME}
    values |= {
        subject: {name: [[card.get(key) for key in keys] for card in node["cards"]] for name, node in nodes.items()}
        for subject, keys in of_cards.items()
    }
    return [
        _differs(subject, by_node) for subject, by_node in values.items() if len(set(map(_text, by_node.values()))) > 1
    ]


def _differs(subject: str, by_node: Mapping[str, Any]) -> Difference:
    """Who has what; the value of most nodes first."""
    groups: dict[str, list[str]] = {}
    for name, value in by_node.items():
        groups.setdefault(_text(value), []).append(name)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    what = "; ".join(f"{value} on {', '.join(names)}" for value, names in ordered)
    return Difference(subject=subject, severity="warning", what=what, remedy=REMEDIES[subject])


def _text(value: Any) -> str:
    """A value in few characters; equal values give equal texts, hashes by their beginning."""
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, list | tuple):
        rows = [" / ".join(map(_text, row)) if isinstance(row, list) else str(row) for row in value]
        return f"{len(rows)} x {rows[0]}" if len(set(rows)) == 1 else ", ".join(rows)
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:12]}..."


def _outliers(nodes: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Each rate that is off by more than the tolerance from the median of all nodes that measured it."""
    rates: dict[tuple[str, str], dict[str, float]] = {}
    for name, node in nodes.items():
        for check, figures in node["measured"].items():
            for figure, value in figures.items():
                if figure.endswith(RATES) and isinstance(value, int | float) and value > 0:
                    rates.setdefault((check, figure), {})[name] = value
    return [
        _outlier(f"{check} {figure}", name, value / middle - 1, nodes)
        for (check, figure), by_node in rates.items()
        if len(by_node) > 1
        # Of an even number the upper of the two in the middle: of two nodes, the slower one is the outlier.
        for middle in [statistics.median_high(by_node.values())]
        for name, value in by_node.items()
        if abs(value / middle - 1) > TOLERANCE
    ]


def _outlier(subject: str, name: str, off: float, nodes: Mapping[str, Mapping[str, Any]]) -> Difference:
    """A fast node is worth a word, a slow one a warning with what its cards tell."""
    if off > 0:
        return Difference(
            subject=subject, severity="ok", what=f"{name} is {off:.0%} above the median of {len(nodes)} nodes"
        )
    causes = [] if subject.startswith("disk") else list(dict.fromkeys(_causes(name, nodes)))
    unknown = "other load on its disk" if subject.startswith("disk") else "its cards show no cause; other load on it"
    return Difference(
        subject=subject,
        severity="warning",
        what=f"{name} is {-off:.0%} below the median of {len(nodes)} nodes; likely: {', '.join(causes) or unknown}",
        remedy=f"on {name}: loradock env-check --only {'disk' if subject.startswith('disk') else 'gpu,bench'}",
    )


def _causes(name: str, nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What this node's cards tell and those of the others do not."""
    shared = [
        {cause for card in node["cards"] for cause in suspects(card)} for other, node in nodes.items() if other != name
    ]
    common = set.intersection(*shared) if shared else set()
    return [cause for card in nodes[name]["cards"] for cause in suspects(card) if cause not in common]
