"""Graphs give what the ordinary way gives, read nothing but their static buffers, and give up aloud.

A card is not at hand: `again` stands in for a CUDA graph. Like one it repeats the captured step on the captured
buffers, and like one it sees nothing else of a new batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of
from whole_runs import Silent

from loradock.training.backends.fast import graphs
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.graphs import Graphs, Step
from loradock.training.backends.fast.inputs import flat_inputs
from loradock.training.backends.fast.model import FastModel
from loradock.training.events import Decided

pytestmark = pytest.mark.thin(1)


def again(step: Step) -> tuple[Callable[[], None], torch.Tensor]:
    """Stands in for a capture: nothing runs until it is repeated."""
    loss = torch.zeros(())

    def run() -> None:
        loss.copy_(step())

    return run, loss


@pytest.fixture(scope="module")
def model_and_batches(
    tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path
) -> tuple[FastModel, list[FlatBatch]]:
    """Three batches of one shape, whose tokens, targets, supervised positions and masks of dropout differ."""
    settings = ("engine=fast", "train.micro_batch=4", "lora.dropout=0.3")
    job = job_of(tmp_path_factory.mktemp("graphs"), *settings, model=llama, data=rows)
    model, _ = build(job)
    shape = {"pad_token_id": 0, "longest": 64, "multiple": 64, "documents_multiple": 8, "has_dropout": True}
    first = flat_inputs(job.steps[0].micro_batches[0], **shape)[0].masked_by(1)
    batches = [first]
    for shift in (1, 2):
        rolled = {name: getattr(first, name).roll(shift) for name in ("rows", "slots", "weights")}
        rolled["weights"][shift + 3] = 0.0
        ids = (first.ids + shift) % job.plan.model.vocabulary
        batches.append(replace(first, ids=ids, targets=first.targets.flip(0), **rolled).masked_by(shift))
    return model, batches


def computed(model: FastModel, call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    model.adapters.gradient.zero_()
    loss = float(call())
    return loss, model.adapters.gradient.clone()


def test_a_replay_gives_the_loss_and_gradient_of_its_own_batch(
    model_and_batches: tuple[FastModel, list[FlatBatch]],
) -> None:
    model, (first, second, third) = model_and_batches
    failures: list[str] = []
    graphed = Graphs(model, capture=again, on_failure=failures.append)
    for batch in (first, second, third, first):
        expected = computed(model, lambda batch=batch: model.loss_and_gradients(batch, scale=0.25))
        found = computed(model, lambda batch=batch: graphed.loss_and_gradients(batch, scale=0.25))
        assert found[0] == pytest.approx(expected[0], rel=1e-6)
        torch.testing.assert_close(found[1], expected[1])
    assert len(graphed.graphs) == 1
    assert not failures


@pytest.mark.parametrize("stale", ["ids", "targets", "weights", "rows", "keys"])
def test_a_buffer_that_is_not_filled_is_seen(
    stale: str, model_and_batches: tuple[FastModel, list[FlatBatch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the buffer stale the replay of another batch is wrong: the test above fails for each of them."""
    model, (first, second, _) = model_and_batches
    graphed = Graphs(model, capture=again, on_failure=lambda _: None)
    for _ in range(2):
        graphed.loss_and_gradients(first, scale=1.0)
    real = graphs.fill

    def fill(inputs: FlatBatch, batch: FlatBatch, *, scale: float) -> None:
        real(inputs, replace(batch, **{stale: getattr(inputs, stale)}), scale=scale)

    monkeypatch.setattr(graphs, "fill", fill)
    expected = computed(model, lambda: model.loss_and_gradients(second, scale=1.0))
    found = computed(model, lambda: graphed.loss_and_gradients(second, scale=1.0))
    assert not torch.allclose(found[1], expected[1])


def refused(step: Step) -> Any:
    raise RuntimeError("operation not permitted when stream is capturing\nmore of it")


def wrong(step: Step) -> Any:
    run, loss = again(step)

    def run_twice() -> None:
        run()
        run()

    return run_twice, loss


@pytest.mark.parametrize(("capture", "said"), [(refused, "not permitted"), (wrong, "differs")])
def test_a_capture_that_fails_or_computes_something_else_is_told_and_the_run_goes_on(
    capture: graphs.Capture, said: str, model_and_batches: tuple[FastModel, list[FlatBatch]]
) -> None:
    model, (first, *_) = model_and_batches
    failures: list[str] = []
    graphed = Graphs(model, capture=capture, on_failure=failures.append)
    expected = computed(model, lambda: model.loss_and_gradients(first, scale=1.0))
    for _ in range(4):
        found = computed(model, lambda: graphed.loss_and_gradients(first, scale=1.0))
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])
    assert len(failures) == 1
    assert said in failures[0]
    assert "\n" not in failures[0]


def test_where_launches_follow_the_documents_there_are_no_graphs_and_the_run_says_so(
    model_and_batches: tuple[FastModel, list[FlatBatch]],
) -> None:
    view = Silent()
    assert graphs.graphs_of(model_and_batches[0], view.event) is None
    (event,) = view.events
    assert isinstance(event, Decided)
    assert "follow the documents" in event.decisions[0].why
