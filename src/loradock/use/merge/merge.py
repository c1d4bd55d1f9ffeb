"""Merging: an adapter and its base become one model directory, tensor by tensor, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock import __version__
from loradock.errors import ModelError, Problem
from loradock.files import staged
from loradock.model import new_tokens
from loradock.training.run_dir.disk_space import before_output
from loradock.use.merge import delta, experts, sidecar, tensors
from loradock.use.merge.adapted import SETTINGS, WEIGHTS
from loradock.use.merge.experts import Place
from loradock.use.merge.plan import MergePlan, Step
from loradock.use.merge.tensors import Shard

if TYPE_CHECKING:
    import torch

RECORD = "merge.json"
INDEX = "model.safetensors.index.json"
UNCHANGED_SHARE = 0.9
WEIGHT_FILES = (WEIGHTS, SETTINGS)


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What was written. `unchanged`: of each merged weight the share of its numbers that rounding left as they were."""

    output: Path
    files: Mapping[str, str]
    unchanged: Mapping[str, float] = field(default_factory=dict)

    @property
    def faint(self) -> list[str]:
        """Layers of which more than 90 % of the rounded weights are unchanged."""
        return sorted(name for name, share in self.unchanged.items() if share > UNCHANGED_SHARE)


def merge(
    plan: MergePlan,
    output: Path,
    *,
    digests: Mapping[str, str] | None,
    stop_ids: Collection[int],
    dtype: str | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None],
    proof: Callable[[Path, Mapping[str, str]], Mapping[str, Any]],
) -> Merged:
    """Write the merged model to `output`, which does not exist yet.

    `digests`: sha256 of the base's files as the run recorded them. `stop_ids`: tokens that training learned as an end.
    `about`: what else merge.json says. `proof` is called with the directory and its weight files (sha256 by name)
    before it is put in place, and raises where they are not right; `progress` with tensors done and their number.

    Raises ModelError where the base is not the one that was trained on, or a number does not fit the dtype, and
    UsageError, Locked, DiskFull, NotWritable or StorageError as `staged.folder` does; then nothing appears.
    """
    before_output(output, plan.disk_bytes)
    with staged.folder(output) as folder:
        hashes = check_base(plan, digests)
        unchanged: dict[str, float] = {}
        files = _write_weights(plan, folder, unchanged, progress)
        sidecar.write(plan, folder, stop_ids=stop_ids, dtype=dtype)
        digests_other = {file.name: tensors.sha256(file) for file in folder.iterdir() if file.name not in files}
        proven = proof(folder, files)
        record = _record(plan, hashes, files | digests_other, unchanged) | dict(about or {}) | dict(proven)
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8")
    return Merged(output=output, files=files | digests_other, unchanged=unchanged)


def check_base(plan: MergePlan, digests: Mapping[str, str] | None) -> dict[str, str]:
    """sha256 of the base's weight files by name. ModelError where the run recorded others."""
    digests_now = {file.name: tensors.sha256(file) for file in plan.base.weight_files}
    wrong = [
        Problem(what=f"sha256 {digests_now.get(name, 'absent')[:12]}, and the run recorded {digest[:12]}", file=name)
        for name, digest in (digests or {}).items()
        if digests_now.get(name) != digest
    ]
    if wrong:
        raise ModelError(
            f"{plan.base.directory} is not the base that the adapter was trained on",
            hint="put back the base of the run: its weights are named in run.json under weights_sha256",
            problems=wrong,
        )
    return digests_now


def _write_weights(
    plan: MergePlan, folder: Path, unchanged: dict[str, float], progress: Callable[[int, int], None]
) -> dict[str, str]:
    """Write the shards and their index; {file: sha256}."""
    digests: dict[str, str] = {}
    where: dict[str, str] = {}
    total = len(plan.steps)
    for name, steps in plan.shards.items():
        by_name = {step.name: step for step in steps}
        with Shard(folder / name, [step.slot for step in steps]) as shard:
            for slot in shard.slots:
                _put(shard, by_name[slot.name], plan, unchanged)
                where[slot.name] = name
                progress(len(where), total)
        digests[name] = shard.digest
    if len(plan.shards) > 1:
        size = sum(step.slot.size for step in plan.steps)
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        digests[INDEX] = tensors.sha256(folder / INDEX)
    return digests


