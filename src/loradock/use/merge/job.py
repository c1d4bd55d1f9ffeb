"""What is to be merged: the adapter of a run, of one of its checkpoints, or of a directory, and onto which weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from loradock.errors import NoCheckpoint, Problem, UsageError
from loradock.model import prequantised
from loradock.model.tokenizer import open_tokenizer
from loradock.training.checkpoint.export import export_checkpoint, refuse_unfinished
from loradock.training.checkpoint.manifest import DamagedCheckpoint, open_checkpoint
from loradock.training.run_dir.paths import CHECKPOINTS, RECORD
from loradock.training.run_dir.resume import read, recorded_config
from loradock.use.inference.opener import Origin, find
from loradock.use.inference.prompts import Prompts
from loradock.use.merge import tensors
from loradock.use.merge.plan import MergePlan, Onto, make

DTYPES = {"auto": None, "bf16": "BF16", "f16": "F16", "f32": "F32"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options. `dtype`: a key of DTYPES; `quantization`: how the base was stored, where nobody recorded it.

    `trusted`: names of models whose own code may run.
    """

    onto: Literal["auto", "trained", "original"] = "auto"
    dtype: str = "auto"
    checkpoint: int | None = None
    quantization: str | None = None
    base: str | None = None
    trusted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """The plan, why it is so, and what the merged model needs besides. `dtype`: safetensors' name, None as the base."""

    given: Path
    plan: MergePlan
    origin: Origin
    why: str
    dtype: str | None
    digests: Mapping[str, str] | None
    stop_ids: frozenset[int]
    about: Mapping[str, Any]
    record: Mapping[str, Any]


@contextmanager
def prepared(given: Path, asked: Asked) -> Iterator[Job]:
    """The job of `given`; inside, a checkpoint's adapter lies in a temporary directory.

    Raises what `opener.find` and `plan.make` raise, UsageError for a whole model or for options that contradict, and
    NoCheckpoint where the step has none that is good.
    """
    is_checkpoint = asked.checkpoint is not None
    with TemporaryDirectory(prefix="loradock-adapter-") if is_checkpoint else nullcontext("") as folder:
        record: Mapping[str, Any] = {}
        adapter = given
        if asked.checkpoint is not None:
            record = read(given) if (given / RECORD).is_file() else {}
            adapter = _of_checkpoint(given, asked, record, Path(folder, "adapter"))
        origin = find(adapter, quantization=asked.quantization, base=asked.base, trusted=asked.trusted)
        if not origin.has_adapter:
            raise UsageError(f"{given} is a whole model: it has no adapter to merge", hint="name a run or an adapter")
        origin.check_base()
        origin.check_finite()
        record = record or origin.record
        onto, why = _onto(asked.onto, origin)
        dtype = DTYPES[asked.dtype]
        plan = make(
            origin.base,
            origin.directory,
            asked=origin.asked,
            load_dtype=load_dtype(origin),
            onto=onto,
            dtype=dtype,
            device=device_of(record),
        )
        about = {"run_id": record.get("run_id"), "checkpoint": asked.checkpoint}
        yield Job(
            given=given,
            plan=plan,
            origin=origin,
            why=why,
            dtype=dtype,
            digests=record.get("weights_sha256") or None,
            stop_ids=_stop_ids(origin, vocabulary=plan.vocabulary),
            about=about,
            record=record,
        )


def load_dtype(origin: Origin) -> torch.dtype:
    """That in which training loaded the base: as recorded, else as asked, else that of the base's files."""
    recorded = origin.lineage.load_dtype if origin.lineage else None
    dtype_name = recorded or origin.asked.compute_dtype
    if dtype_name != "auto":
        return getattr(torch, dtype_name)
    floating = [
        entry.dtype
        for entries in tensors.of_base(origin.base).values()
        for entry in entries
        if entry.dtype in tensors.FLOATING
    ]
    return tensors.dtype_of(floating[0]) if floating else torch.bfloat16


def device_of(record: Mapping[str, Any]) -> str:
    """cuda where there is a GPU, but for a run on the CPU: kernels of both may differ in a code that is near a tie."""
    decisions = (record.get("plan") or {}).get("decisions", [])
    was_on_cpu = any((decision["name"], decision["value"]) == ("device", "cpu") for decision in decisions)
    return "cuda" if torch.cuda.is_available() and not was_on_cpu else "cpu"


def _onto(asked: str, origin: Origin) -> tuple[Onto, str]:
    """Onto which weights, and why."""
    storage = origin.asked.storage
    if storage.has_outlier_columns and asked == "trained":
        what = f"an {storage.title} run has no weights to merge onto: {storage.merge_why}"
        raise UsageError(what, hint="--onto original")
    if asked == "original" and prequantised.is_nf4(origin.base.config):
        what = f"{origin.base.directory} holds the NF4 weights that the adapter was trained on, and no others"
        raise UsageError(what, hint="--onto trained")
    if storage.is_dequantised and asked == "original":
        what = f"asked for; the adapter was trained on {storage.title} weights, so answers differ from the run's"
        return "original", what
    return "trained" if storage.is_dequantised else "original", storage.merge_why


def _of_checkpoint(run: Path, asked: Asked, record: Mapping[str, Any], output: Path) -> Path:
    """The adapter directory of a run's checkpoint."""
    if not record:
        raise UsageError(f"{run} is not a run, so it has no checkpoints", hint="leave out --checkpoint")
    config = recorded_config(record, run)
    refuse_unfinished(config, run)
    place = run / CHECKPOINTS / f"checkpoint-{asked.checkpoint}"
    try:
        checkpoint = open_checkpoint(place)
        return export_checkpoint(
            checkpoint, output, record=record, config=config, base=asked.base, trusted=asked.trusted
        )
    except DamagedCheckpoint as error:
        raise NoCheckpoint(
            f"there is no good checkpoint-{asked.checkpoint} in {run}",
            hint=f"loradock checkpoint list {run} shows which there are",
            problems=[Problem(what=str(error), file=str(place))],
        ) from error


def _stop_ids(origin: Origin, *, vocabulary: int) -> frozenset[int]:
    """Tokens that training learned at the end of an answer."""
    tokenizer: Any = open_tokenizer(origin.base, directory=origin.directory, vocabulary=vocabulary)
    if origin.lineage and not origin.lineage.conversations:
        return frozenset([tokenizer.eos_token_id])
    return Prompts.of(tokenizer, origin.lineage).stop_ids
