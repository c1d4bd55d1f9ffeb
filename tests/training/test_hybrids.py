"""Models with recurrent layers, one of each kind: trained by the default command, exactly, and resumed.

Those that the fast engine serves are packed, the others padded.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hybrids import KINDS, OFTEN, make_hybrid
from jobs import assert_close, gradients, job_of, loop_of
from tiny import copy_tree
from whole_runs import Silent, adapter_bytes, losses, train

from loradock.catalog.families import FAMILIES
from loradock.errors import ConfigError
from loradock.training.passes import MicroStep

RUN = ("train.max_steps=4", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2", "checkpoints.every=2")
SERVED = {family.model_type for family in FAMILIES if family.is_recurrent}
EACH = [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
# PEFT looks for experts in every Qwen3-Next, and this one has none.
pytestmark = pytest.mark.filterwarnings("ignore:target_parameters=:RuntimeWarning")


@pytest.fixture(scope="module", params=EACH)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind."""
    return make_hybrid(tmp_path_factory.mktemp(request.param) / request.param, request.param)


@pytest.mark.thin(6)
def test_it_is_trained_and_a_resume_and_a_recomputation_give_the_same_bits(
    hybrid: Path, rows: Path, tmp_path: Path
) -> None:
    view = Silent()
    whole = train(tmp_path / "whole", *RUN, model=hybrid, data=rows, view=view)
    assert losses(whole)[-1] < losses(whole)[0]
    assert whole.record["coverage"]["missed_weights"] <= 0.01 * whole.record["coverage"]["all_weights"]
    (plan,) = view.plans
    is_served = hybrid.name in SERVED
    assert (plan.engine.value, plan.packing.value) == (("fast", True) if is_served else ("peft", False))
    assert is_served or "carry their state from one document into the next" in plan.packing.why
    cut = copy_tree(whole.directory, tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "checkpoint-4")
    shutil.rmtree(cut / "adapter")
    again = train(cut, *RUN, model=hybrid, data=rows)
    assert again.record["resumed_from"] == "checkpoint-2"
    recomputed = train(tmp_path / "recomputed", *RUN, "train.checkpointing=true", model=hybrid, data=rows)
    for other in (again, recomputed):
        assert losses(other) == losses(whole)
        assert adapter_bytes(other) == adapter_bytes(whole)


@pytest.mark.thin(6)
def test_padded_rows_have_the_gradients_that_they_have_alone(hybrid: Path, rows: Path, tmp_path: Path) -> None:
    found = []
    for size in (8, 1):
        settings = ("engine=peft", f"train.micro_batch={size}", "train.checkpointing=false")
        job = job_of(tmp_path, *settings, model=hybrid, data=rows)
        loop = loop_of(job)
        batches = [loop.backend.tensors(each)[0] for each in job.steps[0].micro_batches]
        assert len(batches) == 8 // size
        at = MicroStep(step=0, index=0, count=len(batches))
        loss = sum(float(loop.backend.forward_backward(each, scale=0.01, at=at)) for each in batches)
        found.append((loss, gradients(job.model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert_close(found[0][1], found[1][1], relative=1e-3, absolute=1e-5)


@pytest.mark.thin(6)
def test_packing_that_was_asked_for_is_refused_with_a_setting_that_trains(tmp_path: Path, rows: Path) -> None:
    model = make_hybrid(tmp_path / "jamba", "jamba")
    with pytest.raises(ConfigError, match=r"train\.packing cannot be used with JambaForCausalLM: its recurrent") as no:
        train(tmp_path / "refused", *RUN, "train.packing=true", model=model, data=rows)
    assert no.value.hint == "--set train.packing=false"
    train(tmp_path / "run", *RUN, "train.packing=false", model=model, data=rows)
