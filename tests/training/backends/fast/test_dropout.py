"""Dropout before the adapters: masks that follow from a token, its step, the column and the adapter alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of
from torch import Tensor
from whole_runs import losses, train

from loradock.data.collate import MicroBatch
from loradock.training.backends.fast import layer
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.backend import build, salt_of
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.families.parts import Unfit
from loradock.training.backends.fast.inputs import flat_inputs
from loradock.training.backends.fast.kernels import Dropout, dropped, plain
from loradock.training.backends.fast.linear import LinearGroup
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.weights import DenseRoom
from loradock.training.job import Job

pytestmark = pytest.mark.thin(4)

BITS_32 = 1 << 32
SHARE = 0.3


def signed(number: int, *, bits: int) -> int:
    number %= 1 << bits
    return number - (1 << bits) if number >> (bits - 1) else number


def is_dropped(key: int, adapter: int, column: int, *, share: float) -> bool:
    """The definition of `base.Dropout`, number by number."""
    z = signed((key + adapter * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9, bits=64)
    z = signed((z ^ (z >> 32)) * 0x94D049BB133111EB, bits=64)
    z = signed(z ^ (z >> 32), bits=64)
    words = []
    for number in (column, -1 - column):
        word = signed(number * 0x7FEB352D, bits=32)
        word = signed((word ^ (word >> 15)) * 0x846CA68B, bits=32)
        words.append(signed(word ^ (word >> 16), bits=32) | 1)
    w = signed(((z >> 32) | 1) * words[0], bits=32) ^ signed((z | 1) * words[1], bits=32)
    return w < round(share * BITS_32) - BITS_32 // 2


def random_keys(count: int, *, seed: int = 0) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


def mask(keys: Tensor, adapter: int, width: int, *, share: float) -> Tensor:
    """Bool [T, n]: what is dropped, as the kernels make it."""
    return kept(torch.ones(len(keys), width), keys, adapter, share=share) == 0


def kept(x: Tensor, keys: Tensor, adapter: int, *, share: float) -> Tensor:
    masks = dropped.Masks(x, Dropout(keys, adapter, share), adapters=1)
    return torch.cat([masks.kept(x[rows], rows, 0).clone() for rows, _, _ in masks.parts(1)])


def test_masks_are_those_of_the_definition_in_every_dtype() -> None:
    keys = random_keys(40)
    found = mask(keys, 77, 50, share=SHARE)
    expected = [[is_dropped(int(key), 77, column, share=SHARE) for column in range(50)] for key in keys]
    assert found.tolist() == expected
    for dtype in (torch.bfloat16, torch.float64):
        assert ((kept(torch.ones(40, 50, dtype=dtype), keys, 77, share=SHARE) == 0) == found).all()


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.5, 0.9])
def test_the_rate_is_right_and_masks_are_independent(share: float) -> None:
    """Between columns, tokens, adapters and steps; five standard errors, for keys as tokens have them."""
    rows, width = 1500, 1000
    keys = random_keys(rows)
    masks = {
        "first": mask(keys, 0, width, share=share),
        "next adapter": mask(keys, 1, width, share=share),
        "next layer": mask(keys, 64, width, share=share),
        "next step": mask(keys + salt_of(0, 1) - salt_of(0, 0), 0, width, share=share),
    }
    variance = share * (1 - share)
    centred = {name: found.double() - share for name, found in masks.items()}
    for name, found in centred.items():
        assert abs(found.mean()) < 5 * (variance / found.numel()) ** 0.5, name
    first = centred["first"]
    others = [centred[name] for name in ("next adapter", "next layer", "next step")]
    for other in (*others, first.roll(1, 0), first.roll(1, 1), first.roll(16, 1), first.roll((1, 1), (0, 1))):
        assert abs((first * other).mean()) < 5 * variance / first.numel() ** 0.5
    for side in (first, first.t()):  # all pairs of tokens, and of columns
        pairs = (side @ side.t()) / (variance * side.shape[1] ** 0.5)
        off_diagonal = pairs[~torch.eye(len(side), dtype=torch.bool)]
        assert float(off_diagonal.var()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (700, 200), (300, 1024)])
def test_the_three_products_are_those_of_the_masked_input(rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    rank, adapters = 4, 3
    x = torch.randn(rows, width + 9, dtype=torch.float64)[:, 5 : 5 + width].to(dtype)
    a = torch.randn(adapters * rank, width, dtype=torch.float64).to(dtype)
    dh = torch.randn(rows, adapters * rank, dtype=torch.float64).to(dtype)
    dx = torch.randn(rows, width, dtype=torch.float64).to(dtype)
    dropout = Dropout(random_keys(rows), 5, SHARE)
    scales = [(~mask(dropout.keys, 5 + i, width, share=SHARE)).double() / (1 - SHARE) for i in range(adapters)]
    part = [slice(i * rank, (i + 1) * rank) for i in range(adapters)]
    wide = [tensor.double() for tensor in (x, a, dh, dx)]
    h = torch.cat([(wide[0] * scales[i]) @ wide[1][part[i]].t() for i in range(adapters)], dim=1)
    da = torch.cat([wide[2][:, part[i]].t() @ (wide[0] * scales[i]) for i in range(adapters)])
    added = wide[3] + sum((wide[2][:, part[i]] @ wide[1][part[i]]) * scales[i] for i in range(adapters))
    out = torch.full_like(a, float("nan"))
    plain.lora_down_backward_a(dh, x, dropout, rank=rank, out=out)
    found_h = plain.lora_down(x, a, dropout, rank=rank)
    plain.lora_down_backward_x_(dx, dh, a, dropout, rank=rank)
    near = {torch.float32: 2e-4, torch.bfloat16: 0.5, torch.float64: 2e-4}[dtype]  # sums of up to 1024 in bfloat16
    for found, expected in ((found_h, h), (out, da), (dx, added)):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=near / 10, atol=near)


class Fixed(torch.nn.Module):
    """PEFT's dropout before one adapter, in the place of its random one: our masks."""

    def __init__(self, keys: Tensor, adapter: int) -> None:
        super().__init__()
        self.keys, self.adapter, self.p = keys, adapter, SHARE

    def forward(self, x: Tensor) -> Tensor:
        return x * ~mask(self.keys, self.adapter, x.shape[-1], share=SHARE) / (1 - SHARE)


