"""Sources -> tokens in the cache: streamed, bounded in memory, the same for any number of workers."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data import chat_template, remarks, shards
from loradock.data.cache import CorruptEntry, EntryWriter, discard, read_manifest, writing
from loradock.data.columns import Contents
from loradock.data.formats.base import Completion, Pairs, Sample
from loradock.data.pairs import template as embedding_template
from loradock.data.pairs.preparer import PairTask
from loradock.data.pool import Row, Task, prepare_chunks
from loradock.data.prepared import Prepared, PreparedSource
from loradock.data.problems import Problems
from loradock.data.read import chosen, digest, place_of, shown_files
from loradock.data.sources import samples
from loradock.data.spans import Remark
from loradock.data.special import of_contents
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it whenever the same rows would give other tokens or masks than before.
PREPARATION_VERSION = 4
NEW = (
    "prepared data are made again: version 4 takes the end that a text or an answer brings itself (white space behind "
    "it or not) for the end, the control tokens of text that a chat template wrote for control tokens, does not learn "
    "a turn of which its row says so (weight, train, loss_mask: 0 or false), and reads a mapped column once"
)
"""What is new in this version, said where an entry of the one before it lies in the cache."""
PAIRS_VERSION = 1
"""The same of pairs."""
CHUNK_ROWS = 256
CHUNK_CHARACTERS = 1 << 20
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
    embedding: EmbeddingConfig | None = None,
) -> Prepared:
    """All rows of `data.sources` as tokens and masks, from the cache where they are there already.

    With `embedding` the sources hold pairs, and each document is a row. `progress(rows, tokens)` is called after each
    chunk with the numbers so far. `workers` 0 or 1: in this process.
    Raises DataError with every problem of every file (the first 1000 in detail), ConfigError or InputMissing for the
    template or a source, ModelError for the tokenizer, DiskFull, NotWritable or StorageError for the cache.
    """
    spec = tokenizer if isinstance(tokenizer, TokenizerSpec) else TokenizerSpec.of(tokenizer)
    task = task_of(data, spec=spec, embedding=embedding)
    digests = [digest(source) for source in data.sources]
    key = cache_key(data, task=task, digests=digests)
    manifest = _cached(cache_dir / key, sources=len(data.sources))
    notes: list[str] = []
    if manifest is None:
        if isinstance(task, Task) and (cache_dir / _key_before(data, task=task, digests=digests)).exists():
            notes.append(NEW)
        manifest = _build(data, task=task, cache_dir=cache_dir, key=key, workers=workers, progress=progress)
    if isinstance(task, Task):
        notes += remarks.of_template(task.template, vocabulary=spec.backend)
        notes += remarks.of_special_texts(manifest["special_texts"], special_tokens=task.special_tokens)
    if embedding and (cut := manifest["cut_documents"]):
        lengths = f"embedding.query_length {embedding.query_length}, passage_length {embedding.passage_length}"
        notes.append(f"{cut:,} of {manifest['rows']:,} texts are cut to their length ({lengths})")
    if isinstance(task, Task):
        told = Counter({Remark(name, detail): count for name, detail, count in manifest["remarks"]})
        about = {"rows": manifest["rows"], "sources": data.sources, "template": task.template}
        notes += remarks.of_rows(told, **about, has_own=bool(spec.own_template.text))
    found = zip(data.sources, manifest["spans"], digests, manifest["contents"], strict=True)
    return Prepared(
        directory=cache_dir / key,
        key=key,
        template=task.template.name,
        rows=manifest["rows"],
        tokens=manifest["tokens"],
        supervised_tokens=manifest["learned_tokens"],
        conversations=manifest["conversations"],
        date=task.date if isinstance(task, Task) else None,
        digest=_sha256(manifest["files"]),
        special_texts=manifest["special_texts"],
        notes=tuple(notes),
        sources=tuple(
            PreparedSource(
                path=source.path,
                start=start,
                stop=stop,
                weight=source.weight,
                digest=content,
                files=tuple(shown_files(source)),
                contents=Contents.of(contents),
                notes=tuple(shards.told(source, chosen(source))),
            )
            for source, (start, stop), content, contents in found
        ),
    )


def task_of(data: DataConfig, *, spec: TokenizerSpec, embedding: EmbeddingConfig | None) -> Task | PairTask:
    """What is done to each row. ConfigError or InputMissing for a template that is none."""
    if embedding is not None:
        template = embedding_template.resolve(embedding.template, spec=spec)
        return PairTask.of(embedding, spec=spec, template=template, special=data.special_tokens)
    template = spec.template(data.template)
    if data.template != "auto":
        check_syntax(template)
    date = data.date or datetime.now(UTC).date().isoformat() if template.is_dated else None
    return Task(spec=spec, template=template, loss=data.loss, special_tokens=data.special_tokens, date=date)


def check_syntax(template: ChatTemplate) -> None:
    """ConfigError with the line where a template is no Jinja."""
    from jinja2.exceptions import TemplateSyntaxError

    try:
        chat_template.render(template.text, [], name=template.name, given={})
    except chat_template.Refused as error:  # it need not render a conversation without turns
        wrong = error.__cause__
        if isinstance(wrong, TemplateSyntaxError):
            raise ConfigError(
                f"data.template: {template.name}, line {wrong.lineno}: {wrong.message}",
                hint="fix the template, or name another: --set data.template=alpaca",
            ) from wrong


def cache_key(data: DataConfig, *, task: Task | PairTask, digests: list[str]) -> str:
    """sha256 over everything the tokens depend on. Weight, max_length, split and seed only choose among rows."""
    if isinstance(task, PairTask):
        return _sha256({"sources": _sources(data, digests), "task": task.identity, "version": PAIRS_VERSION})
    return _key(data, task=task, digests=digests, version=PREPARATION_VERSION)


def _key(data: DataConfig, *, task: Task, digests: list[str], version: int) -> str:
    parts: dict[str, Any] = {
        "sources": _sources(data, digests),
        "tokenizer": task.spec.fingerprint,
        "template": task.template.text,
        "version": version,
        "loss": task.loss,
        "special_tokens": task.special_tokens,
    }
    return _sha256(parts | ({"date": task.date} if task.date else {}))


def _sources(data: DataConfig, digests: list[str]) -> list[list[Any]]:
    """What is read, and how."""
    return [
        [content, _suffixes(source), source.format, sorted(source.fields.items()), sorted(source.ignore)]
        for source, content in zip(data.sources, digests, strict=True)
    ]


def _key_before(data: DataConfig, *, task: Task, digests: list[str]) -> str:
    """The key that version 3 gave the same rows."""
    special = of_contents(task.special_tokens)
    return _key(data, task=replace(task, special_tokens=special), digests=digests, version=PREPARATION_VERSION - 1)


def _sha256(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _suffixes(source: SourceConfig) -> list[str]:
    """The suffixes of its files, which decide how they are read."""
    return sorted({"".join(Path(file).suffixes) for file in shown_files(source)})


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
    data: DataConfig, *, task: Task | PairTask, cache_dir: Path, key: str, workers: int, progress: Progress | None
) -> dict[str, Any]:
    problems, refusals = Problems(), Problems()
    spans: list[tuple[int, int]] = []
    contents = [Contents() for _ in data.sources]
    special: Counter[str] = Counter()
    told: Counter[Remark] = Counter()
    conversations = cut = 0
    has_rendered = False
    is_pairs = isinstance(task, PairTask)
    with EntryWriter(cache_dir, key=key, has_roles=is_pairs) as entry, contextlib.ExitStack() as stack:
        pool = prepare_chunks(task, workers=workers, stack=stack)
        for index, source in enumerate(data.sources):
            start, files = entry.rows, shown_files(source)
            for chunk, refused in pool(_chunks(source, index=index, problems=problems, contents=contents[index])):
                for line, what in refused:
                    file, within = place_of(files, contents[index].starts, line)
                    refusals.add(Problem(what=what, file=file, line=within))
                has_rendered |= bool(len(chunk.lengths))
                special += chunk.special_texts
                conversations += chunk.conversations
                told += remarks.of_source(chunk.remarks, index)
                cut += chunk.cut
                if not (problems.count or refusals.count):
                    entry.write(chunk)
                if progress:
                    progress(entry.rows, entry.tokens)
            spans.append((start, entry.rows))
        if not has_rendered and not is_pairs:
            check_template(refusals, task.template.name)
        problems.extend(refusals)
        problems.check(files=[file for source in data.sources for file in shown_files(source)])
        facts = {
            "spans": spans,
            "contents": [each.as_dict() for each in contents],
            "template": task.template.name,
            "conversations": conversations,
            "special_texts": dict(special),
            "remarks": [[*remark, count] for remark, count in sorted(told.items())],
            "cut_documents": cut,
        }
        return entry.commit(
            key=key,
            version=PAIRS_VERSION if is_pairs else PREPARATION_VERSION,
            sources=[source.path for source in data.sources],
            **facts,
        )


def check_template(refusals: Problems, template: str) -> None:
    """ConfigError where there are refusals, and all say the same: for when no row at all could be rendered."""
    whats = {problem.what for problem in refusals.kinds.values()}
    if len(whats) == 1:
        raise ConfigError(
            f"data.template: no row can be rendered, all {refusals.count} for one reason: {whats.pop()}",
            hint=f"fix the template ({template}), or name another: --set data.template=alpaca",
        )


def _chunks(source: SourceConfig, *, index: int, problems: Problems, contents: Contents) -> Iterator[list[Row]]:
    """Rows in chunks of bounded size; what cannot be read goes to `problems`, the source's columns to `contents`."""
    chunk: list[Row] = []
    characters = 0
    for line, sample in samples(source, index=index, contents=contents):
        if isinstance(sample, Problem):
            problems.add(sample)
            continue
        chunk.append((line, sample))
        characters += _characters(sample)
        if len(chunk) >= CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _characters(sample: Sample) -> int:
    if isinstance(sample, Completion):
        return len(sample.prompt) + len(sample.completion)
    if isinstance(sample, Pairs):
        return sum(len(side.text) for side in sample.sides)
    return sum(len(message.content) for message in sample.messages)
