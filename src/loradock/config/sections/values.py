"""What the configuration's keys take: numbers with bounds, paths, names; and what every section is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Auto = Literal["auto"]
MOST = 1_000_000_000
"""Of what is counted: beyond any run, and far from what a number can hold."""
Positive = Annotated[int, Field(ge=1, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Batch = Annotated[int, Field(ge=1, le=1_000_000)]
Length = Annotated[int, Field(ge=1, le=16_777_216)]
"""Of a sample in tokens."""
Workers = Annotated[int, Field(ge=0, le=256)]
Seconds = Annotated[float, Field(ge=0, le=MOST)]
Weight = Annotated[float, Field(gt=0, le=1_000_000)]
Beta = Annotated[float, Field(ge=0, lt=1)]
TextLength = Annotated[int, Field(ge=2, le=16_777_216)]
"""Of a text to embed in tokens."""
HeldOut = Annotated[float, Field(ge=0, le=MOST)]
"""A share below 1, else a number of rows."""
MOST_PATH_BYTES, MOST_NAME_BYTES = 4095, 255
"""Of a path, and of each name in it: what Linux takes (limits.h)."""


@dataclass(frozen=True)
class PathBound:
    """Marks a text as a path, in which `~` and variables are expanded when it is read; `after`: where it begins."""

    after: str = ""


def _fits(path: str) -> str:
    if len(path.encode()) > MOST_PATH_BYTES or any(len(name.encode()) > MOST_NAME_BYTES for name in path.split("/")):
        raise ValueError("too long for a path")
    return path


Place = Annotated[str, AfterValidator(_fits), PathBound()]
"""A file or directory, or the name of something that could be one."""
TaskPlace = Annotated[str, PathBound(after="=")]
"""NAME=FILE."""
NamedPlace = Annotated[str, Field(min_length=1), AfterValidator(_fits), PathBound()]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
"""What NumPy's, Python's and torch's generators all take."""
SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""What a validation set is called; metrics have it in their names."""


class Section(BaseModel):
    """A part of the configuration: unknown keys refused, values never changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())
