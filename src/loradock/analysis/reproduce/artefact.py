"""A run as files in a bundle: which of them go in and under what names, and where they lie once it is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from loradock.analysis.reproduce import differences
from loradock.analysis.reproduce.original import BUNDLED as RUN
from loradock.analysis.reproduce.original import Original
from loradock.analysis.reproduce.places import FETCH, TEMPLATE_SUFFIXES, Places, located, missing
from loradock.config.places import is_remote
from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig
from loradock.data.read import files
from loradock.data.sources import held_out_files
from loradock.errors import DataError, InputMissing, Problem
from loradock.files import pattern
from loradock.training.continued import directory_of
from loradock.training.run_dir.paths import METRICS, RECORD

MODEL = "model"
"""The part of a bundle that holds a base."""


def members(original: Original, *, has_rows: bool, has_base: bool) -> dict[str, Path]:
    """Each file by its member's name, as far as the run has it: its record, its templates, DeepSpeed's configuration.

    `has_rows`: rows and validation files, too. `has_base`: the adapter that it began with, too; the base is a part of
    its own. InputMissing with what is gone, or lies at an address, which is not fetched; DataError where one is not
    what the run was made of.
    """
    config = located(original, Places())
    names = {"template", "embedding-template", "deepspeed"}
    names |= {"data", "validation", FETCH} if has_rows else set()
    names |= {"adapter", "model"} if has_base else set()
    absent = [problem for name, problem in missing(original, config) if name in names]
    if absent:
        raise InputMissing("not everything of the run can go into the bundle", hint=LEAVE_OUT, problems=absent)
    files_by_member = {
        f"{RUN}/{name}": file for name in (RECORD, METRICS) if (file := original.directory / name).is_file()
    }
    files_by_member |= {f"{RUN}/{name}/{file.name}": file for name, file in _single(config)}
    changed = [*differences.of_templates(original, config), *differences.of_deepspeed(original, config)]
    if has_rows:
        for name, sources in {"data": config.data.sources, "validation": held_out_files(config.data)}.items():
            for index, source in enumerate(sources):
                files_by_member |= {f"{RUN}/{name}/{index}/{below}": file for below, file in _of_source(source)}
        changed += differences.of_rows(original, config)
    if has_base:
        if config.lora.adapter:
            adapter = directory_of(config.lora.adapter)
            files_by_member |= {
                f"{RUN}/adapter/{file.name}": file for file in sorted(adapter.iterdir()) if file.is_file()
            }
        changed += differences.of_base(original, config)
    if changed:
        problems = [Problem(what=each.line) for each in changed]
        raise DataError("what the run was made of is no longer what it was", hint=LEAVE_OUT, problems=problems)
    return files_by_member


LEAVE_OUT = "leave out --rows or --base, and name what is left out to loradock reproduce there"


def base_of(original: Original) -> Path:
    """The directory of its base."""
    return Path(located(original, Places()).model.name)


def places_in(folder: Path, original: Original) -> Places:
    """What a laid out bundle holds of its run."""
    part, config = folder / RUN, original.config
    single = {name: next(iter(_within(part / name)), None) for name in ("template", "embedding-template", "deepspeed")}
    held_out = held_out_files(config.data)
    return Places(
        model=next((place for place in _within(folder / MODEL) if place.is_dir()), None),
        data=_laid_out(part / "data", config.data.sources),
        validation=_laid_out(part / "validation", held_out),
        template=single["template"],
        embedding_template=single["embedding-template"],
        adapter=part / "adapter" if (part / "adapter").is_dir() else None,
        deepspeed=single["deepspeed"],
    )


def _within(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _laid_out(folder: Path, sources: Sequence[SourceConfig]) -> tuple[Path, ...]:
    """The place of each source, or of none where one of them is not in the bundle."""
    places = [folder / str(index) / _name_of(source) for index, source in enumerate(sources)]
    return tuple(places) if all((folder / str(index)).is_dir() for index in range(len(places))) else ()


def _single(config: RunConfig) -> Iterator[tuple[str, Path]]:
    templates = {"template": config.data.template, "embedding-template": config.embedding.template}
    for name, path in templates.items():
        if path.endswith(TEMPLATE_SUFFIXES):
            yield name, Path(path)
    if config.train.deepspeed:
        yield "deepspeed", Path(config.train.deepspeed)


def _of_source(source: SourceConfig) -> Iterator[tuple[str, Path]]:
    """(name below the source's folder, file) of all that is read of a source, or decides what is."""
    path, name = Path(source.path), _name_of(source)
    if path.is_dir():
        yield from ((f"{name}/{file.relative_to(path)}", file) for file in sorted(path.rglob("*")) if file.is_file())
    elif path.is_file():
        yield name, path
    else:
        yield from ((str(file.relative_to(pattern.divided(path)[0])), file) for file in files(source))


def _name_of(source: SourceConfig) -> str:
    """Of a file or directory its own name, of a pattern what of it may match."""
    if is_remote(source.path):
        return Path(urlsplit(source.path).path).name
    path = Path(source.path)
    return pattern.divided(path)[1] or path.name
