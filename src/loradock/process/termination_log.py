"""Why the process ended, as JSON where Kubernetes (or whoever started the container) looks: the termination log.

The file is the one that LORADOCK_TERMINATION_LOG names, else /dev/termination-log where there is one. A run tells
what it learns on its way with `note`, so that also an end in the middle says how far it came.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from loradock.errors import LoradockError
from loradock.text import redact

ENVIRONMENT = "LORADOCK_TERMINATION_LOG"
DEFAULT = Path("/dev/termination-log")
LIMIT_BYTES = 4096  # Kubernetes reads no more
WHAT_BYTES = 1500
HINT_BYTES = 600
FACT_BYTES = 400

_noted: dict[str, Any] = {}


def note(**facts: Any) -> None:
    """Keep facts for the end: run directory, step, last checkpoint. A later value replaces an earlier one."""
    _noted.update(facts)


def write(exit_code: int, reason: LoradockError | str, **facts: Any) -> str | None:
    """Write how the process ends, with what was noted and `facts`. Never raises: returns why nothing was written.

    None where it was, and where there is no such file to write.
    """
    file = _file()
    if file is None:
        return None
    try:
        content = _fitting(exit_code, reason, {**_noted, **facts})
        _overwrite(file, content.encode("ascii"))
    except (OSError, TypeError, ValueError) as error:
        return f"{file} cannot be written: {error}"
    return None


def _file() -> Path | None:
    path = os.environ.get(ENVIRONMENT)
    file = Path(path) if path else DEFAULT
    if not path and not (file.exists() and os.access(file, os.W_OK)):
        return None
    is_told = os.environ.get("RANK", "0") != "0" and file.exists() and file.stat().st_size > 0
    return None if is_told else file  # why rank 0 ended counts more than what that did to the others


def _fitting(exit_code: int, reason: LoradockError | str, facts: dict[str, Any]) -> str:
    """The JSON, of LIMIT_BYTES at most: texts are cut, and of facts and problems as many as fit are taken."""
    secrets = redact.of(os.environ)

    def text(value: object, limit_bytes: int) -> str:
        return _cut(redact.without(str(value), secrets), limit_bytes)

    content: dict[str, Any] = {"exit_code": exit_code, "class": None, "what": None, "hint": None}
    if isinstance(reason, LoradockError):
        content |= {"class": type(reason).__name__, "what": text(reason.what, WHAT_BYTES)}
        content["hint"] = text(reason.hint, HINT_BYTES) if reason.hint else None
    else:
        content["what"] = text(reason, WHAT_BYTES)
    for name, value in facts.items():
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        longer = {name: value if value is None or is_number else text(value, FACT_BYTES)}
        longer = {**content, **longer, **content}  # a fact never replaces one of the fixed fields
        content = longer if _size_bytes(longer) <= LIMIT_BYTES else content
    problems = reason.problems if isinstance(reason, LoradockError) else ()
    lines_shown: list[str] = []
    for problem in problems:
        longer = {**content, "problems": [*lines_shown, text(problem, FACT_BYTES)], "problem_count": len(problems)}
        if _size_bytes(longer) > LIMIT_BYTES:
            break
        content, lines_shown = longer, longer["problems"]
    return json.dumps(content) + "\n"


def _size_bytes(content: dict[str, Any]) -> int:
    return len(json.dumps(content)) + 1  # ASCII, and the line's end


def _cut(text: str, limit_bytes: int) -> str:
    """The text, or its beginning and `...`, such that it takes `limit_bytes` at most as JSON."""
    if len(json.dumps(text)) <= limit_bytes:
        return text
    low, high = 0, limit_bytes
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(json.dumps(text[:middle] + "...")) <= limit_bytes else (low, middle - 1)
    return text[:low] + "..."


def _overwrite(file: Path, content: bytes) -> None:
    """Write it in place: the log is a file that was mounted there. One that nobody reads (a pipe) does not block."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(file, flags if file == DEFAULT else flags | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)
