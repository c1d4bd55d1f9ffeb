"""Sources -> tokens in the cache: streamed, bounded in memory, the same for any number of workers."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.config.schema import DataConfig, SourceConfig
from loradock.data.cache import CorruptEntry, EntryWriter, discard, read_manifest, writing
from loradock.data.columns import Contents
from loradock.data.formats.base import Completion, Sample
from loradock.data.pool import Row, Task, prepare_chunks
from loradock.data.prepared import Prepared, PreparedSource
from loradock.data.problems import Problems
from loradock.data.read import digest, place_of, shown_files
from loradock.data.sources import samples
from loradock.data.templates import ChatTemplate, resolve
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Raise it whenever the same rows would give other tokens or masks than before.
PREPARATION_VERSION = 3
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
) -> Prepared:
    """All rows of `data.sources` as tokens and masks, from the cache where they are there already.

    `progress(rows, tokens)` is called after each chunk with the numbers so far. `workers` 0 or 1: in this process.
    Raises DataError with every problem of every file (the first 1000 in detail), ConfigError or InputMissing for the
    template or a source, ModelError for the tokenizer, DiskFull, NotWritable or StorageError for the cache.
    """
    spec = tokenizer if isinstance(tokenizer, TokenizerSpec) else TokenizerSpec.of(tokenizer)
    task = Task(spec=spec, template=resolve(data.template, own=spec.chat_template), loss=data.loss)
    if data.template != "auto":
        check_syntax(task.template)
    digests = [digest(source) for source in data.sources]
    key = cache_key(data, task=task, digests=digests)
    manifest = _cached(cache_dir / key)
    if manifest is None:
        manifest = _build(data, task=task, cache_dir=cache_dir, key=key, workers=workers, progress=progress)
    found = zip(data.sources, manifest["spans"], digests, manifest["contents"], strict=True)
    return Prepared(
        directory=cache_dir / key,
        key=key,
        template=task.template.name,
        rows=manifest["rows"],
        tokens=manifest["tokens"],
        supervised_tokens=manifest["learned_tokens"],
        sources=tuple(
            PreparedSource(
                path=source.path,
                start=start,
                stop=stop,
                weight=source.weight,
                digest=content,
                files=tuple(shown_files(source)),
                contents=Contents.of(contents),
            )
            for source, (start, stop), content, contents in found
        ),
    )


def check_syntax(template: ChatTemplate) -> None:
    """ConfigError with the line where a template is no Jinja."""
    from jinja2.exceptions import TemplateError, TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        with contextlib.suppress(TypeError, ValueError):  # it need not render a conversation without turns
            render_jinja_template(conversations=[[]], chat_template=template.text)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"data.template: {template.name}, line {error.lineno}: {error.message}",
            hint="fix the template, or name another: --set data.template=chatml",
        ) from error
    except TemplateError:
        return


def cache_key(data: DataConfig, *, task: Task, digests: list[str]) -> str:
    """sha256 over everything the tokens depend on. Weight, max_length, split and seed only choose among rows."""
    parts = {
        "version": PREPARATION_VERSION,
        "sources": [
            [content, _suffixes(source), source.format, sorted(source.fields.items()), sorted(source.ignore)]
            for source, content in zip(data.sources, digests, strict=True)
        ],
        "tokenizer": task.spec.fingerprint,
        "template": task.template.text,
        "loss": task.loss,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _suffixes(source: SourceConfig) -> list[str]:
    """The suffixes of its files, which decide how they are read."""
    return sorted({"".join(Path(file).suffixes) for file in shown_files(source)})


def _cached(entry: Path) -> dict[str, Any] | None:
    with writing(entry.parent):
        try:
            if entry.exists():
                return read_manifest(entry)
        except CorruptEntry:
            discard(entry)
    return None


def _build(
    data: DataConfig, *, task: Task, cache_dir: Path, key: str, workers: int, progress: Progress | None
) -> dict[str, Any]:
    problems, refusals = Problems(), Problems()
    spans: list[tuple[int, int]] = []
    contents = [Contents() for _ in data.sources]
    has_rendered = False
    with EntryWriter(cache_dir, key=key) as entry, contextlib.ExitStack() as stack:
        pool = prepare_chunks(task, workers=workers, stack=stack)
        for index, source in enumerate(data.sources):
            start, files = entry.rows, shown_files(source)
            for chunk, refused in pool(_chunks(source, index=index, problems=problems, contents=contents[index])):
                for line, what in refused:
                    file, within = place_of(files, contents[index].starts, line)
                    refusals.add(Problem(what=what, file=file, line=within))
                has_rendered |= bool(len(chunk.lengths))
                if not (problems.count or refusals.count):
                    entry.write(chunk)
                if progress:
                    progress(entry.rows, entry.tokens)
            spans.append((start, entry.rows))
        if not has_rendered:
            check_template(refusals, task.template.name)
        problems.extend(refusals)
        problems.check(files=[file for source in data.sources for file in shown_files(source)])
        facts = {
            "spans": spans,
            "contents": [each.as_dict() for each in contents],
            "template": task.template.name,
        }
        entry.commit(key=key, version=PREPARATION_VERSION, sources=[source.path for source in data.sources], **facts)
    return {"rows": entry.rows, "tokens": entry.tokens, "learned_tokens": entry.learned_tokens, **facts}


def check_template(refusals: Problems, template: str) -> None:
    """ConfigError where there are refusals, and all say the same: for when no row at all could be rendered."""
    whats = {problem.what for problem in refusals.kinds.values()}
    if len(whats) == 1:
        raise ConfigError(
            f"data.template: no row can be rendered, all {refusals.count} for one reason: {whats.pop()}",
            hint=f"fix the template ({template}), or name another: --set data.template=chatml",
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
    return sum(len(message.content) for message in sample.messages)