def _put(shard: Shard, step: Step, plan: MergePlan, unchanged: dict[str, float]) -> None:
    """Write one tensor."""
    if step.kind == "copy":
        shard.copy(step.entry)
        return
    value = computed(step, plan, unchanged)
    source = plan.adapted.files[step.source] if step.source else step.entry
    if value.dtype.itemsize < tensors.width(source.dtype):
        _refuse_overflow(value, step)
    shard.put(value)


def computed(step: Step, plan: MergePlan, unchanged: dict[str, float]) -> torch.Tensor:
    """The tensor that a step leaves, in its dtype: everything before is float32, and rounded once."""
    import torch

    adapted, dtype = plan.adapted, tensors.dtype_of(step.dtype)
    if step.place and not step.source:
        return _of_experts(step, step.place, plan, unchanged)
    if step.entry.parts and step.entry.stored is None and not step.source:
        value = delta.unpacked(step.entry, dtype=plan.load_dtype, device=plan.device)
    else:
        value = tensors.read(adapted.files[step.source] if step.source else step.entry)
    if step.is_quantised:
        value = delta.dequantised(
            value,
            dtype=plan.load_dtype,
            quant_type=plan.asked.storage.quant_type,
            double_quant=plan.asked.double_quant,
            transposed=step.is_transposed,
            device=plan.device,
        )
    if step.kind != "merge":
        return value.to(dtype)
    value = new_tokens.widened(value.float(), step.shape[0]) if step.weight in adapted.rows else value.float()
    base_value = value.to(dtype, copy=True)
    if rows := adapted.rows.get(step.weight):  # first: where PEFT has both, LoRA is around the trained rows
        value[list(rows.places)] = tensors.read(adapted.files[rows.key]).float()
    if step.weight not in adapted.deltas:
        return value.to(dtype)
    merged_value = delta.merged(value, adapted.deltas[step.weight], adapted).to(dtype)
    unchanged[step.weight] = float(torch.eq(base_value, merged_value).sum()) / max(1, merged_value.numel())
    return merged_value


def _of_experts(step: Step, place: Place, plan: MergePlan, unchanged: dict[str, float]) -> torch.Tensor:
    """The same of experts, each of which is quantised, and has its adapter, by itself."""
    import torch

    def dequantised(matrix: torch.Tensor) -> torch.Tensor:
        if not step.is_quantised:
            return matrix
        return delta.dequantised(
            matrix,
            dtype=plan.load_dtype,
            quant_type=plan.asked.storage.quant_type,
            double_quant=plan.asked.double_quant,
            transposed=False,
            device=plan.device,
        )

    dtype, change = tensors.dtype_of(step.dtype), plan.adapted.deltas.get(step.weight)
    before, after = (
        value.to(dtype)
        for value in experts.base_and_merged(
            step.entry, place, dequantise=dequantised, delta=change, adapted=plan.adapted
        )
    )
    if change is not None:
        unchanged[step.name] = float(torch.eq(before, after).sum()) / max(1, after.numel())
    return after


def _refuse_overflow(value: torch.Tensor, step: Step) -> None:
    import torch

    if not bool(torch.isfinite(value).all()):
        raise ModelError(
            f"{step.name} has numbers that {tensors.DTYPES[step.dtype]} does not hold", hint="--dtype bf16, or f32"
        )


def _record(
    plan: MergePlan, base: Mapping[str, str], files: Mapping[str, str], unchanged: Mapping[str, float]
) -> dict[str, Any]:
    """merge.json: nothing in it depends on when or where the merge was done."""
    quantisation = {
        "double_quant": plan.asked.double_quant,
        "load_dtype": str(plan.load_dtype).removeprefix("torch."),
        "quantised_on": plan.device,
    }
    return {
        "loradock": __version__,
        "onto": plan.onto,
        "quantization": plan.asked.quantization,
        **(quantisation if plan.onto == "trained" and plan.asked.storage.is_dequantised else {}),
        "base": {
            "name": plan.base.name if plan.base.revision else plan.base.directory.name,
            "revision": plan.base.revision,
            "sha256": dict(base),
        },
        "adapter": {"sha256": {name: tensors.sha256(plan.adapter / name) for name in WEIGHT_FILES}},
        "tensors": {
            "merged": plan.count("merge"),
            "replaced": plan.count("replace"),
            "dequantised": plan.count("dequantise"),
            "copied": plan.count("copy") + plan.count("cast"),
        },
        "untied": plan.is_untied,
        "faint_layers": sum(share > UNCHANGED_SHARE for share in unchanged.values()),
        "files": dict(sorted(files.items())),
    }
