"""What came of a row."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a row: `score` is 1 or 0 for right or wrong, else the metric; of a loss it is the sum over `tokens`.

    `given`: the answer, empty where none was found. `logprobs` or `rewards`: of each candidate, float. `normalised`:
    the candidate with the highest log-probability per character. `text` was generated, `finish` says how it ended: stop
    or length. Of calls of tools `names` is 1 where the right ones were called, whatever their arguments, and `unread`
    says why what was generated is no call that can be read.
    """

    row: int
    key: str
    place: str
    answer: str
    given: str = ""
    score: float
    normalised: str | None = None
    logprobs: tuple[float, ...] | None = None
    rewards: tuple[float, ...] | None = None
    text: str | None = None
    finish: str | None = None
    tokens: int | None = None
    names: float | None = None
    unread: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON: what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: object) -> Self:
        """What `as_dict` gave, read back from a file. ValueError where it is something else."""
        return _reader(cls).validate_json(json.dumps(values), strict=True)


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
