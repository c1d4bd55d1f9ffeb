"""The regular expressions in adapter_config.json, tried by a process of their own: some end after the universe does.

PEFT matches them against the name of each module of the base, by `re`, which cannot be told to give up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from loradock.errors import ModelError, Problem
from loradock.model.adapter_files import HINT, SETTINGS, Settings
from loradock.process import apart

SECONDS, MEMORY_BYTES = 10, 1 << 30
"""Of CPU time and of address space beyond the interpreter's. 224 patterns over the 600 modules of a 7B model: 0.1 s."""
REPEATS = re.compile(r"[*+?{]")
"""Without one of these a pattern is at most as slow as it is long."""
PROGRAM = """
import json, re
limit_memory()
asked = json.load(sys.stdin)
for place, (method, pattern) in enumerate(asked['patterns']):
    print(place, flush=True)
    match = getattr(re.compile(pattern), method)
    for name in asked['names']:
        match(name)
"""


def check(adapter: Path, settings: Settings, modules: Iterable[str], *, seconds: int = SECONDS) -> None:
    """Match the patterns of an adapter's settings against the names of the base's modules, as PEFT does.

    ModelError with the setting whose pattern is none, or with which all of them take more than `seconds` of CPU time.
    """
    patterns = [pattern for pattern in _patterns(settings) if REPEATS.search(pattern.text)]
    if not patterns:
        return
    request = json.dumps(
        {"patterns": [(pattern.method, pattern.pattern) for pattern in patterns], "names": list(modules)}
    )
    ended = apart.run(PROGRAM, seconds=seconds, more_bytes=MEMORY_BYTES, stdin=request)
    if not ended.code:
        return
    tripped = patterns[int((ended.stdout.split() or ["0"])[-1])]
    message = (ended.stderr.strip().splitlines() or [""])[-1]
    why = f"does not end within {seconds} s" if ended.is_endless else f"is not a pattern: {message}"
    problem = Problem(what=f"{tripped.key}: {tripped.text[:100]!r} {why}", file=str(adapter / SETTINGS))
    raise ModelError(f"{adapter / SETTINGS} cannot be used", hint=HINT, problems=[problem])


class _Pattern(NamedTuple):
    """The text of a setting, the pattern that PEFT makes of it, and by which method of `re` it is matched."""

    key: str
    text: str
    pattern: str
    method: str = "match"


def _patterns(settings: Settings) -> Iterator[_Pattern]:
    for key in ("target_modules", "exclude_modules"):
        if isinstance(text := getattr(settings, key), str):
            yield _Pattern(key, text, text, "fullmatch")
    for key in ("rank_pattern", "alpha_pattern"):
        yield from (_Pattern(key, text, rf"(.*\.)?({text})$") for text in getattr(settings, key))
    for text in settings.modules_to_save or ():
        yield _Pattern("modules_to_save", text, rf"(^|.*\.){text}($|\..*)")
    listed = settings.layers_pattern or ()
    for text in [listed] if isinstance(listed, str) else listed:
        yield _Pattern("layers_pattern", text, rf"(?:^|.*?\.){text}\.(?P<idx>\d+)\.")
