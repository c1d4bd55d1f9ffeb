"""Whole runs by preferences: continued to the bit, by two processes, and from an adapter that is their reference."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import faults.pairs
import pytest
from faults.forking import Forking
from jobs import job_of
from proven import unchecked
from safetensors.torch import load_file
from tiny import copy_tree
from whole_runs import adapter_bytes, losses, train

from loradock.commands.run_options import Ask
from loradock.errors import ConfigError, InputMissing, ModelError, NoCheckpoint
from loradock.training import continued
from loradock.training.recovery import halved
from loradock.training.run import Result

pytestmark = pytest.mark.thin(1)

RUN = (
    *("train.max_steps=6", "train.global_batch=4", "train.micro_batch=4", "train.workers=0", "train.schedule=constant"),
    *("lora.rank=4", "lora.dropout=0.1", "train.learning_rate=1e-2", "train.warmup=0", "data.max_length=64"),
)
PREFERRING = (*RUN, "objective=preference", "checkpoints.every=2", "checkpoints.keep=9")
ANSWERING = (*RUN, "train.max_steps=2")


def write_preferences(path: Path, *, rows: int = 24) -> Path:
    lines = [
        {"question": f"{number} stones {number % 5}", "chosen": "lamp stone", "rejected": "cat " * (1 + number % 3)}
        for number in range(rows)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_preferences(tmp_path_factory.mktemp("pairs") / "pairs.jsonl")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Result:
    """A supervised run, whose adapter others begin with."""
    return train(tmp_path_factory.mktemp("sft") / "sft", *ANSWERING, model=llama, data=rows)


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_run_that_begins_with_an_adapter_has_it_as_its_reference_and_continues_to_the_bit(
    engine: str, tmp_path: Path, llama: Path, pairs: Path, begun: Result
) -> None:
    settings = (*PREFERRING, f"engine={engine}", f"lora.adapter={begun.directory}", "data.validation=0.25")
    settings += ("evaluation.every=3",)
    whole = train(tmp_path / "whole", *settings, model=llama, data=pairs)
    judged = [line for line in whole.evaluations if line["kind"] == "eval"]
    assert judged[-1]["preference_accuracy"] > 0.5
    assert judged[-1]["reward_margin"] > judged[0]["reward_margin"]
    assert whole.record["data"]["preference_pairs"] == 18
    copy = copy_tree(whole.directory, tmp_path / "copy")
    for step in (4, 6):
        shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}")
    shutil.rmtree(copy / "adapter")
    again = train(copy, *settings, model=llama, data=pairs)
    assert again.record["resumed_from"] == "checkpoint-2"
    assert losses(again) == losses(whole)
    assert adapter_bytes(again) == adapter_bytes(whole)


KILLED = """
import os, signal, time
from contextlib import contextmanager
from pathlib import Path
from loradock.training.backends.{module} import {name} as Engine
reference_model, passes = Engine.reference_model, []
@contextmanager
def killed(self):
    with reference_model(self):
        passes.append(1)
        while len(passes) == 4 and not Path("killed/checkpoints/checkpoint-2").exists():
            time.sleep(0.01)
        if len(passes) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        yield
Engine.reference_model = killed
"""
"""In the reference's pass of the fourth step, while the adapter that is trained is put aside."""

KILLED_LATER = """
import os, signal, time
from pathlib import Path
from loradock.training.objectives.kept_reference import StepReference
values_of, known = StepReference.of, []
def killed(self, places, compute):
    known.extend([1] * (self.known is not None))
    while len(known) == 2 and not Path("killed/checkpoints/checkpoint-6").exists():
        time.sleep(0.01)
    if len(known) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return values_of(self, places, compute)
StepReference.of = killed
"""
"""In the second step of the second epoch, whose values of the reference are known."""


