"""Proof of a merged model before it is put in place: files read back, tensors, answers beside the adapter's."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from loradock.errors import ModelError, StorageError
from loradock.model import load, reward_head
from loradock.model.dense import densify
from loradock.model.experts import layout
from loradock.model.files import json_object
from loradock.model.whole import quiet
from loradock.process import python
from loradock.use.inference.opener import with_adapter
from loradock.use.merge import tensors
from loradock.use.merge.job import Job
from loradock.use.merge.merge import INDEX
from loradock.use.merge.plan import MergePlan

ROWS, TOKENS = 4, 64
MOST_KL = 1e-3
"""Nats per token. Rounding to 16 bits costs 1e-5 on small models; a wrong base or a lost tensor more than 1e-2."""
MOST_ROUNDED_KL = 1e-5
"""The same beside PEFT's own merge, rounded as the files are: what is left is the order of sums."""
MOST_SCORE = 0.1
"""Of a reward's difference: rounding to 16 bits costs 1e-3 on small models, another head about 1."""


def weights(folder: Path, files: Mapping[str, str]) -> None:
    """Read the files back. StorageError where one is not what was written."""
    for name, digest in files.items():
        if tensors.sha256(folder / name) != digest:
            raise StorageError(f"{name} read back from disk differs from what was written", hint="check the disk")


def names(folder: Path, plan: MergePlan) -> None:
    """ModelError where the files lack a tensor of the base's, or have one of another shape or in another file."""
    expected = {
        entry.name: (name, entry.shape)
        for name, entries in tensors.of_base(plan.base).items()
        for entry in entries
        if entry.name not in plan.left_out
    }
    expected |= {step.name: (name, step.shape) for name, steps in plan.shards.items() for step in steps}
    written = (folder / name for name in plan.shards)
    entries = {entry.name: (file.name, entry.shape) for file in written for entry in tensors.entries(file)}
    if len(plan.shards) > 1:
        index = json_object(folder / INDEX)["weight_map"]
        entries = {name: (index.get(name), shape) for name, (_, shape) in entries.items()}
    if wrong := sorted(name for name in expected.keys() | entries.keys() if expected.get(name) != entries.get(name)):
        raise ModelError(
            f"the merged model has not the tensors of its base: {len(wrong)} are missing or differ, first {wrong[0]}",
            hint="serve the adapter beside its base instead; please report the model",
        )


def answers(folder: Path, job: Job) -> dict[str, Any]:
    """KL divergence (nats per token: mean and largest) of the merged model from base and adapter, in float32.

    The merged model is loaded by plain transformers in another process; the rows are random tokens of a fixed seed.
    Of a mixture, whose tokens rounding may send to other experts, PEFT's own merge, rounded alike, stands in the
    adapter's place where answers move that far: `kl_rounded`. ModelError where the model does not load, or a mean is
    above its most.
    """
    vocabulary = min(job.plan.vocabulary, job.plan.adapted.names[job.plan.adapted.embedding][0])
    ids = torch.randint(vocabulary, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    merged = _of_directory(folder, ids)
    if job.plan.adapted.is_reward:
        return _scores(job, ids, merged)
    with torch.no_grad():
        model = of_adapter(job)
        divergence = _divergence(model, ids, merged)
        divergences = {"kl_mean": float(divergence.mean()), "kl_max": float(divergence.max())}
        is_equal = divergences["kl_mean"] <= MOST_KL
        if not is_equal and (rounded := _rounded(model, job)) is not None:
            divergences["kl_rounded"] = float(_divergence(rounded, ids, merged).mean())
            is_equal = divergences["kl_rounded"] <= MOST_ROUNDED_KL
    if not is_equal:
        raise ModelError(
            f"the merged model is not base and adapter: KL divergence {divergences['kl_mean']:.2g} nats per token",
            hint="--dtype f32 tells rounding apart; please report the model",
        )
    return {"verified": {"rows": ROWS, "tokens": TOKENS, **divergences}}


def _divergence(model: Any, ids: torch.Tensor, merged: torch.Tensor) -> torch.Tensor:
    """KL of each token of the merged model's logits from a model's."""
    reference = model(ids).logits.float().log_softmax(dim=-1)
    width = min(reference.shape[-1], merged.shape[-1])
    return kl(reference[..., :width], merged[..., :width])


def _rounded(model: Any, job: Job) -> Any:
    """Base and adapter merged by PEFT, with weights as the files round them.

    None where the model has no experts, where weights are in 4 bit still, and where the files do not round, or in
    several ways.
    """
    has_experts = any(True for _ in layout.modules(model))
    codes = {step.dtype for steps in job.plan.shards.values() for step in steps if step.kind != "copy"}
    is_dense = all(parameter.is_floating_point() for parameter in model.parameters())
    if not has_experts or not is_dense or len(codes) != 1 or not codes <= {"BF16", "F16"}:
        return None
    dtype = getattr(torch, tensors.DTYPES[codes.pop()])
    merged = model.merge_and_unload()
    for parameter in merged.parameters():
        parameter.data = parameter.data.to(dtype).float()
    return merged


def _scores(job: Job, ids: torch.Tensor, merged: torch.Tensor) -> dict[str, Any]:
    """The largest difference of the merged model's scores from those of base and adapter, by the head itself."""
    model = of_adapter(job)
    padding = job.plan.base.config.get_text_config().pad_token_id
    places = [reward_head.last_place(row, pad_token_id=padding) for row in ids.tolist()]
    with torch.no_grad():
        states = model.get_decoder()(ids).last_hidden_state[torch.arange(len(ids)), torch.tensor(places)]
        difference = float((reward_head.rewards(model, states.float()) - merged).abs().max())
    if not difference <= MOST_SCORE:
        raise ModelError(
            f"the merged model is not base and adapter: a score differs by {difference:.2g}",
            hint="--dtype f32 tells rounding apart; please report the model",
        )
    return {"verified": {"rows": ROWS, "tokens": TOKENS, "score_max": difference}}


def kl(reference: torch.Tensor, second_logits: torch.Tensor) -> torch.Tensor:
    """KL divergence in nats of each token, float64, of log-probabilities [..., vocabulary]."""
    first, second = reference.double(), second_logits.double()
    first, second = (logits - logits.logsumexp(dim=-1, keepdim=True) for logits in (first, second))
    return (first.exp() * (first - second)).sum(dim=-1)


def of_adapter(job: Job) -> Any:
    """Base and adapter as PEFT computes them, in float32 on the CPU, on the weights that are merged onto."""
    plan = job.plan
    model_config = plan.asked if plan.onto == "trained" else plan.asked.model_copy(update={"quantization": "none"})
    with quiet():
        dtype = plan.load_dtype if plan.onto == "trained" else "auto"
        model = load.load_whole(plan.base, model_config, dtype=dtype, device="cpu")
        if not model_config.storage.is_quantised or densify(model, dtype=torch.float32):
            model = model.float()
        return with_adapter(model, plan.adapter).eval()


def _of_directory(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    with TemporaryDirectory(prefix="loradock-proof-") as place:
        files, output = Path(place, "ids.pt"), Path(place, "out.pt")
        torch.save(ids, files)
        command = python.command("-m", "loradock.use.merge.loaded", str(folder), str(files), str(output))
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode:
            last = result.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ModelError(
                f"plain transformers does not load the merged model: {last[0]}", hint="please report the model"
            )
        return torch.load(output)