def flat(job: Job, micro_batch: MicroBatch, *, salt: int | None) -> FlatBatch:
    shape = {"pad_token_id": 0, "longest": job.plan.data.limit_tokens, "has_dropout": True}
    return flat_inputs(micro_batch, **shape)[0].masked_by(salt)


def gradients(job: Job, model: FastModel, micro_batches: list[MicroBatch], *, salt: int | None) -> tuple[float, Any]:
    """The summed loss, and each adapter's gradient by name."""
    store = model.adapters
    store.gradient.zero_()
    loss = sum(float(model.loss_and_gradients(flat(job, each, salt=salt), scale=1.0)) for each in micro_batches)
    named = [(name, each) for name, each in job.model.named_parameters() if each.requires_grad]
    return loss, {name: store.view(store.gradient, [each], each.shape).clone() for name, each in named}


@pytest.fixture
def job(tmp_path: Path, llama: Path, rows: Path) -> Job:
    return job_of(tmp_path, "engine=fast", f"lora.dropout={SHARE}", model=llama, data=rows)


def test_under_the_same_masks_peft_computes_the_same(job: Job) -> None:
    model = build(job)[0]
    micro_batch = job.steps[0].micro_batches[0]
    found_loss, found = gradients(job, model, [micro_batch], salt=11)
    batch = flat(job, micro_batch, salt=11)
    job.model.train()
    total = 0.0
    for index, (ids, is_learned) in enumerate(micro_batch.samples()):
        tokens = slice(batch.documents.bounds[index], batch.documents.bounds[index + 1])
        for number, group in enumerate(group for each in model.layers for group in each.parts.groups()):
            for place, module in enumerate(group):
                adapter = layer.ADAPTERS_A_GROUP * number + place
                module.lora_dropout["default"] = Fixed(batch.keys[tokens], adapter)
        inputs = torch.from_numpy(ids.astype("int64"))[None]
        logits = job.model(input_ids=inputs, use_cache=False).logits[0, :-1].float()
        is_target = torch.from_numpy(is_learned.copy())[1:]
        loss = torch.nn.functional.cross_entropy(logits[is_target], inputs[0, 1:][is_target], reduction="sum")
        loss.backward()
        total += loss.item()
    assert found_loss == pytest.approx(total, rel=1e-5)
    for name, parameter in job.model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_losses_are_distributed_as_those_under_peft(job: Job) -> None:
    """Mean and spread over 150 draws of each; one row, so that the spread is wide."""
    model = build(job)[0]
    whole = job.steps[0].micro_batches[0]
    one = part_of(whole, 0)
    ours = torch.tensor([float(model.loss(flat(job, one, salt=salt_of(0, step)))) for step in range(150)])
    ids, is_learned = next(one.samples())
    inputs, is_target = torch.from_numpy(ids.astype("int64"))[None], torch.from_numpy(is_learned.copy())[1:]
    job.model.train()
    torch.manual_seed(3)
    drawn = []
    with torch.no_grad():
        for _ in range(150):
            logits = job.model(input_ids=inputs, use_cache=False).logits[0, :-1].float()
            target = inputs[0, 1:][is_target]
            drawn.append(torch.nn.functional.cross_entropy(logits[is_target], target, reduction="sum"))
    theirs = torch.stack(drawn)
    assert theirs.std() > 0
    error = ((ours.var() + theirs.var()) / 150) ** 0.5
    assert abs(ours.mean() - theirs.mean()) < 4 * error
    assert float(ours.std() / theirs.std()) == pytest.approx(1, abs=0.3)  # 4 standard errors of a ratio of 150 and 150


