"""The cases of broken.yaml and fine.yaml: a good manifest with one change, and the rule and the line that refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes.goods import DIGEST, GOODS


@dataclass(frozen=True, kw_only=True)
class Broken:
    """`old`, the first one after `after`, becomes `new`; all from `onward` on does, where that is given. `and_old`
    becomes `and_new` besides.

    The line named is the first that holds `at`, from `near` on. Without `near` that is from the changed line on,
    without `at` it is the changed line.
    """

    good: str
    rule: str
    why: str
    new: str
    old: str = ""
    onward: str = ""
    says: str = ""
    after: str = ""
    at: str = ""
    near: str = ""
    and_old: str = ""
    and_new: str = ""
    level: str = "error"

    @property
    def text(self) -> str:
        end = len(self.good) if self.onward else self._start + len(self.old)
        return (self.good[: self._start] + self.new + self.good[end:]).replace(self.and_old or "\0", self.and_new)

    @property
    def line(self) -> int:
        changed = self.good.rfind("\n", 0, self._start) + 1
        begin = self.text.index(self.near) if self.near else changed
        return self.text.count("\n", 0, self.text.index(self.at, begin) if self.at else self._start) + 1

    @property
    def _start(self) -> int:
        return self.good.index(self.old or self.onward, self.good.index(self.after))


def cases() -> list[Broken]:
    """What is refused."""
    files = ("broken.yaml", "broken_together.yaml")
    listed = [item for name in files for item in _listed(name).items()]
    return [Broken(good=GOODS[kind], **case) for kind, given in listed for case in given]


def fine() -> list[Broken]:
    """What is not, though it is near to it; these name no rule."""
    return [
        Broken(good=GOODS[kind], rule="", **case) for kind, listed in _listed("fine.yaml").items() for case in listed
    ]


def _listed(name: str) -> dict[str, list[dict[str, str]]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8").replace("@DIGEST", DIGEST)
    return yaml.safe_load(text)
