"""The reference made from the schema: the JSON Schema for editors, and docs/config.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loradock.config.annotated_yaml import plain
from loradock.config.fields import Key, annotation_at, keys, section_of
from loradock.config.load import SHORTCUTS
from loradock.config.schema import RunConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"

HEAD = """\
# Configuration

<!-- Made from the schema: loradock config schema --markdown > docs/config.md -->

A run is described by one YAML file, or by none: every key has a default except the model and the data.

    loradock train run.yaml
    loradock train --model DIR --data FILE
    loradock train run.yaml --preset mistral-a10 --set lora.rank=8 --lr 1e-4

Layers, each over the one before, key by key (a list is replaced as a whole):
defaults < `--preset NAME` < the YAML file < the short forms < `--set KEY=VALUE`.

| command | what it does |
|---|---|
| `loradock config show [CONFIG]` | prints the resolved configuration; each value says where it came from |
| `loradock config validate [CONFIG]` | every problem at once, with line and remedy, and what is not on this machine |
| `loradock config import FILE` | a configuration of axolotl, LLaMA-Factory, ms-swift, TRL or unsloth as one of ours |
| `loradock config presets` | lists the shipped configurations |
| `loradock config schema` | prints the JSON Schema for editors |

## What is read strictly

- YAML is read as version 1.2 means it: `1e-4` is a number; `yes`, `no`, `on`, `off`, `2024-01-01`, `12:30` and `0123`
  are texts, and a key that takes true or false refuses them.
- Unknown keys, duplicate keys, merge keys (`<<`), tags (`!!python/...`), a second document, tabs, and aliases that
  expand beyond 10 000 values are errors. A file has at most 1 MB.
- No text becomes a number and no number a truth value. `1e3` is a whole number; `1.5` is not.
- A value that would do nothing because of another one is a warning.
- Paths are relative to the directory that the command runs in, not to the YAML file. In every key and option that is a
  path, `~`, `$NAME` and `${NAME}` are expanded; a variable that is unset, empty or called like a secret is an error.
- A hub id, of a model or a data set, has its commit in `revision`; without one the latest is taken, printed and
  recorded.
- `data.sources: FILE` and `data.sources: [FILE, FILE]` are short for entries with only a `path`. With `--set`, an
  entry is named by its position, from 0: `--set data.sources.0.weight=2`.

"auto" means that the plan decides, and prints why.
"""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a configuration file, its shorthands included."""
    schema = RunConfig.model_json_schema()
    sources = schema["$defs"]["DataConfig"]["properties"]["sources"]
    path = {"type": "string", "description": "The path of a source, everything else at its default."}
    sources["items"] = {"anyOf": [path, sources["items"]]}
    several = {key: sources.pop(key) for key in ("type", "items")}
    sources["anyOf"] = [path, several]
    return {"$schema": DIALECT, "title": "A run of loradock"} | {k: v for k, v in schema.items() if k != "title"}


def markdown() -> str:
    """The whole text of docs/config.md."""
    return "\n".join([HEAD, *_short_forms(), *_tables()])


def _short_forms() -> Iterator[str]:
    yield "## Short forms\n"
    yield "| option | key |\n|---|---|"
    for flag, key in SHORTCUTS.items():
        yield f"| `{flag}` | `{key}` |"


def _tables() -> Iterator[str]:
    heading = None
    for key in keys():
        section = key.name.rpartition(".")[0]
        if section != heading:
            heading = section
            yield from _heading(section)
        yield _row(key)
    yield ""


def _heading(section: str) -> Iterator[str]:
    path = tuple(0 if part == "N" else part for part in section.split(".")) if section else ()
    model = section_of(annotation_at(path))
    meaning = (model.__doc__ or "").strip() if model else ""
    yield f"\n## {f'`{section}`' if section else 'Top level'}\n\n{meaning}\n"
    yield "| key | takes | default | meaning |\n|---|---|---|---|"


def _row(key: Key) -> str:
    default = "(required)" if key.is_required else f"`{plain(key.default)}`"
    cells = (f"`{key.name}`", key.takes, default, key.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
