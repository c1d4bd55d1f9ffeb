"""What axolotl, LLaMA-Factory, TRL, ms-swift and unsloth call our keys, and whole configurations of theirs.

One file a tool, and its place in TOOLS; `explained.py` and `renamed.py` answer single keys of any tool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from loradock.config.other_tools import axolotl, llama_factory, ms_swift, trl, unsloth
from loradock.config.other_tools.base import Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (axolotl.TOOL, llama_factory.TOOL, ms_swift.TOOL, trl.TOOL, unsloth.TOOL)
}
LEAST_MARKS = 2
"""Of a tool's marks, for a file to be known as one of its own."""


def recognised(values: Mapping[str, Any]) -> Tool | None:
    """The tool whose marks most of the keys of a file are; None where too few are, or two tools have as many."""
    counts = {name: len(tool.marks & values.keys()) for name, tool in TOOLS.items()}
    best, *rest = sorted(counts.values(), reverse=True)
    if best < LEAST_MARKS or best in rest:
        return None
    return TOOLS[max(counts, key=lambda name: counts[name])]


def whose(values: Mapping[str, Any], *, ours: Collection[str]) -> Tool | None:
    """The tool whose configuration a file is that was given as one of ours; None where it may be ours with slips."""
    tool = recognised(values)
    return tool if tool and len(tool.marks & values.keys()) > len(set(ours) & values.keys()) else None
