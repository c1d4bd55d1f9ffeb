"""Models with recurrent layers answer in a batch, padded on the left, what they answer alone."""

from __future__ import annotations

import pytest
import torch
from greedy import greedy
from hybrids import KINDS, make_hybrid

from loradock.data.formats.base import Message
from loradock.use.evaluation.methods.choice import Branches, branch_log_probabilities
from loradock.use.inference.opener import Opened, open_model

LONGEST = 12
TEXTS = ["lamp", "a horse on a bridge in winter", "salt " * 12, "seven", "paper window cloud"]


@pytest.fixture(scope="module", params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A base of each kind, whose matrices are as large as trained ones: states then decide what is answered."""
    directory = make_hybrid(tmp_path_factory.mktemp(request.param) / request.param, request.param)
    found = open_model(directory, template="chatml")
    with torch.no_grad():
        for parameter in found.model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return found


@pytest.fixture
def prompts(opened: Opened) -> list[list[int]]:
    return [opened.prompts([Message("user", text)]) for text in TEXTS]


@pytest.mark.thin(6)
def test_a_batch_of_unlike_lengths_gives_what_generate_gives_each_prompt_alone(
    opened: Opened, prompts: list[list[int]]
) -> None:
    together = greedy(opened, prompts, max_new_tokens=LONGEST, batch_tokens=10_000)
    stops = sorted(opened.prompts.stop_ids)
    for prompt, found in zip(prompts, together, strict=True):
        ids = torch.tensor([prompt])
        with opened.computing():
            out = opened.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=LONGEST,
                do_sample=False,
                use_cache=True,
                eos_token_id=stops,
            )
        alone = out[0, len(prompt) :].tolist()
        assert found.ids == (alone[:-1] if alone[-1] in stops else alone)


@pytest.mark.thin(6)
def test_rows_that_end_leave_the_batch_and_take_their_states_with_them(
    opened: Opened, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited = greedy(opened, prompts, max_new_tokens=LONGEST)
    monkeypatch.setattr(opened.prompts, "stop_ids", frozenset(each.ids[3] for each in unlimited[:3]))
    together = greedy(opened, prompts, max_new_tokens=LONGEST)
    assert {len(each.ids) for each in together} != {LONGEST}
    assert together == greedy(opened, prompts, max_new_tokens=LONGEST, batch_tokens=1)


@pytest.mark.thin(6)
def test_candidates_of_unlike_lengths_have_the_probabilities_that_they_have_alone(
    opened: Opened, prompts: list[list[int]]
) -> None:
    """The states of all prompts, padded on the left, are continued by ends that are padded on the right."""
    ends = [[11, 12, 13, 14], [15], [16, 17]]
    rows = [Branches(prefix=prompt, start=len(prompt), ends=ends) for prompt in prompts]
    together = branch_log_probabilities(opened, rows)
    for row, found in zip(rows, together, strict=True):
        for end, value in zip(ends, found, strict=True):
            ids = torch.tensor([[*row.prefix, *end]])
            with opened.computing():
                logits = opened.model(input_ids=ids, use_cache=False).logits[0, len(row.prefix) - 1 : -1]
            alone = logits.float().log_softmax(-1).gather(-1, torch.tensor(end)[:, None]).sum()
            assert value == pytest.approx(float(alone), abs=2e-3)
