"""Disk for the model: what is yet to be fetched into the hub's cache, and the checkpoints that the run keeps."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from loradock.catalog import optimizers
from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.remedies import train_with
from loradock.errors import DiskFull, InputMissing, ModelError
from loradock.facts import Facts
from loradock.files import foreign_json
from loradock.machine import Host
from loradock.model import config_file, headers, hub_cache, made_dense, prequantised
from loradock.model import weights as weight_files
from loradock.text.amounts import size_text

if TYPE_CHECKING:
    from loradock.config.sections.model import LoraConfig

# A checkpoint holds the adapter in float32, and its optimiser's state.
ADAPTER_BYTES = 4
NAMED_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,3}(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)
BYTES_PER_NAMED_BILLION = 2 * 10**9


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Two places, each against what will be written there."""
    findings = [*of_download(host, plan), *of_checkpoints(host, plan)]
    return [finding for finding in findings if finding.severity != "ok"] or findings[:1]


def of_download(host: Host, plan: Intent) -> list[Finding]:
    """By the index of the weights where that is here already, else by the number of weights in the name, as a guess."""
    assert plan.config is not None
    name, revision = plan.config.model.name, plan.config.model.revision or "main"
    if not hub_cache.is_hub_id(name) or hub_cache.is_offline(host.environ):
        return []
    snapshot = hub_cache.snapshot(name, revision, environ=host.environ)
    if snapshot and not _index(snapshot) and any(snapshot.glob("*.safetensors")):
        return []
    stated = _index(snapshot) if snapshot else None
    guess = NAMED_SIZE.search(name.partition("/")[2])
    need = stated if stated is not None else int(float(guess[1]) * BYTES_PER_NAMED_BILLION) if guess else None
    if need is None:
        return []
    present_bytes = sum(file.stat().st_size for file in snapshot.glob("*.safetensors")) if snapshot else 0
    return [judge_download(name, max(0, need - present_bytes), host=host, is_guess=stated is None)]


def judge_download(name: str, need: int, *, host: Host, is_guess: bool) -> Finding:
    """A guess can only warn."""
    cache = hub_cache.cache(host.environ)
    free = host.room_bytes(str(cache))
    figures = {"download_bytes": need, "free_bytes": free}
    if need <= free:
        return ok(f"{cache} has space for {name}", **figures)
    say = warning if is_guess else _full
    about = "about " if is_guess else ""
    what = f"{name} takes {about}{size_text(need)}, and {cache} is on a disk with less free space"
    return say(what, remedy="export HF_HOME=DIR", **figures)


def _full(what: str, *, remedy: str, **measured: float) -> Finding:
    return error(what, remedy=remedy, ends=DiskFull, **measured)


def _index(directory: Path) -> int | None:
    """Bytes of all weights as their index states them."""
    try:
        index = foreign_json.read(directory / "model.safetensors.index.json")
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def of_checkpoints(host: Host, plan: Intent) -> list[Finding]:
    """By the shapes in the weights' headers: all of `checkpoints.keep`, one that is being written, and the adapter."""
    assert plan.config is not None
    config = plan.config
    directory = hub_cache.directory_of(config.model.name, config.model.revision, environ=host.environ)
    files = weight_files.files(directory) if directory else []
    if directory is None or not files:
        return [ok("the model is not here yet")]
    shapes = prequantised.dense_shapes(headers.shapes(files), prequantised.packed(files))
    with suppress(InputMissing, ModelError):  # the check of the model's files says what is wrong with config.json
        shapes = made_dense.dense_shapes(shapes, made_dense.contents_of(config_file.read(directory), files))
    targets = None if isinstance(config.lora.targets, str) else config.lora.targets
    weights = adapter_weights(headers.linears(shapes), lora=config.lora, targets=targets)
    weights += saved_weights(shapes, config.lora.modules_to_save)
    weights += row_weights(shapes, tokens=len(config.tokenizer.add_tokens))
    copies = config.checkpoints.keep + 1 + int(config.keeps_best)
    moments = optimizers.named(config.train.optimizer).state_bytes
    need = max(0, int(weights * (copies * (ADAPTER_BYTES + moments) + ADAPTER_BYTES)) - written_bytes(plan.output))
    free = host.room_bytes(str(plan.output))
    figures = {"checkpoints_bytes": need, "free_bytes": free}
    if need <= free:
        return [ok(f"{plan.output} has space for {copies} checkpoints and the adapter", **figures)]
    what = (
        f"{copies} checkpoints and the adapter take {size_text(need)}, and {plan.output} is on a disk "
        "with less free space"
    )
    is_enough = config.checkpoints.keep > 1 and need * 2 <= free * copies
    remedy = train_with("checkpoints.keep=1") if is_enough else "loradock train --output DIR ..."
    return [_full(what, remedy=remedy, **figures)]


def written_bytes(output: Path) -> int:
    """Bytes of the checkpoints that a run which is resumed has there already."""
    return sum(file.stat().st_size for file in output.glob("checkpoints/checkpoint-*/*") if file.is_file())


def adapter_weights(linears: dict[str, tuple[int, int]], *, lora: LoraConfig, targets: tuple[str, ...] | None) -> int:
    """Weights of a plain LoRA on the layers whose last name is among `targets`, or on all of them."""
    shapes = {name: shape for name, shape in linears.items() if targets is None or name.endswith(targets)}
    return sum(lora.rank_of(name) * (rows + columns) for name, (rows, columns) in shapes.items())


def row_weights(shapes: dict[str, tuple[int, ...]], *, tokens: int) -> int:
    """Weights of the rows of new tokens, in the embedding and in a head of its own."""
    matrices = [shape for name, shape in shapes.items() if name.endswith((*headers.EMBEDDINGS, *headers.HEADS))]
    return tokens * sum(shape[1] for shape in matrices)


def saved_weights(shapes: dict[str, tuple[int, ...]], modules: tuple[str, ...]) -> int:
    """Weights of the modules that are trained whole."""
    total = 0
    for name, shape in shapes.items():
        if name.rpartition(".")[0].endswith(modules or ("\0",)):
            count = 1
            for length in shape:
                count *= length
            total += count
    return total


CHECK = Check(
    name="model-space",
    group="model",
    proves="The disk has space for what is yet to be downloaded, and for the checkpoints that the run keeps.",
    look=look,
    needs="config",
)
