"""Log-probabilities of candidates and losses are those that plain transformers computes, whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from embedding.made import make_adapter, write_lines
from evaluation.made import question, true_or_false, write
from tiny import make_llama
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from loradock.use.evaluation import tasks
from loradock.use.evaluation.items import Item, of_data
from loradock.use.evaluation.methods import Choice, Loss, batches
from loradock.use.evaluation.methods import choice as choosing
from loradock.use.evaluation.methods import forward as forwarding
from loradock.use.evaluation.methods.choice import Branches
from loradock.use.inference.opener import Opened, open_model

pytestmark = pytest.mark.thin(2)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_model(make_llama(tmp_path_factory.mktemp("base")), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    """Two candidates of one word, five, and candidates of many tokens of which one begins another."""
    folder = tmp_path_factory.mktemp("tasks")
    boolq = write(folder / "boolq.json", [true_or_false(number) for number in range(20)])
    arc = write(folder / "arc.json", [question(number, answers=3 + number % 3) for number in range(20)])
    own = folder / "own.jsonl"
    names = "river/river stone/river stone and seven horses on a bridge/a lamp"
    rows = [{"instruction": f"{n} {'winter ' * n}?\nAnswer format: {names}", "output": "a lamp"} for n in range(10)]
    write_lines(own, rows)
    found = [*tasks.named("boolq").read(boolq).items, *tasks.named("arc-easy").read(arc).items]
    found += of_data(own, needs="candidates").items
    return [replace(item, row=row) for row, item in enumerate(found)]


def plainly(opened: Opened, item: Item, text: str) -> float:
    """The log-probability of an answer by one whole forward pass of the plain model."""
    ids, learned = opened.prompts.row(item.saying(text))
    first, last = learned[0][0], learned[-1][1]
    while ids[last - 1] in opened.prompts.stop_ids:
        last -= 1
    with torch.no_grad():
        logits = opened.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(logits[place - 1, ids[place]]) for place in range(first, last))


@pytest.mark.thin(4)
@pytest.mark.parametrize("batch_tokens", [1, 1_000, 100_000])
def test_log_probabilities_are_those_of_whole_passes(opened: Opened, items: list[Item], batch_tokens: int) -> None:
    method = Choice(opened)
    works = [method.prepare(item) for item in items]
    found = {
        outcome.row: outcome
        for batch in batches(method, works, batch_tokens=batch_tokens)
        for outcome in method.run(batch)
    }
    for item in items:
        wanted = [plainly(opened, item, text) for text in item.texts]
        outcome = found[item.row]
        assert outcome.logprobs == pytest.approx(wanted, abs=1e-4)
        assert outcome.given == item.candidates[wanted.index(max(wanted))]
        by_length = [value / len(text) for value, text in zip(wanted, item.texts, strict=True)]
        assert outcome.normalised == item.candidates[by_length.index(max(by_length))]
        assert outcome.score == (outcome.given == item.answer)


def test_a_batch_of_1_and_of_32_choose_the_same(opened: Opened, items: list[Item]) -> None:
    method = Choice(opened)
    works = [method.prepare(item) for item in items[:32]]
    alone = [method.run([work])[0] for work in works]
    together = method.run(works)
    assert [(each.given, each.normalised) for each in alone] == [(each.given, each.normalised) for each in together]


def test_an_adapters_log_probabilities_are_its_own(tmp_path: Path, items: list[Item]) -> None:
    adapter = make_adapter(tmp_path / "adapter", base=make_llama(tmp_path / "base"))
    opened = open_model(adapter, quantization="none", dtype="float32", device="cpu")
    method = Choice(opened)
    own = method.run([method.prepare(items[0])])[0].logprobs
    assert own == pytest.approx([plainly(opened, items[0], text) for text in items[0].texts], abs=1e-4)
    with opened.without_adapter():
        base = method.run([method.prepare(items[0])])[0].logprobs
        assert base == pytest.approx([plainly(opened, items[0], text) for text in items[0].texts], abs=1e-4)
    assert own != pytest.approx(base, abs=1e-3)


def test_a_sliding_window_and_capped_logits_change_nothing(tmp_path: Path, items: list[Item]) -> None:
    base = make_llama(tmp_path / "base")
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8, "final_logit_softcapping": 5.0}
    vocabulary = AutoModelForCausalLM.from_pretrained(base).config.vocab_size
    torch.manual_seed(0)
    Gemma2ForCausalLM(Gemma2Config(vocab_size=vocabulary, **shape)).save_pretrained(base)
    opened = open_model(base, dtype="float32", device="cpu")
    method = Choice(opened)
    chosen = [items[0], items[25], items[45]]
    for item, outcome in zip(chosen, method.run([method.prepare(item) for item in chosen]), strict=True):
        assert outcome.logprobs == pytest.approx([plainly(opened, item, text) for text in item.texts], abs=1e-4)


@pytest.mark.parametrize("window", [None, 16])
def test_what_all_rows_begin_with_is_computed_once(
    tmp_path: Path, items: list[Item], monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Padding lies between what is shared and the rest; a window of attention must not notice."""
    base = make_llama(tmp_path / "base")
    if window:
        vocabulary = AutoModelForCausalLM.from_pretrained(base).config.vocab_size
        shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": window}
        torch.manual_seed(0)
        MistralForCausalLM(MistralConfig(vocab_size=vocabulary, **shape)).save_pretrained(base)
    opened = open_model(base, dtype="float32", device="cpu")
    counts: list[int] = []
    monkeypatch.setattr(forwarding, "forward", counting(forwarding.forward, counts))
    method = Choice(opened)
    works = [method.prepare(item) for item in items[:20]]
    outcomes = method.run(works)
    assert len(counts) == (1 if window else 2)
    assert (counts[0] > 1) == bool(window)
    for work, outcome in zip(works, outcomes, strict=True):
        wanted = [plainly(opened, work.item, text) for text in work.item.texts]
        assert outcome.logprobs == pytest.approx(wanted, abs=1e-4)


