"""CUDA graphs are on where the host is expected to be slower than the GPU, and off with the reason elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from facts.recorded import config, data, decision, machine, models, planned

from loradock.facts import Facts
from loradock.plan.context import Decision

SHORT = data(mean=40, longest=128, limit=128)


def decided(
    gpu: str | None = "h200", *, of: str = "tinyllama-1.1b", facts: Facts | None = None, **train: Any
) -> Decision:
    asked = config(engine="fast", train={"global_batch": 64, **train})
    plan = planned(facts=facts or machine(gpu), model=models()[of], data=SHORT, config=asked)
    return decision(plan, "cuda_graphs")


def test_small_micro_batches_on_a_fast_gpu_are_replayed() -> None:
    found = decided(micro_batch=1)
    assert found.value is True
    assert "the host" in found.why
    assert "the GPU" in found.why


def test_thousands_of_tokens_a_pass_keep_any_gpu_longer_than_the_host() -> None:
    wide = config(engine="fast", train={"global_batch": 64})
    for gpu, of in (("h200", "mistral-7b"), ("a10", "mistral-7b"), ("l4", "tinyllama-1.1b")):
        found = decision(planned(facts=machine(gpu), model=models()[of], data=data(), config=wide), "cuda_graphs")
        assert found.value is False, (gpu, of)
        assert "launches keep ahead" in found.why


def test_the_same_passes_are_replayed_on_a_fast_gpu_and_not_on_a_slow_one() -> None:
    assert decided("h200", micro_batch=4).value is True
    assert decided("t4", micro_batch=4).value is False


def test_without_a_kernel_for_all_documents_there_is_nothing_to_replay() -> None:
    assert "document by document" in decided("t4", micro_batch=1).why


def test_buffers_of_their_own_have_to_fit() -> None:
    plan = planned(
        facts=machine("h200"),
        model=models()["tinyllama-1.1b"],
        data=SHORT,
        config=config(engine="fast", train={"global_batch": 64, "micro_batch": 1}),
    )
    whole = machine("h200")
    tight = replace(whole.gpu, memory_bytes=int((plan.memory_bytes["total"] + (32 << 20)) / 0.9))
    found = decided(facts=replace(whole, gpus=(tight,)), micro_batch=1, checkpointing=False)
    assert found.value is False
    assert "their own buffers" in found.why


def test_what_was_asked_for_is_done_with_dropout_too() -> None:
    assert decided(cuda_graphs=True).value is True
    assert decided(micro_batch=1, cuda_graphs=False).value is False
    asked = config(engine="fast", lora={"dropout": 0.1}, train={"cuda_graphs": True})
    assert planned(facts=machine("h200"), model=models()["tinyllama-1.1b"], data=SHORT, config=asked).cuda_graphs.value