def part_of(whole: MicroBatch, index: int) -> MicroBatch:
    """One document of a micro-batch alone, where it stands in the step."""
    one = slice(index, index + 1)
    arrays = {name: getattr(whole, name)[one] for name in ("rows", "places", "starts", "lengths", "contexts")}
    return replace(whole, **arrays)


def test_a_document_is_masked_alike_in_every_micro_batch(job: Job) -> None:
    model = build(job)[0]
    whole = job.steps[0].micro_batches[0]
    expected_loss, expected = gradients(job, model, [whole], salt=7)
    alone = [part_of(whole, index) for index in reversed(range(len(whole.rows)))]
    loss, found = gradients(job, model, alone, salt=7)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)
    moved = [replace(each, places=each.places + 1) for each in alone]
    assert gradients(job, model, moved, salt=7)[0] != pytest.approx(expected_loss, rel=1e-6)


def test_all_tokens_of_a_step_have_keys_of_their_own(job: Job) -> None:
    """By place, position and pass: nothing but an equal place and pass gives an equal key."""
    micro_batch = job.steps[0].micro_batches[0]
    first = flat(job, micro_batch, salt=0).keys.tolist()
    scored = flat(job, replace(micro_batch, purpose="score"), salt=0).keys.tolist()
    elsewhere = flat(job, replace(micro_batch, places=micro_batch.places + 1000), salt=0).keys.tolist()
    assert len({*first, *scored, *elsewhere}) == 3 * micro_batch.tokens
    assert len({salt_of(seed, step) for seed in range(20) for step in range(50)}) == 1000


def test_an_evaluation_drops_nothing(job: Job) -> None:
    model = build(job)[0]
    batch = flat(job, job.steps[0].micro_batches[0], salt=3)
    assert model.loss(batch.masked_by(None)) == model.loss(flat(job, job.steps[0].micro_batches[0], salt=None))
    assert model.loss(batch.masked_by(None)) != model.loss(batch)


def test_ranks_that_differ_within_a_group_are_refused(job: Job) -> None:
    parts = build(job)[0].layers[0].parts
    modules = next(iter(parts.groups()))
    weight = modules[0].lora_A["default"].weight
    modules[0].lora_A["default"].weight = torch.nn.Parameter(torch.zeros(2, weight.shape[1]))
    store = FlatAdapters([p for module in modules for p in linear_parameters(module)], dtype=torch.float32)
    with pytest.raises(Unfit, match="several ranks, and a dropout"):
        LinearGroup(modules, store, DenseRoom(), kernels=plain, first=0)


def linear_parameters(module: Any) -> list[torch.nn.Parameter]:
    return [module.lora_A["default"].weight, module.lora_B["default"].weight]


def test_a_run_has_the_same_losses_in_every_micro_batch(tmp_path: Path, llama: Path, rows: Path) -> None:
    def run(name: str, micro_batch: int, *more: str) -> list[float]:
        settings = ("engine=fast", "lora.dropout=0.1", "train.max_steps=4", "train.global_batch=8", "logging.every=1")
        shape = (f"train.micro_batch={micro_batch}", "data.max_length=64")
        return losses(train(tmp_path / name, *settings, *shape, *more, model=llama, data=rows))

    expected = run("eight", 8)
    assert run("one", 1) == pytest.approx(expected, rel=1e-5)
    assert run("checkpointed", 2, "train.checkpointing=true") == pytest.approx(expected, rel=1e-5)
    assert run("seed", 8, "train.seed=1") != pytest.approx(expected, rel=1e-5)
