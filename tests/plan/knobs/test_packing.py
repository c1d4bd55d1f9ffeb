"""Packs of a model whose code counts from a pack's start: no longer than they are computed as rows would be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts.recorded import config, data, machine, models, planned

from loradock.errors import ConfigError
from loradock.facts import ModelFacts

WHY = "its attention's scale grows from a pack's start, not a document's, where it has more than 8,191 tokens"
UNEVEN = data(mean=100, longest=1024)


def chunked(limit: int | None = 8191, decoder: str = "OfNoFamily") -> ModelFacts:
    return replace(models()["mistral-7b"], decoder=decoder, pack_limit=limit)


def test_a_pack_is_no_longer_than_the_models_code_computes_as_rows() -> None:
    large = config(train={"global_batch": 1024})
    free, bound = (
        planned(facts=machine("h200"), model=model, data=UNEVEN, config=large) for model in (chunked(None), chunked())
    )
    assert free.packing.value
    assert bound.packing.value
    assert bound.micro_batch.value * UNEVEN.limit_tokens <= 8191 < free.micro_batch.value * UNEVEN.limit_tokens


def test_rows_are_padded_where_a_pack_that_was_asked_for_is_longer() -> None:
    plan = planned(facts=machine("h200"), model=chunked(), data=UNEVEN, config=config(train={"micro_batch": 16}))
    assert (plan.packing.value, plan.packing.why) == (False, WHY)
    long_rows = planned(facts=machine("h200"), model=chunked(1000), data=UNEVEN)
    assert long_rows.packing.value is False
    with pytest.raises(ConfigError, match=r"train\.packing cannot be used with .*more than 1,000 tokens"):
        planned(model=chunked(1000), data=UNEVEN, config=config(train={"packing": True}))


def test_a_pack_of_the_fast_engine_which_counts_by_document_has_any_length() -> None:
    model = chunked(decoder="Llama4TextModel")
    plan = planned(facts=machine("h200"), model=model, data=UNEVEN, config=config(train={"micro_batch": 16}))
    assert (plan.engine.value, plan.packing.value) == ("fast", True)