@pytest.mark.thin(6)
@pytest.mark.parametrize(("module", "name"), [("fast.backend", "FastBackend"), ("peft.backend", "PeftBackend")])
def test_a_run_that_is_killed_in_the_references_pass_ends_with_the_undisturbed_bits(
    module: str, name: str, tmp_path: Path, llama: Path, pairs: Path, begun: Result, forking: Forking
) -> None:
    settings = (*PREFERRING, f"engine={module.partition('.')[0]}", "train.micro_batch=8", "logging.every=1")
    settings += (f"lora.adapter={begun.directory}", "train.max_steps=9")
    words = [word for setting in settings for word in ("--set", setting)]
    inputs = ("--model", str(llama), "--data", str(pairs), *words, unchecked("the same run, three times"))
    whole = forking.run(tmp_path, "train", *inputs, "--output", "whole")
    assert whole.returncode == 0, whole.stderr
    code = KILLED.replace("{module}", module).replace("{name}", name)
    cut = forking.start(tmp_path, "train", *inputs, "--output", "killed", code=code)
    assert cut.finish() == -signal.SIGKILL, cut.text()
    cut = forking.start(tmp_path, "train", *inputs, "--output", "killed", code=KILLED_LATER)
    assert cut.finish() == -signal.SIGKILL, cut.text()
    assert "continuing from checkpoint-2" in cut.text()
    again = forking.run(tmp_path, "train", *inputs, "--output", "killed")
    assert again.returncode == 0, again.stderr
    record = json.loads((tmp_path / "killed" / "run.json").read_text("utf-8"))
    assert record["resumed_from"] == "checkpoint-6"
    adapters = [tmp_path / run / "adapter" / "adapter_model.safetensors" for run in ("whole", "killed")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_nothing_is_gained_before_the_first_step_whatever_the_adapter(
    engine: str, tmp_path: Path, llama: Path, pairs: Path, begun: Result
) -> None:
    """A reference that is the base instead of the adapter would be seen: its rewards are not nothing."""
    settings = (*PREFERRING, f"engine={engine}", "lora.dropout=0", "train.max_steps=1")
    right = train(tmp_path / "right", *settings, f"lora.adapter={begun.adapter}", model=llama, data=pairs)
    assert right.metrics[0]["chosen_reward"] == 0
    assert right.metrics[0]["reward_margin"] == 0
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr("loradock.training.preparation.keeps_first", lambda _: False)
        wrong = train(tmp_path / "wrong", *settings, f"lora.adapter={begun.adapter}", model=llama, data=pairs)
    assert abs(wrong.metrics[0]["chosen_reward"]) > 1e-3


@pytest.mark.thin(6)
def test_a_run_is_not_continued_with_another_adapter_as_its_reference(
    tmp_path: Path, llama: Path, pairs: Path, begun: Result
) -> None:
    first = copy_tree(begun.adapter, tmp_path / "first")
    settings = (*PREFERRING, "train.max_steps=2", f"lora.adapter={first}")
    train(tmp_path / "run", *settings, model=llama, data=pairs)
    moved = first.rename(tmp_path / "moved")
    weights = moved / "adapter_model.safetensors"
    longer = (*PREFERRING, "train.max_steps=3", f"lora.adapter={moved}")
    allowed = ("train.max_steps",)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(NoCheckpoint, match=r"lora\.adapter\.content"):
        train(tmp_path / "run", *longer, model=llama, data=pairs, allowed=allowed)
    weights.write_bytes(content)
    again = train(tmp_path / "run", *longer, model=llama, data=pairs, allowed=allowed)
    assert again.record["resumed_from"] == "checkpoint-2"


def test_an_adapter_that_nothing_is_added_to_is_exported_with_its_bits(
    tmp_path: Path, llama: Path, rows: Path, begun: Result
) -> None:
    settings = (*ANSWERING, f"lora.adapter={begun.directory}", "train.learning_rate=1e-30")
    assert adapter_bytes(train(tmp_path / "same", *settings, model=llama, data=rows)) == adapter_bytes(begun)


def test_a_first_adapter_and_another_beginning_are_a_problem_and_the_card_names_what_a_run_began_with(
    tmp_path: Path, llama: Path, pairs: Path, begun: Result
) -> None:
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "two", *PREFERRING, "lora.adapter=x", "lora.init=gaussian", model=llama, data=pairs)
    (problem,) = caught.value.problems
    assert problem.what == "lora.adapter gives the first values, and lora.init gaussian others: one of them only"
    made = train(
        tmp_path / "run", *PREFERRING, "train.max_steps=1", f"lora.adapter={begun.adapter}", model=llama, data=pairs
    )
    card = (made.adapter / "README.md").read_text("utf-8")
    assert "dpo, beta 0.1" in card
    assert str(begun.adapter) in card
    assert "48 trained, 0 held out" in card
    assert "| answers |" in card


