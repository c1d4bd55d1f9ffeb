"""Sources -> tokens in the cache: streamed, bounded in memory, the same for any number of workers."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data import remarks, shards
from loradock.data.blocks import PLACES, Earlier, Place, blocks
from loradock.data.cache import CorruptEntry, EntryWriter, discard, has_margins, read_manifest, writing
from loradock.data.columns import Contents
from loradock.data.pool import Row, Work, prepare_blocks
from loradock.data.prepared import Prepared, PreparedSource
from loradock.data.problems import BadRow, Problems
from loradock.data.read import chosen, digest, has_text, place_of, remote_files, shown_files
from loradock.data.row_task import Task
from loradock.data.skipped import Skipped
from loradock.data.sources import Loaded, samples
from loradock.data.spans import Remark
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it whenever the same rows would give other tokens or masks than before.
PREPARATION_VERSION = 8
NEW = "prepared data are made again: version 8 keeps turns before compared conversations, else as before"
"""What is new in this version, said where an entry of the one before it lies in the cache."""
BYTES_PER_WORKER = 16 << 20
WORKER_MEMORY_BYTES = 768 << 20

Progress = Callable[[int, int], None]


def choose_workers(data_bytes: int, *, cpus: int, memory_bytes: int) -> int:
    """How many processes prepare `data_bytes` of text: one for little data, never more than CPUs or memory carry.

    A worker costs about two CPU-seconds to start, in which one prepares some megabytes.
    """
    wanted = data_bytes // BYTES_PER_WORKER
    return max(1, min(wanted, cpus, memory_bytes // 2 // WORKER_MEMORY_BYTES))


def prepare(
    data: DataConfig,
    *,
    tokenizer: PreTrainedTokenizerBase | TokenizerSpec,
    cache_dir: Path,
    workers: int = 1,
    progress: Progress | None = None,
    task: Callable[[DataConfig, TokenizerSpec], Work] = Task.of,
) -> Prepared:
    """All samples of `data.sources` as tokens and masks, from the cache where they are there already.

    `task` says how rows become documents. `progress(rows, tokens)` is called after each chunk with the numbers so far.
    `workers` 0 or 1: in this process.
    Raises DataError with every problem of every file (the first 1000 in detail), ConfigError or InputMissing for the
    template or a source, ModelError for the tokenizer, DiskFull, NotWritable or StorageError for the cache.
    """
    spec = tokenizer if isinstance(tokenizer, TokenizerSpec) else TokenizerSpec.of(tokenizer)
    work = task(data, spec)
    digests = [digest(source) for source in data.sources]
    key = cache_key(data, work=work, digests=digests)
    manifest = _cached(cache_dir / key, sources=len(data.sources))
    notes: list[str] = []
    if manifest is None:
        if (cache_dir / cache_key(data, work=work, digests=digests, version=PREPARATION_VERSION - 1)).exists():
            notes.append(NEW)
        manifest, reused = _build(data, work=work, cache_dir=cache_dir, key=key, workers=workers, progress=progress)
        if reused:
            notes.append(f"prepared before, with other rows: {reused:,} of {manifest['rows']:,} documents")
    notes += work.notes(manifest, data.sources)
    skipped = Skipped.of(manifest)
    skipped.check(rows=manifest["samples"], max_dropped=data.max_dropped)
    notes += skipped.notes(rows=manifest["samples"])
    notes += [_text_ends(spec)] if any(map(has_text, data.sources)) else []
    sources = zip(data.sources, manifest["spans"], digests, manifest["contents"], strict=True)
    return Prepared(
        directory=cache_dir / key,
        key=key,
        template=work.template.name,
        rows=manifest["rows"],
        tokens=manifest["tokens"],
        supervised_tokens=manifest["learned_tokens"],
        conversations=manifest["conversations"],
        skipped_rows=skipped.count,
        date=work.date,
        digest=_digest(manifest),
        special_texts=manifest["special_texts"],
        notes=tuple(notes),
        has_margins=has_margins(manifest),
        sources=tuple(
            PreparedSource(
                path=source.path,
                start=start,
                stop=stop,
                weight=source.weight,
                digest=content,
                files=tuple(shown_files(source)),
                contents=Contents.of(contents),
                notes=tuple(shards.told(source, chosen(source), has_validation=bool(data.validation))),
                remote_files=remote_files(source),
            )
            for source, (start, stop), content, contents in sources
        ),
    )


def cache_key(data: DataConfig, *, work: Work, digests: list[str], version: int | None = None) -> str:
    """sha256 over everything the tokens depend on. Weight, max_length, split and seed only choose among rows."""
    sources = [
        [
            *[content, _suffixes(source), source.format, sorted(source.fields.items()), sorted(source.ignore)],
            *([source.text_unit] if source.text_unit != "line" and has_text(source) else []),  # line: as always
        ]
        for source, content in zip(data.sources, digests, strict=True)
    ]
    skips = {"on_bad_row": data.on_bad_row} if data.skips else {}
    unread = {"unread_fields": sorted(work.unread_fields)} if work.unread_fields else {}
    return _sha256(work.identity | skips | unread | {"sources": sources, "version": version or PREPARATION_VERSION})


def _sha256(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest(manifest: dict[str, Any]) -> str:
    """sha256 of the tokens and masks; of the roles too, where samples have more than one document."""
    left_out = {"margins.f32"} | ({"roles.u8"} if manifest["samples"] == manifest["rows"] else set[str]())
    return _sha256({name: digest for name, digest in manifest["files"].items() if name not in left_out})


def _suffixes(source: SourceConfig) -> list[str]:
    """The suffixes of its files, which decide how they are read."""
    return sorted({"".join(Path(file).suffixes) for file in shown_files(source)})


def _text_ends(spec: TokenizerSpec) -> str:
    """What stands around a document of text, for the user."""
    before = "the tokenizer's BOS" if spec.bos_id is not None and spec.bos_id in spec.prefix_ids else "no BOS"
    by = "the tokenizer's" if spec.appends_eos else "added, it puts none itself"
    return f"text: a document begins with {before} and ends with EOS ({by})"


def _cached(entry: Path, *, sources: int) -> dict[str, Any] | None:
    """The manifest of an entry that is there and sound; one that is broken is removed."""
    with writing(entry.parent):
        try:
            if entry.exists():
                manifest = read_manifest(entry)
                if len(manifest["spans"]) != sources:
                    raise CorruptEntry(f"{entry}: its manifest is of {len(manifest['spans'])} sources")
                return manifest
        except CorruptEntry:
            discard(entry)
    return None


def _build(
    data: DataConfig, *, work: Work, cache_dir: Path, key: str, workers: int, progress: Progress | None
) -> tuple[dict[str, Any], int]:
    """The manifest of a new entry, and how many of its documents were taken from earlier ones."""
    problems, refusals, skipped = Problems(can_skip=True), Problems(), Problems(can_skip=True)
    rows = skipped if data.skips else problems
    spans: list[tuple[int, int]] = []
    contents = [Contents() for _ in data.sources]
    special: Counter[str] = Counter()
    told: Counter[Remark] = Counter()
    conversations = cut = 0
    good_rows = 0
    maker = _sha256(work.identity | {"version": PREPARATION_VERSION})
    earlier = Earlier.of(cache_dir, maker=maker)
    places: list[Place | None] = []
    reused = 0
    with EntryWriter(cache_dir, key=key) as entry, contextlib.ExitStack() as stack:
        pool = prepare_blocks(work, workers=workers, stack=stack, known=earlier.chunk)
        for index, source in enumerate(data.sources):
            start, files = entry.rows, shown_files(source)
            read = samples(source, index=index, contents=contents[index], unread_fields=work.unread_fields)
            loaded = _rows(read, problems=problems, rows=rows)
            for result in pool(blocks(loaded)):
                chunk = result.chunk
                for line, what in result.refused:
                    file, within = place_of(files, contents[index].starts, line)
                    refusals.add(BadRow(what=what, file=file, line=within))
                good_rows += chunk.samples
                special += chunk.special_texts
                conversations += chunk.conversations
                told += remarks.of_source(chunk.remarks, index)
                cut += chunk.cut
                if data.skips or not (problems.count or refusals.count):
                    places.append(Place.of(result, row=entry.rows, token=entry.tokens))
                    entry.write(chunk)
                    reused += 0 if result.is_new else len(chunk.lengths)
                if progress:
                    progress(entry.rows, entry.tokens)
            spans.append((start, entry.rows))
        if not good_rows:
            work.check_refusals(refusals)
            problems.extend(skipped)
        (skipped if data.skips and good_rows else problems).extend(refusals)
        problems.check(
            files=[file for source in data.sources for file in shown_files(source)],
            share=problems.count / max(1, problems.count + good_rows),
            max_dropped=data.max_dropped,
        )
        facts = {
            "spans": spans,
            "contents": [each.as_dict() for each in contents],
            "template": work.template.name,
            "conversations": conversations,
            "special_texts": dict(special),
            "remarks": [[*remark, count] for remark, count in sorted(told.items())],
            "cut_documents": cut,
            **Skipped.found(skipped).as_dict(),
        }
        manifest = entry.commit(
            blocks=PLACES.dump_json([place for place in places if place]),
            maker=maker,
            key=key,
            version=PREPARATION_VERSION,
            sources=[source.path for source in data.sources],
            **facts,
        )
    return manifest, reused


def _rows(read: Iterator[Loaded], *, problems: Problems, rows: Problems) -> Iterator[Row]:
    """The rows of a source, as they are read.

    What cannot be read goes to `problems`, but for single rows, which go to `rows`.
    """
    for line, sample in read:
        if isinstance(sample, Problem):
            (rows if isinstance(sample, BadRow) else problems).add(sample)
        else:
            yield line, sample
