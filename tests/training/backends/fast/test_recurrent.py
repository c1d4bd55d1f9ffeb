"""Documents of a recurrent layer that are computed together: bounded, each once, and by whatever chunks the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import make_model
from jobs import assert_close, gradients, job_of

from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.inputs import flat_inputs
from loradock.training.backends.fast.mixers import recurrent
from loradock.training.backends.fast.mixers.recurrent import groups
from loradock.training.job import Job


def documents(*lengths: int) -> Documents:
    seqlens = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return Documents(bounds=tuple(seqlens.tolist()), cu_seqlens=seqlens, longest=max(lengths))


def test_short_documents_are_computed_together_up_to_the_bound_in_whole_chunks() -> None:
    batch = documents(*[24] * 300, 5000, *[1, 2, 200] * 30)
    parts = list(groups(batch, device=torch.device("cpu"), chunk=64))
    assert torch.equal(torch.cat([each.tokens for each in parts]).sort().values, torch.arange(batch.bounds[-1]))
    assert parts[0].shape == (1, 5000), "one document may be longer"
    assert [each.shape for each in parts if each.shape[1] == 24][:4] == [(64, 24)] * 4
    assert all(count * -(-length // 64) * 64 <= 4096 for count, length in (each.shape for each in parts[1:]))


def fast(job: Job) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first micro-batch, every layer recomputed."""
    model = build(job)[0]
    model.checkpointed = len(model.layers)
    batch, _ = flat_inputs(job.steps[0].micro_batches[0], pad_token_id=0, longest=64)
    loss = float(model.loss_and_gradients(batch, scale=1.0))
    flat = model.adapters
    return loss, {
        name: flat.view(flat.gradient, [each], each.shape).clone()
        for name, each in job.model.named_parameters()
        if each.requires_grad
    }


@pytest.mark.thin(4)
@pytest.mark.parametrize("family", ["qwen3_5_text", "granitemoehybrid", "lfm2"])
def test_a_pass_of_more_than_the_bound_has_the_loss_and_the_gradients_of_peft(
    family: str, tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"mamba_chunk_size": 256} if family == "granitemoehybrid" else {}
    model = make_model(tmp_path / "model", family, **wide)
    job = job_of(tmp_path, "engine=fast", "train.micro_batch=8", model=model, data=rows)
    total = 0.0
    for ids, mask in job.steps[0].micro_batches[0].samples():
        tokens, learned = torch.from_numpy(ids.astype("int64")), torch.from_numpy(mask[1:].copy())
        logits = job.model(input_ids=tokens[None], use_cache=False).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits[learned], tokens[1:][learned], reduction="sum")
        loss.backward()
        total += loss.item()
    expected = gradients(job.model)
    computed: list[int] = []
    put = recurrent.put
    monkeypatch.setattr(
        recurrent, "put", lambda part, *rest: computed.append(part[2].requires_grad) or put(part, *rest)
    )
    for bound, is_kept in ((64, False), (4096, True)):
        computed.clear()
        monkeypatch.setattr(recurrent, "TOGETHER_TOKENS", bound)
        loss, found = fast(job)
        assert loss == pytest.approx(total, rel=1e-5)
        assert_close(found, expected, absolute=2e-5)
        without_graph, with_graph = (computed.count(each) for each in (False, True))
        assert (with_graph > without_graph) == is_kept, "what is kept is not computed a third time"
