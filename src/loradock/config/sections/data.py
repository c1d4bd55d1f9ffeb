"""The section `data`: where rows come from, and how they become tokens."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from loradock.catalog.formats import FormatName
from loradock.config.sections.values import Auto, HeldOut, Length, Place, Section, Seed, SetName, Workers

HUB_PREFIX = "hub:"
SPLIT = re.compile(r"[\w+-]+")
"""One or several (`train+validation`), as the name of a path may end with; no suffix of a file looks like it."""
TextUnit = Literal["file", "line", "paragraph"]
"""What of a text file is a document."""


def parts_of(path: str) -> dict[str, str]:
    """The keys of a source that its path names: of `PATH#SPLIT` and `hub:OWNER/NAME@COMMIT#CONFIGURATION/SPLIT`.

    A file that is there is never taken apart. `#CONFIGURATION/` is the default split of a configuration.
    """
    place, mark, part = path.rpartition("#") if "#" in path else (path, "", "")
    if not path.startswith(HUB_PREFIX):
        is_split = mark and place and SPLIT.fullmatch(part) and not os.path.lexists(path)
        return {"path": place, "split": part} if is_split else {"path": path}
    name, _, revision = place.partition("@")
    configuration, _, split = part.rpartition("/")
    parts = {"revision": revision, "configuration": configuration, "split": split}
    return {"path": name} | {key: value for key, value in parts.items() if value}


class SourceConfig(Section):
    """One data source: a file, a directory, or a hub data set."""

    path: Place = Field(
        min_length=1,
        description="JSON, JSONL, CSV, text, Markdown (each also .gz, .zst), Parquet; a directory or pattern "
        "(`rows/*.jsonl`) of such files of one kind; an arrow directory; or hub:OWNER/NAME@COMMIT. `#SPLIT` behind it "
        "(of the hub also `#CONFIGURATION/SPLIT`) is `split` (and `configuration`). Or the address of a file (https, "
        "s3, gs) or of an object store's folder or pattern (s3, gs).",
    )
    format: FormatName = Field(default="auto", description="What a row looks like; auto: as its columns say.")
    fields: dict[str, str] = Field(
        default_factory=dict, description="The format's field name -> the column that holds it."
    )
    ignore: tuple[str, ...] = Field(default=(), description="Columns that are left out on purpose.")
    weight: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=1.0, description="How many times an epoch sees each row (0.5: half)."
    )
    revision: str | None = Field(default=None, description="Commit of a hub data set; default: the latest.")
    configuration: str | None = Field(
        default=None, description="Configuration (subset) of a hub data set; default: its own default."
    )
    split: str = Field(default="train", description="Split that is read where a source has several.")
    _text_unit: TextUnit = PrivateAttr(default="line")
    _cache: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _written_out(self) -> Self:
        """What the path names stands in keys of its own; where they say otherwise, it stays, and a rule refuses it."""
        if not self.contradictions:
            for key, value in parts_of(self.path).items():
                object.__setattr__(self, key, value)  # the section is frozen
        return self

    @property
    def contradictions(self) -> dict[str, str]:
        """What the path names of keys that say otherwise."""
        parts = {key: value for key, value in parts_of(self.path).items() if key in self.model_fields_set - {"path"}}
        return {key: value for key, value in parts.items() if getattr(self, key) not in (None, "", value)}

    @property
    def text_unit(self) -> TextUnit:
        """What of a text file is a row: as `data.text` says of what is trained on, else (answered, embedded) a line."""
        return self._text_unit

    @property
    def cache(self) -> str | None:
        """Where fetched files are kept, as `data.cache` says."""
        return self._cache

    def with_text_unit(self, unit: TextUnit, *, cache: str | None = None) -> Self:
        """The same source, its text files read so, and kept in that cache where they are fetched."""
        source = self.model_copy()
        source._text_unit, source._cache = unit, cache
        return source


class Reading(Section):
    """How the rows of a source are read: what a run's record and its adapter hold of it, for rows like them."""

    format: FormatName = "auto"
    fields: dict[str, str] = Field(default_factory=dict)
    ignore: tuple[str, ...] = ()