def counting(whole: Callable[..., Any], counts: list[int]) -> Callable[..., Any]:
    """A forward pass that notes its rows."""

    def forward(opened: Opened, **given: Any) -> Any:
        counts.append(given["input_ids"].shape[0])
        return whole(opened, **given)

    return forward


def test_a_cache_that_cannot_be_branched_is_done_without(
    opened: Opened, items: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Choice(opened)
    works = [method.prepare(item) for item in items]
    wanted = [outcome.logprobs for outcome in method.run(works)]
    whole = choosing.last_logits
    monkeypatch.setattr(choosing, "last_logits", lambda *given, **named: (*whole(*given, **named)[:2], object()))
    for outcome, logprobs in zip(method.run(works), wanted, strict=True):
        assert outcome.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_what_candidates_share_is_computed_once() -> None:
    found = Branches.of([([1, 2, 3, 4], 2), ([1, 2, 3, 5, 6], 2)])
    assert (found.prefix, found.start, found.ends) == ([1, 2, 3], 2, [[4], [5, 6]])
    found = Branches.of([([1, 2, 3], 2), ([1, 2, 3, 4], 2)])  # one candidate begins the other
    assert (found.prefix, found.start, found.ends) == ([1, 2], 2, [[3], [3, 4]])


def test_the_loss_is_that_of_the_tokens_that_training_learns(opened: Opened, items: list[Item]) -> None:
    method = Loss(opened)
    outcomes = method.run([method.prepare(item) for item in items])
    for item, outcome in zip(items, outcomes, strict=True):
        ids, learned = opened.prompts.row(item.sample)
        with torch.no_grad():
            logits = opened.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        places = [place for first, last in learned for place in range(first, last)]
        assert outcome.tokens == len(places)
        assert outcome.score == pytest.approx(-sum(float(logits[at - 1, ids[at]]) for at in places), abs=1e-4)
        assert math.isfinite(outcome.score)


def test_batches_are_longest_first_and_bounded(
    opened: Opened, items: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = Choice(opened)
    works = [method.prepare(item) for item in items]
    found = list(batches(method, works, batch_tokens=500))
    assert sorted(work.item.row for batch in found for work in batch) == list(range(len(items)))
    longest = [max(work.tokens for work in batch) for batch in found]
    assert longest == sorted(longest, reverse=True)
    assert all(len(batch) == 1 or most * len(batch) <= 500 for batch, most in zip(found, longest, strict=True))
    on_cpu = [max(work.tokens for work in batch) * len(batch) for batch in batches(method, works, batch_tokens=10**9)]
    assert max(on_cpu) <= 1_024
    monkeypatch.setattr("loradock.use.evaluation.methods.base.LOGITS_BYTES", 1)
    assert max(map(len, batches(method, works, batch_tokens=10**9))) == 1
