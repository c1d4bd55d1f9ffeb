"""Batched answers are those of transformers' own generate, one prompt at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from greedy import greedy

from loradock.data.formats.base import Message
from loradock.use.inference.decoding import Request, answers, batches
from loradock.use.inference.opener import Opened
from loradock.use.inference.prompts import Prompts
from loradock.use.inference.sampling import Chooser, Sampling

pytestmark = pytest.mark.thin(1)

LONGEST = 20
TEXTS = ["lamp", "a horse on a bridge in winter", "salt " * 12, "seven", "paper window cloud"]


@pytest.fixture
def prompts(opened: Opened) -> list[list[int]]:
    return [opened.prompts([Message("user", text)]) for text in TEXTS]


def alone(opened: Opened, prompt: list[int]) -> list[int]:
    """What transformers generates, without the token that ended it."""
    with opened.computing():
        out = opened.model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=LONGEST,
            do_sample=False,
            use_cache=True,
            eos_token_id=sorted(opened.prompts.stop_ids),
        )
    ids = out[0, len(prompt) :].tolist()
    return ids[:-1] if ids[-1] in opened.prompts.stop_ids else ids


@pytest.mark.thin(4)
@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
def test_a_batch_gives_what_generate_gives_each_prompt_alone(
    opened: Opened, prompts: list[list[int]], batch_tokens: int
) -> None:
    found = greedy(opened, prompts, max_new_tokens=LONGEST, batch_tokens=batch_tokens)
    assert [each.ids for each in found] == [alone(opened, prompt) for prompt in prompts]


def test_rows_that_end_leave_the_batch_and_the_others_are_unchanged(opened: Opened, prompts: list[list[int]]) -> None:
    unlimited = greedy(opened, prompts, max_new_tokens=LONGEST)
    ends = frozenset(each.ids[3] for each in unlimited[:4])
    early: Opened = replace(opened, prompts=with_stops(opened.prompts, ends))
    together = greedy(early, prompts, max_new_tokens=LONGEST)
    apart = greedy(early, prompts, max_new_tokens=LONGEST, batch_tokens=1)
    assert together == apart
    assert {each.finish for each in together} >= {"stop"}


def with_stops(prompts: Prompts, stops: frozenset[int]) -> Prompts:
    """A copy that ends answers with other tokens."""
    copy = Prompts.__new__(Prompts)
    copy.__dict__.update(prompts.__dict__)
    copy.stop_ids = stops
    return copy


def test_what_is_drawn_depends_on_the_seed_of_the_row_and_not_on_the_batch(
    opened: Opened, prompts: list[list[int]]
) -> None:
    sampling = Sampling(temperature=1.5, top_p=0.9)
    requests = [Request(ids=ids, seed=7 + place) for place, ids in enumerate(prompts)]
    together = answers(opened, requests, max_new_tokens=LONGEST, sampling=sampling)
    apart = [answers(opened, [each], max_new_tokens=LONGEST, sampling=sampling)[0] for each in requests]
    assert together == apart
    other = [Request(ids=each.ids, seed=each.seed + 100) for each in requests]
    assert answers(opened, other, max_new_tokens=LONGEST, sampling=sampling) != together


def test_drawn_tokens_follow_the_probabilities_and_top_p_cuts_the_tail() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    chooser = Chooser(Sampling(temperature=1.0), seed=1)
    counts = torch.bincount(torch.tensor([chooser(logits) for _ in range(4000)]), minlength=4) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03, rtol=0)
    cut = Chooser(Sampling(temperature=1.0, top_p=0.7), seed=1)
    assert {cut(logits) for _ in range(500)} == {0, 1}


def test_the_longest_rows_come_first_and_each_row_once() -> None:
    made = list(batches([3, 9, 5, 9], max_new_tokens=1, batch_tokens=20))
    assert made == [[1, 3], [2, 0]]


def test_an_answer_says_whether_it_ended_or_was_cut(opened: Opened, prompts: list[list[int]]) -> None:
    (cut,) = greedy(opened, prompts[:1], max_new_tokens=1)
    assert (cut.finish, len(cut.ids)) == ("length", 1)


def test_dense_weights_answer_as_the_quantised_ones(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loradock.model import dense
    from loradock.use.inference import opener

    plain = opener.open_model(trained)
    monkeypatch.setattr(dense, "free_bytes", lambda _: 0)
    quantised = opener.open_model(trained)
    ids = torch.tensor([[5, 9, 11, 30]])
    with plain.computing():
        assert "Linear4bit" in repr(quantised.model)
        assert "Linear4bit" not in repr(plain.model)
        torch.testing.assert_close(plain.model(ids).logits, quantised.model(ids).logits, atol=1e-5, rtol=1e-5)
