"""Reads BuildKit's plain output: which step runs, how long each took, which were cached, what failed and said what."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TextIO

SHOWN_LINES = 30
LINE = re.compile(r"#(\d+) (.*)")
STAMPED = re.compile(r"(?:\d+\.\d+ )?(.*)")
NO_SPACE = re.compile(r"no space left on device|disk quota exceeded|not enough free space", re.IGNORECASE)


@dataclass(kw_only=True)
class Step:
    """One step of a build; `name` as BuildKit gives it: `[stage 2/3] RUN ...`."""

    number: int
    name: str
    state: Literal["running", "done", "cached", "failed", "cancelled"] = "running"
    seconds: float = 0.0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))

    @property
    def title(self) -> str:
        """The name on one line, without the mounts."""
        return " ".join(word for word in self.name.split() if not word.startswith("--mount="))

    @property
    def is_work(self) -> bool:
        """False for BuildKit's own chores (loading the Dockerfile and the like)."""
        return not self.name.startswith("[internal]")


class BuildLog:
    """Takes the output line by line, keeps all of it in `file`, and tells `on_change` when a step changes."""

    def __init__(self, file: TextIO, *, on_change: Callable[[Step], None]) -> None:
        self.file = file
        self.on_change = on_change
        self.steps: dict[int, Step] = {}
        self.loose: deque[str] = deque(maxlen=SHOWN_LINES)
        self.ran_out_of_space = False

    def feed(self, line: str) -> None:
        """Take one line, with or without its line feed."""
        line = line.rstrip("\r\n")
        self.file.write(line + "\n")
        self.ran_out_of_space = self.ran_out_of_space or bool(NO_SPACE.search(line))
        match = LINE.fullmatch(line)
        if match is None:
            if line.strip():
                self.loose.append(line)
            return
        number, message = int(match[1]), match[2]
        if number not in self.steps:
            self.steps[number] = Step(number=number, name=message)
            self.on_change(self.steps[number])
        elif message not in {"...", self.steps[number].name} and not message.startswith("sha256:"):
            self._said(self.steps[number], message)

    def _said(self, step: Step, message: str) -> None:
        """What a known step says: that it ended, or a line of its output."""
        if message == "CACHED":
            step.state = "cached"
        elif match := re.fullmatch(r"DONE (\d+(?:\.\d+)?)s", message):
            step.state, step.seconds = "done" if step.state == "running" else step.state, float(match[1])
        elif message.startswith("ERROR"):
            step.state = "failed"
            step.lines.append(message)
        elif message == "CANCELED":
            step.state = "cancelled"
        else:
            text = (STAMPED.fullmatch(message) or ["", message])[1]
            if text.strip():
                step.lines.append(text)
        self.on_change(step)

    @property
    def failed(self) -> Step | None:
        """The step that failed, or None."""
        return next((step for step in self.steps.values() if step.state == "failed"), None)

    def last_lines(self) -> list[str]:
        """What the failed step said last; where no step failed, what BuildKit said outside of the steps."""
        return list(self.failed.lines if self.failed else self.loose)