def test_less_memory_keeps_a_pair_together(tmp_path: Path, llama: Path, pairs: Path) -> None:
    made = job_of(tmp_path, *PREFERRING, "train.micro_batch=3", model=llama, data=pairs)
    assert halved(made) == 2
    smaller = made.with_micro_batch(halved(made))
    assert halved(smaller) == 2
    assert all(len(batch.rows) % 2 == 0 for step in (smaller.steps[0],) for batch in step.micro_batches)


def test_an_adapter_of_another_base_or_other_layers_is_refused_by_name(
    tmp_path: Path, llama: Path, pairs: Path, begun: Result
) -> None:
    settings = (*PREFERRING, f"lora.adapter={begun.directory}")
    with pytest.raises(ModelError, match="is not an adapter of the layers that are trained here"):
        train(tmp_path / "layers", *settings, "lora.targets=[q_proj]", model=llama, data=pairs)
    other = copy_tree(llama, tmp_path / "other")
    (weights,) = other.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(ModelError, match="was trained on another base") as caught:
        train(tmp_path / "base", *settings, model=other, data=pairs)
    assert str(llama) in str(caught.value.hint)
    with pytest.raises(InputMissing, match=r"is neither an adapter .* nor a run"):
        train(tmp_path / "none", *PREFERRING, f"lora.adapter={tmp_path}", model=llama, data=pairs)


def test_the_keys_of_an_adapter_are_taken_over_and_another_value_is_a_problem(llama: Path, begun: Result) -> None:
    def asked(*overrides: str) -> Ask:
        options: dict[str, object] = {"--model": str(llama)}
        return Ask(overrides=(f"lora.adapter={begun.directory}", *overrides), shortcuts=options)

    loaded = asked().load(needs_inputs=False)
    assert (loaded.config.lora.rank, loaded.origins["lora.rank"]) == (4, "lora.adapter")
    assert asked("lora.rank=4").load(needs_inputs=False).config.lora.rank == 4
    with pytest.raises(ConfigError) as caught:
        asked("lora.rank=8").load(needs_inputs=False)
    (problem,) = caught.value.problems
    assert "lora.rank 8: the adapter in lora.adapter has 4" in problem.what
    assert continued.keys_of(str(begun.adapter))["lora.alpha"] == 32


@pytest.mark.thin(6)
def test_two_processes_give_the_losses_and_evaluations_of_one(
    tmp_path: Path, llama: Path, pairs: Path, forking: Forking
) -> None:
    words = ["--model", str(llama), "--data", str(pairs), "--max-steps", "3"]
    settings = (*PREFERRING, "preference.loss=cpo", "data.validation=5", "evaluation.every=3", "lora.dropout=0")
    words += [word for setting in settings for word in ("--set", setting) if "max_steps" not in setting]
    words += ["--set", "logging.every=1", "--set", f"data.cache={tmp_path}"]
    one = forking.run(tmp_path, "train", *words, "--output", "one", unchecked("one process"))
    two = faults.pairs.begun(forking, tmp_path, ["train", *words, "--output", "two", unchecked("two processes")])
    assert one.returncode == 0, one.stderr
    assert two.finish() == [0, 0], two.text()
    found = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text("utf-8").splitlines()]
        for name in ("one", "two")
    ]
    for kind in ("train", "eval"):
        single, double = ([line for line in run if line["kind"] == kind] for run in found)
        for key in ("loss", "preference_accuracy", "reward_margin", "rejected_log_probability"):
            assert [each[key] for each in double] == pytest.approx([each[key] for each in single], rel=1e-4, abs=1e-5)
    tensors = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "two")]
    assert all(tensors[1][name].allclose(tensor, rtol=1e-2, atol=1e-4) for name, tensor in tensors[0].items())