class DataConfig(Section):
    """What is trained on, and how rows become tokens."""

    sources: tuple[SourceConfig, ...] = Field(
        default=(), description="One or several sources; a plain path is one too."
    )
    template: Place = Field(
        default="auto",
        description="auto (the tokenizer's own chat template, else alpaca), a named template, or a .jinja file.",
    )
    date: Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$")] | None = Field(
        default=None,
        description="The date (YYYY-MM-DD) that templates write which ask for today's; default: the day (UTC) on which "
        "the run began, also where it is continued later.",
    )
    tools: Literal["keep", "text"] = Field(
        default="keep",
        description="Definitions, calls and results of tools: given to the chat template (keep), or written as text "
        "for a template that knows none.",
    )
    reasoning: Literal["as_template", "all_turns", "drop"] = Field(
        default="as_template",
        description="Thoughts of the assistant (reasoning_content): as the template writes them (as_template); each of "
        "them, in a document of its own where the template cuts it later (all_turns); or left out (drop).",
    )
    template_arguments: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str],
        description="More arguments of the chat template (`{enable_thinking: false}`), in training and afterwards.",
    )
    loss: Literal["auto", "completion", "assistant", "all"] = Field(
        default="auto",
        description="What is learned: every assistant turn of a conversation, and of prompt/completion rows the "
        "completion (auto); the last answer (completion); every assistant turn (assistant); or all.",
    )
    special_tokens: Literal["auto", "as_text", "as_control"] = Field(
        default="auto",
        description="The text of a special token inside a content (`x</s>y`): plain text, or the control token; auto: "
        "plain text, and control tokens where a chat template wrote a row's text.",
    )
    max_length: Length | Auto = Field(
        default="auto",
        description="Longest sample in tokens; auto: the longest row (at least 1024), as positions and memory allow.",
    )
    long_rows: Literal["split", "truncate", "drop"] = Field(
        default="split",
        description="Rows over max_length: split into windows that learn every token once, cut, or left out.",
    )
    overlap: Annotated[int, Field(ge=0, le=16_777_216)] = Field(
        default=0,
        description="Tokens with which each window of a document of text repeats the one before it, as context that is "
        "not learned again.",
    )
    max_dropped: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1,
        description="Share of the rows that may be left out for their length, too long or too short, and of bad rows "
        "(`on_bad_row`); more ends the run.",
    )
    min_tokens: Annotated[int, Field(ge=0, le=16_777_216)] = Field(
        default=0, description="Rows of fewer tokens are left out before any is held out, up to max_dropped."
    )
    deduplicate: Literal["off", "exact"] = Field(
        default="off",
        description="exact: of rows that become the same tokens and labels, all but the first are left out, before any "
        "is held out. Rows of a data.validation of its own stay whole.",
    )
    on_bad_row: Literal["stop", "skip"] = Field(
        default="stop",
        description="A row that is not JSON, does not fit its format or cannot be rendered: ends the run before it "
        "begins (stop), or is left out, counted and listed, up to max_dropped (skip). Damage always ends it.",
    )
    text: TextUnit = Field(
        default="file", description="A document of a text file (.txt, .md): the file, a line, or a paragraph."
    )
    validation: HeldOut | Place | Annotated[dict[SetName, Place], Field(min_length=1)] = Field(
        default=0.0,
        description="Held-out part: a share below 1, a number of rows, a separate file, or several files by name "
        "(`{chat: chat.jsonl, code: code.jsonl}`), each with a loss of its own.",
    )
    seed: Seed = Field(default=0, description="Seed of the train/validation split.")
    workers: Workers | Auto = Field(default="auto", description="Processes that prepare rows.")
    cache: Place | None = Field(
        default=None, description="Where prepared data are kept; default $XDG_CACHE_HOME/loradock."
    )
    repeat_first: bool = Field(
        default=False,
        description="Every step trains on the first step's rows, kept in memory: what loading costs. For diagnose.",
    )

    @model_validator(mode="after")
    def _sources_with_text_unit(self) -> Self:
        """Give the sources their text unit and cache, so that each reader of one reads the same rows."""
        sources = tuple(source.with_text_unit(self.text, cache=self.cache) for source in self.sources)
        object.__setattr__(self, "sources", sources)  # the section is frozen
        return self

    @property
    def skips(self) -> bool:
        """Whether bad rows are left out."""
        return self.on_bad_row == "skip"

    @property
    def validation_files(self) -> dict[str, str]:
        """The separate validation files by their names; a single one has an empty name."""
        if isinstance(self.validation, dict):
            return self.validation
        return {"": self.validation} if isinstance(self.validation, str) else {}
