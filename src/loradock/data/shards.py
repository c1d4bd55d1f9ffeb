"""Sources of several files: a directory of shards, one that `datasets` saved, or the files that a pattern matches.

Which of the files are one set is one rule for all of them (`_one_set`): files of rows, of one kind, of one split.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from loradock.config.places import is_remote, written
from loradock.config.sections.data import SourceConfig, TextUnit
from loradock.data import remote, remote_folder, saved, splits
from loradock.data.formats import RowError, detect
from loradock.data.readers import Damaged, known_suffixes, reader_of
from loradock.data.readers.compression import decompressed
from loradock.data.remote_folder import Listing
from loradock.errors import DataError, InputMissing, LoradockError
from loradock.files import pattern, regular
from loradock.text.amounts import size_text, some_of

DESCRIPTIONS = frozenset((
    "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "metadata.json",
    "readme.md",
))  # fmt: skip
"""Files beside rows that describe them: the list of the `datasets` library, what it writes itself, a hub's card."""
NOTES = re.compile(r"\.md(\.gz|\.zst)?$", re.IGNORECASE)
MAPPED = re.compile(r"cache-.*\.arrow")
"""What `Dataset.map` leaves beside a saved data set."""
MOST_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The files that are read, and those of other splits that are not; the splits that are read, where it has some.

    `addresses`: of copies of an object store's folder the addresses, as paths.
    """

    files: list[Path]
    addresses: Sequence[Path] = ()
    splits: tuple[str, ...] = ()
    left: Mapping[str, list[Path]] = field(default_factory=dict[str, list[Path]])


def matching(path: Path, source: SourceConfig) -> Chosen:
    """The files of rows that a pattern matches, by name; none where it is no pattern.

    Raises DataError where they are several kinds, or of several splits.
    """
    found = pattern.matching(path)
    return _one_set(found, pattern.divided(path)[0], source) if found else Chosen(files=[])


def of_file(path: Path, source: SourceConfig) -> Chosen:
    """The one file that is named. InputMissing where another split is asked for than its name tells."""
    return _one_set([path], path.parent, source)


def of_directory(path: Path, source: SourceConfig) -> Chosen:
    """The files of a directory, by name. Raises DataError and InputMissing."""
    if saved.is_saved(path):
        return _of_saved(path, source)
    found = [child for child in sorted(path.iterdir()) if child.is_file()]
    if {"config.json", "tokenizer_config.json"} <= {child.name for child in found}:
        what = f"{source.path} is the directory of a model, which holds no rows"
        raise DataError(what, hint=f"--model {shlex.quote(source.path)} trains it, --data FILE names the rows")
    if not _of_rows(found):
        inner = _below(path)
        hint = _reading_all(source, inner) if inner else f"known: {known_suffixes()}"
        raise DataError(f"{source.path} is a directory without files of rows", hint=hint)
    return _one_set(found, path, source)


def of_listing(listing: Listing, source: SourceConfig) -> Chosen:
    """The same of a folder or a pattern of an object store, as addresses: no file is fetched to tell."""
    files = listing.files
    if saved.MARKS.intersection(path.name for path in files if path.parent == listing.base):
        what = f"{source.path} is a folder that `datasets` saved, which is read from a disk"
        raise DataError(what, hint=f"copy it and name the copy: {remote.copying(source.path)}")
    if listing.pattern and not files:
        raise InputMissing(f"no file matches {source.path}", hint=f"list it: {remote.listing_of(listing.base)}")
    if not _of_rows(files) and not listing.pattern:
        hint = (_reading_all(source) if listing.folders else "") or f"known: {known_suffixes()}"
        raise DataError(f"{source.path} is a directory without files of rows", hint=hint)
    return _one_set(files, listing.base, source)


def told(source: SourceConfig, chosen: Chosen, *, has_validation: bool = True) -> list[str]:
    """What a person is told: splits and files in folders below that are not read, and what a row of a text file is.

    Where there is no validation, with what holds out a split that is meant for it.
    """
    lines = _of_address(source, chosen) if is_remote(source.path) else []
    lines += _of_text(chosen.files, unit=source.text_unit)
    if chosen.left:
        read = " and ".join(name or "no name" for name in chosen.splits)
        left = "; ".join(f"{name or 'no split'}: {_shown(files)}" for name, files in sorted(chosen.left.items()))
        apart = next((name for name in chosen.left if splits.kind_of(name) not in ("", splits.TRAIN)), "")
        naming = f"; to hold it out: --set data.validation={source.path}#{apart}"
        naming *= bool(apart) and not has_validation
        lines.append(f"{source.path}: split {read} is read, others are not ({left}){naming}")
    directory = Path(source.path)
    if not directory.is_dir() or saved.is_saved(directory):
        return lines
    if inner := _below(directory):
        count = "1 file" if len(inner) == 1 else f"{len(inner)} files"
        hint = _reading_all(source, inner)
        lines.append(f"warning: {source.path}: {count} in folders below it not read ({inner[0]}); {hint}")
    return lines


def _of_address(source: SourceConfig, chosen: Chosen) -> list[str]:
    """Where the copies lie of what was fetched, what is another than before, and what was not listed."""
    listing = remote_folder.listing(source)
    if listing is None:
        return remote.notes(source)
    size = size_text(sum(file.stat().st_size for file in chosen.files))
    count = "1 file" if len(chosen.files) == 1 else f"{len(chosen.files):,} files"
    lines = [f"{source.path}: {count} read from {remote.cache_of(source)} ({size})"]
    if changes := remote_folder.changes(source, chosen.addresses):
        lines.append(f"warning: {source.path} has changed since it was listed ({changes})")
    if listing.folders and (reading := _reading_all(source)):
        names = ", ".join(listing.folders[:MOST_SHOWN]) + ", ..." * (len(listing.folders) > MOST_SHOWN)
        lines.append(f"warning: {source.path}: folders below it are not read ({names}); {reading}")
    return lines


def _of_text(files: Sequence[Path], *, unit: TextUnit) -> Iterator[str]:
    """One for text files: what a document of them is."""
    for file in files:
        reader, _ = reader_of(file.name) or (None, "")
        if reader and reader.units:
            other = "file for one a file" if unit == "line" else "line for one a line"
            yield f"text: each {unit} is a document (data.text: {other})"
            return


def _one_set(found: Sequence[Path], base: Path, source: SourceConfig) -> Chosen:
    """Those of the files that are one set. DataError where it takes a person to say which."""
    rows = _of_rows(found)
    if not rows:
        return Chosen(files=[*found])
    kinds: dict[str, list[Path]] = {}
    for path in rows:
        kinds.setdefault(_kind(path), []).append(path)
    if len(kinds) > 1:
        counts = ", ".join(f"{len(paths)} {name}" for name, paths in kinds.items())
        hint = f"name those to train on: {_naming(_likeliest(kinds, source), found, base)}"
        raise DataError(f"{source.path} holds several kinds of files ({counts})", hint=hint)
    by_split: dict[str, list[Path]] = {}
    for path in rows:
        by_split.setdefault(splits.split_of(path.relative_to(base)), []).append(path)
    read = splits.chosen(by_split, source.split)
    if read is None:
        raise _unclear(by_split, source, hint=f"name those to read: {_naming(_meant(by_split), found, base)}")
    left = {name: paths for name, paths in by_split.items() if name not in read}
    return Chosen(files=sorted(path for name in read for path in by_split[name]), splits=(*read,), left=left)


def _of_saved(path: Path, source: SourceConfig) -> Chosen:
    """The files of what `datasets` saved: of several splits those of the one that is read."""
    folders = saved.splits(path)
    if folders is None:
        if source.split not in ("", splits.TRAIN):
            what = f"{source.path} has no split {source.split!r}: it is one data set"
            raise InputMissing(what, hint=f"name it without a split: {shlex.quote(str(path))}")
        return Chosen(files=saved.files(path, shown=source.path))
    read = splits.chosen(folders, source.split)
    if read is None:
        given = {name: [folder] for name, folder in folders.items()}
        hint = f"name the one to read: {shlex.quote(str(_meant(given)[0]))}" if given else "save it again"
        raise _unclear(given, source, hint=hint)
    files = [file for name in read for file in saved.files(folders[name], shown=source.path)]
    left = {name: [folder] for name, folder in folders.items() if name not in read}
    return Chosen(files=files, splits=(*read,), left=left)


def _unclear(by_split: Mapping[str, Sequence[Path]], source: SourceConfig, *, hint: str) -> LoradockError:
    """What to say where no split, or no single one, is what is asked for."""
    if source.split and "" not in by_split:
        named = ", ".join(sorted(by_split)) or "none"
        return InputMissing(f"{source.path} has no split {source.split!r}; it has {named}", hint=hint)
    named = "; ".join(f"{name or 'no split'}: {_shown(by_split[name])}" for name in sorted(by_split))
    return DataError(f"{source.path} holds the files of several splits ({named})", hint=hint)


def _meant(by_split: Mapping[str, Sequence[Path]]) -> Sequence[Path]:
    """The files to propose: training rows, those that nothing names, whatever there is."""
    order = (splits.TRAIN, "", "validation", "test")
    return by_split[min(by_split, key=lambda name: (order.index(splits.kind_of(name)), name))]


def _of_rows(paths: Iterable[Path]) -> list[Path]:
    """Those that are read as rows: of a known kind, neither hidden nor a description of the data set.

    Markdown beside other rows is notes about them.
    """
    rows = [
        path
        for path in paths
        if not path.name.startswith((".", "_"))
        and path.name.lower() not in DESCRIPTIONS
        and not MAPPED.fullmatch(path.name)
        and reader_of(path.name)
    ]
    notes = {path for path in rows if NOTES.search(path.name)}
    return [path for path in rows if path not in notes] or rows


def _below(directory: Path) -> list[Path]:
    """Files of rows in the folders below, by name; hidden folders and those of programs (`__name__`) are not theirs."""
    found: list[Path] = []
    for folder, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if not name.startswith((".", "__")))
        if Path(folder) != directory:
            found += _of_rows(Path(folder) / name for name in sorted(files))
    return sorted(found)


def _reading_all(source: SourceConfig, inner: Sequence[Path] = ()) -> str:
    """What reads the files below a folder, on a disk those `inner`: a pattern for all, or what it is refused for."""
    suffixes = {path.suffix for path in inner}
    all_below = f"{source.path.rstrip('/')}/**/*{suffixes.pop() if len(suffixes) == 1 else ''}"
    below = source.model_copy(update={"path": all_below})
    try:
        listing = remote_folder.listing(below) if is_remote(all_below) else None
        rows = _of_rows((of_listing(listing, below) if listing else matching(Path(all_below), below)).files)
    except (DataError, InputMissing) as error:
        return str(error.hint)
    return f"a pattern reads them: {shlex.quote(all_below)}" if rows else ""


def _likeliest(kinds: Mapping[str, Sequence[Path]], source: SourceConfig) -> Sequence[Path]:
    """The files of the kind that holds rows by the look of its first file; of several the most."""
    return max(kinds.values(), key=lambda paths: (_holds_rows(paths[0], source), len(paths)))


def _holds_rows(path: Path, source: SourceConfig) -> bool:
    """Whether the first record of a file is a row of a format."""
    reader, compression = reader_of(path.name) or (None, "")
    assert reader
    try:
        with regular.opened(path) as file, closing(decompressed(file, compression) if compression else file) as plain:
            record = next(reader.records(plain), None)
        return bool(record and record.row and detect(record.row, mapping=source.fields))
    except (RowError, Damaged, OSError):
        return False


def _naming(wanted: Sequence[Path], found: Sequence[Path], base: Path) -> str:
    """How these files of a folder are named: a pattern that matches them and no others, or each of them."""
    words = {word for path in wanted for word in splits.SEPARATORS.split(path.name) if word}
    suffix = {path.suffix for path in wanted}
    tails = [f"*{suffix.pop()}"] if len(suffix) == 1 else []
    tails += [f"*{word}*" for word in sorted(words)]
    folders = [base, base / "**"] if any(path.parent != base for path in wanted) else [base]
    folders += [folder for path in wanted if (folder := path.parent) not in folders][:1]
    among = set(_of_rows(found))
    for folder, tail in ((folder, tail) for folder in folders for tail in tails):
        if len(wanted) > 1 and {path for path in among if _matches(path, folder, tail)} == set(wanted):
            return f"'{written(folder / tail)}'"
    return " ".join(f"--data {shlex.quote(written(path))}" for path in wanted)


def _matches(path: Path, folder: Path, tail: str) -> bool:
    """Whether a pattern of a folder (or of all below it, `FOLDER/**`) matches, as `glob` has it."""
    plain = folder.parent if folder.name == "**" else folder
    is_in = plain in path.parents if folder.name == "**" else plain == path.parent
    return is_in and fnmatch.fnmatchcase(path.name, tail)


def _kind(path: Path) -> str:
    reader = reader_of(path.name)
    assert reader
    return reader[0].name


def _shown(files: Sequence[Path]) -> str:
    return some_of([path.name for path in files], most=MOST_SHOWN)
