"""Nodes compared: first what differs between them, then which of them is slow, and why."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loradock.env_check.base import Severity
from loradock.env_check.gpu_state import suspects
from loradock.env_check.node import SAME
from loradock.errors import DataError, InputMissing, LoradockError, Problem
from loradock.files import foreign_json

TOLERANCE = 0.05
RATES = ("_tflops", "_gb_per_second", "_mb_per_second")
MADE_BY = "loradock env-check --level bench --json > NODE.json"
SHOWN_CHARACTERS = 60
GPU = re.compile(r" gpu(\d+)_")
# What makes nodes the same again, by what differs; to be typed on each of them.
REMEDIES = {
    "driver": "sudo apt-get install nvidia-driver-570-server && sudo reboot",
    "image_digest": "docker pull IMAGE@sha256:DIGEST",
    "lock_sha256": "docker pull IMAGE@sha256:DIGEST",
    "loradock": "docker pull IMAGE@sha256:DIGEST",
    "commit": "docker pull IMAGE@sha256:DIGEST",
    "config_sha256": "sha256sum run.yaml",
    "kernel": "uname -r",
    "gpus": "nvidia-smi -L",
    "clocks": "sudo nvidia-smi -rac",
    "power limits": "sudo nvidia-smi -pl WATTS",
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
            content = foreign_json.read(file)
        except OSError as failure:
            error = InputMissing
            problems.append(Problem(file=str(file), what=str(failure.strerror)))
        except ValueError as failure:
            problems.append(Problem(file=str(file), what=f"not JSON: {failure}"))
        else:
            if wrong := _foreign(content, format):
                problems.append(Problem(file=str(file), what=wrong))
            else:
                nodes.append({**content, "file": str(file)})
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
        key for key, kind in (("node", dict), ("gpus", list), ("measured", dict)) if type(content.get(key)) is not kind
    ]
    if missing or not isinstance(content["node"].get("name"), str):
        return f"missing: {', '.join(missing or ['the name of its node'])}"
    if not all(isinstance(gpu, dict) for gpu in content["gpus"]):
        return '"gpus" is not a list of objects'
    if not all(isinstance(figures, dict) for figures in content["measured"].values()):
        return '"measured" does not map names to numbers'
    return None


def compare(nodes: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """What differs, then who is slow. The first node is this machine; there is always one finding at least."""
    nodes_by_name = _named(nodes)
    differences = [*_differences(nodes_by_name), *_outliers(nodes_by_name)]
    if not differences:
        what = f"{len(nodes_by_name)} nodes have the same software, and no figure differs by more than {TOLERANCE:.0%}"
        differences = [Difference(subject="all", severity="ok", what=what)]
    return differences


def lines(differences: Sequence[Difference]) -> list[str]:
    """The table for people: a line for each entry, its remedy below."""
    text: list[str] = []
    for entry in differences:
        text.append(
            f"{entry.severity if entry.severity == 'ok' else entry.severity.upper():8}{entry.subject:30}{entry.what}"
        )
        if entry.remedy:
            text.append(f"{'':38}-> {entry.remedy}")
    return text


def _named(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The nodes by name; two of one name are told apart by their files, and one file given twice by its place."""
    names = [node["node"]["name"] for node in nodes]
    labels = [
        name if names.count(name) == 1 else f"{name} ({node.get('file', 'here')})"
        for name, node in zip(names, nodes, strict=True)
    ]
    return {
        name if labels.count(name) == 1 else f"{name} #{number}": node
        for number, (name, node) in enumerate(zip(labels, nodes, strict=True), start=1)
    }


def _differences(nodes: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    of_gpus = {
        "clocks": ("sm_application_mhz", "memory_application_mhz", "sm_max_mhz"),
        "power limits": ("power_enforced_watts",),
    }
    values = {subject: {name: node["node"].get(subject) for name, node in nodes.items()} for subject in SAME}
    values |= {
        subject: {name: [[gpu.get(key) for key in keys] for gpu in node["gpus"]] for name, node in nodes.items()}
        for subject, keys in of_gpus.items()
    }
    return [
        _differs(subject, by_node) for subject, by_node in values.items() if len(set(map(_exact, by_node.values()))) > 1
    ]


def _differs(subject: str, by_node: Mapping[str, Any]) -> Difference:
    """Who has what; the value of most nodes first."""
    groups: dict[str, list[str]] = {}
    for name, value in by_node.items():
        groups.setdefault(_exact(value), []).append(name)
    values = {_exact(value): value for value in by_node.values()}
    short = {exact: _text(value) for exact, value in values.items()}
    if len(set(short.values())) < len(short):
        short = {exact: _text(value, limit=None) for exact, value in values.items()}
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    what = "; ".join(f"{short[exact]} on {', '.join(names)}" for exact, names in ordered)
    return Difference(subject=subject, severity="warning", what=what, remedy=REMEDIES[subject])


def _exact(value: Any) -> str:
    """The whole value: what is equal has the same, whether it comes from JSON or not."""
    return json.dumps(value or None, sort_keys=True)


def _text(value: Any, *, limit: int | None = SHOWN_CHARACTERS) -> str:
    """A value to be read, hashes by their beginning unless there is no limit to the characters."""
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, list | tuple):
        rows = [" / ".join(map(_text, row)) if isinstance(row, list) else str(row) for row in value]
        return f"{len(rows)} x {rows[0]}" if len(set(rows)) == 1 else ", ".join(rows)
    text = str(value)
    return text if limit is None or len(text) <= limit else f"{text[:12]}..."


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
    """A fast node is worth a word, a slow one a warning with what its GPUs tell."""
    if off > 0:
        return Difference(
            subject=subject, severity="ok", what=f"{name} is {off:.0%} above the median of {len(nodes)} nodes"
        )
    figure = GPU.search(subject)
    gpu = int(figure[1]) if figure else None
    causes = [] if subject.startswith("disk") else list(dict.fromkeys(_causes(name, nodes, gpu)))
    unknown = "other load on its disk" if subject.startswith("disk") else "other load on the node"
    checks = "disk" if subject.startswith("disk") else "gpu,bench"
    return Difference(
        subject=subject,
        severity="warning",
        what=f"{name} is {-off:.0%} below the median of {len(nodes)} nodes; likely: {', '.join(causes) or unknown}",
        remedy=f"ssh {shlex.quote(nodes[name]['node']['name'])} loradock env-check --only {checks}",
    )


def _causes(name: str, nodes: Mapping[str, Mapping[str, Any]], gpu: int | None) -> list[str]:
    """What this node's GPU of this number (None: what any of them) tells and those of the others do not."""
    causes_of_node = {
        node: [cause for state in content["gpus"] if gpu in (None, state.get("index")) for cause in suspects(state)]
        for node, content in nodes.items()
    }
    shared = [set(causes) for node, causes in causes_of_node.items() if node != name]
    common = set.intersection(*shared) if shared else set()
    return [cause for cause in causes_of_node[name] if cause not in common]
