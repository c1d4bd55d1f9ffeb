"""JSON from outside: `json.loads`, with every way in which a text can be none told as a ValueError."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from loradock.files import regular

SUSPICIOUS = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
"""What may be the escape of NUL, or of half a pair."""
MOST_DEPTH = 100
"""Of lists and objects in one another: what goes through a document calls itself for each."""
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def loads(text: str | bytes) -> Any:
    """What a JSON text says.

    ValueError where it is none, nests too deep to be read, or holds what no file name or text file takes: NUL, or half
    of a surrogate pair.
    """
    text = text if isinstance(text, str) else text.decode("utf-8")
    try:
        content = json.loads(text)
        if SUSPICIOUS.search(text):
            _check(json.dumps(content, ensure_ascii=False))
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    if _is_deep(content):
        raise ValueError("it nests too deep")
    return content


def read(file: Path, *, most_bytes: int = regular.MOST_BYTES) -> Any:
    """What a JSON file says. OSError where it cannot be read (`regular.read`), ValueError where it is no JSON."""
    return loads(regular.read(file, most_bytes=most_bytes))


def fault(error: json.JSONDecodeError) -> str:
    """What the decoder says, without the "at" or the colon that some of its texts end with: the place follows."""
    return error.msg.rstrip(": ").removesuffix(" at")


def _is_deep(content: Any) -> bool:
    level = [content]
    for _ in range(MOST_DEPTH):
        level = [inner for value in level for inner in _held(value)]
        if not level:
            return False
    return True


def _held(content: Any) -> Iterable[Any]:
    if isinstance(content, dict):
        return cast("dict[str, Any]", content).values()
    return cast("list[Any]", content) if isinstance(content, list) else ()


def _check(plain: str) -> None:
    """ValueError where a text with every character as itself, but control characters, cannot be written or named."""
    try:
        plain.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half of a surrogate pair") from error
    if NUL.search(plain):
        raise ValueError("it holds a NUL character")
