"""Labelled answers: TRL's unmodified KTOTrainer as the reference, whole runs, and planted faults."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults.pairs
import numpy as np
import pytest
import torch
from faults.forking import Forking
from jobs import job_of, trained
from proven import unchecked
from tiny import BASE, copy_tree
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer
from whole_runs import adapter_bytes, losses, train

from loradock.data.preferences.judgements import Mismatched, MismatchedBatch
from loradock.errors import ConfigError
from loradock.training.events import EvalResult
from loradock.training.job import Job
from objectives.against_trl import OTHER_ORDER, arguments, begun, lines, logged

pytestmark = pytest.mark.thin(1)

SAMPLES, STEPS = 8, 20
WEIGHTS: dict[str, Any] = {"desirable_weight": 1.3, "undesirable_weight": 0.7}
SETTINGS = (
    *("objective=preference", "preference.loss=kto", "preference.beta=0.3", f"train.global_batch={SAMPLES}"),
    *("train.schedule=constant", "train.warmup=0", "train.learning_rate=1e-3", "train.weight_decay=0.1"),
    *("lora.dropout=0", "logging.every=1", *(f"preference.{name}={value}" for name, value in WEIGHTS.items())),
)
REPORTED = {
    "reward_margin": "rewards/margins",
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "chosen_log_probability": "logps/chosen",
    "rejected_log_probability": "logps/rejected",
    "divergence": "kl",
}


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_base(folder: Path, family: str, **settings: int) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **SMALL, **settings)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), "llama")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def row(number: int) -> dict[str, Any]:
    """Answers of different lengths; three of four are desirable."""
    is_desirable = number % 4 != 1
    answer = " lamp" * (1 + number % 3) if is_desirable else " cat, cat" * (1 + number % 2)
    return {"prompt": f"{number} stones and {number % 3}", "completion": answer, "label": is_desirable}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "answers.jsonl", [row(number) for number in range(SAMPLES)])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "many.jsonl", [row(number) for number in range(24)])


def job(folder: Path, *settings: str, model: Path, data: Path) -> Job:
    return begun(folder, *SETTINGS, f"train.max_steps={STEPS}", *settings, model=model, data=data)


def of_trl(made: Job, folder: Path) -> list[dict[str, Any]]:
    """TRL's log lines, given the model and the answers of all steps in their order, rotated by its own rule."""
    asked = KTOConfig(
        **arguments(made, folder, samples=SAMPLES),
        **WEIGHTS,
        train_sampling_strategy="sequential",
        max_length=None,
        beta=made.config.preference.beta,
    )
    of_steps: list[dict[str, Any]] = []
    for index in range(STEPS):
        batch = made.steps[index].batches["judgements"]
        found = []
        for each in batch.micro_batches:
            if not isinstance(each, MismatchedBatch):
                found += [(ids.tolist(), int(mask.argmax())) for ids, mask in each.samples()]
        for place, (ids, first) in enumerate(found):
            other, skipped = found[place - 1]
            of_steps.append(
                {
                    "prompt_ids": ids[:first],
                    "completion_ids": ids[first:],
                    "KL_completion_ids": other[skipped:],
                    "label": bool(batch.relations["desirable"][place]),
                }
            )
    first = [{"prompt": "a", "completion": " b", "label": number > 0} for number in range(SAMPLES)]
    return logged(KTOTrainer, made, asked, first=first, rows=of_steps)


@pytest.mark.thin(6)
def test_twenty_steps_are_those_of_the_unmodified_kto_trainer(base: Path, answers: Path, tmp_path: Path) -> None:
    compare_with_trl(base, answers, tmp_path)


@pytest.mark.full
def test_twenty_steps_in_float32_of_another_family_are_those_too(answers: Path, tmp_path: Path) -> None:
    other = make_base(tmp_path / "base", "mistral", num_key_value_heads=2, sliding_window=12)
    compare_with_trl(other, answers, tmp_path, "model.quantization=none")


def compare_with_trl(base: Path, answers: Path, folder: Path, *more: str) -> None:
    padded = ("engine=peft", "train.packing=false", "train.micro_batch=8")
    theirs = of_trl(job(folder / "theirs", *padded, *more, model=base, data=answers), folder / "trl")
    assert any(each["kl"] > 1e-3 for each in theirs)
    for form, relative in (
        (padded, 2e-6),
        (("engine=peft", "train.packing=true", "train.micro_batch=3"), OTHER_ORDER),
        (("engine=fast", "train.micro_batch=3"), OTHER_ORDER),
    ):
        ours = lines(job(folder / "ours", *form, *more, model=base, data=answers))
        assert ours[-1].loss < ours[0].loss
        assert [each.loss for each in ours] == pytest.approx([each["loss"] for each in theirs], rel=relative)
        norms = [each["grad_norm"] for each in theirs]
        assert [each.grad_norm for each in ours] == pytest.approx(norms, rel=50 * relative)
        for name, key in REPORTED.items():
            expected = [each[key] for each in theirs]
            assert [each.parts[name] for each in ours] == pytest.approx(expected, rel=10 * relative, abs=3e-5), name


@pytest.mark.thin(6)
def test_an_evaluation_does_not_depend_on_micro_batches(base: Path, many: Path, tmp_path: Path) -> None:
    def judged(*settings: str) -> EvalResult:
        made = job(tmp_path, *settings, "data.validation=9", "train.max_steps=10", model=base, data=many)
        return [event for event in trained(made)[1] if isinstance(event, EvalResult)][-1]

    whole = judged("engine=peft", "train.packing=false", "train.micro_batch=8")
    assert 0 < whole.metrics["preference_accuracy"] <= 1
    assert whole.metrics["divergence"] > 0.01  # else no mismatched answer would be missed
    for other in (judged("engine=fast", "train.micro_batch=1"), judged("engine=peft", "train.micro_batch=3")):
        assert other.loss == pytest.approx(whole.loss, rel=OTHER_ORDER)
        for name in (*REPORTED, "preference_accuracy"):
            assert other.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-4, abs=1e-5), name


def test_each_prompt_is_measured_with_an_answer_to_another_one(base: Path, tmp_path: Path) -> None:
    """Two answers of one prompt, as they stand in many files, are not mismatched; a step of one answer has none."""
    rows = [row(0), {**row(1), "prompt": row(0)["prompt"]}, row(2), row(3)]
    made = job_of(tmp_path, *SETTINGS, model=base, data=write(tmp_path / "rows.jsonl", rows))
    (stream,) = made.steps._streams.values()
    part: Any = stream.draw
    of_step = Mismatched.of(part._prepared, part._fitted, np.arange(4))
    assert of_step.partners.tolist() == [3, 3, 1, 2]
    batch = part(np.arange(4), epoch=0)
    mismatched, plain = (
        [
            ids.tolist()
            for each in batch.micro_batches
            if isinstance(each, kind) is expected
            for ids, _ in each.samples()
        ]
        for kind, expected in ((MismatchedBatch, True), (MismatchedBatch, False))
    )
    prompts = of_step.prompts.tolist()
    for place, partner in enumerate(of_step.partners.tolist()):
        assert mismatched[place] == plain[place][: prompts[place]] + plain[partner][prompts[partner] :]
    assert not any(isinstance(each, MismatchedBatch) for each in part(np.arange(1), epoch=0).micro_batches)
    cut = replace(part._fitted, max_length=int(of_step.lengths.max()) - 1)
    assert Mismatched.of(part._prepared, cut, np.arange(4)).lengths.max() == cut.max_length


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_run_with_dropout_continues_to_the_bit(engine: str, base: Path, many: Path, tmp_path: Path) -> None:
    settings = (*SETTINGS, "train.max_steps=6", "checkpoints.every=2", "checkpoints.keep=9", "lora.dropout=0.1")
    settings += (f"engine={engine}", "train.micro_batch=4", "data.validation=0.25", "evaluation.every=3")
    whole = train(tmp_path / "whole", *settings, model=base, data=many)
    assert "divergence" in whole.evaluations[-1]
    copy = copy_tree(whole.directory, tmp_path / "copy")
    for step in (4, 6):
        shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}")
    shutil.rmtree(copy / "adapter")
    again = train(copy, *settings, model=base, data=many)
    assert again.record["resumed_from"] == "checkpoint-2"
    assert losses(again) == losses(whole)
    assert adapter_bytes(again) == adapter_bytes(whole)


@pytest.mark.thin(6)
def test_two_processes_give_the_losses_and_evaluations_of_one(
    base: Path, many: Path, tmp_path: Path, forking: Forking
) -> None:
    words = ["--model", str(base), "--data", str(many), "--max-steps", "5", "--set", f"data.cache={tmp_path}"]
    settings = (*SETTINGS, "data.validation=5", "evaluation.every=3", "train.micro_batch=3", "train.workers=0")
    words += [word for setting in settings for word in ("--set", setting)]
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
        for key in ("loss", "preference_accuracy", "divergence", "reward_margin", "rejected_log_probability"):
            assert [each[key] for each in double] == pytest.approx([each[key] for each in single], rel=1e-4, abs=1e-5)


def test_pairs_are_learned_as_two_labelled_answers(base: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} stones", "chosen": " lamp", "rejected": f" cat {n}"} for n in range(6)]
    made = job_of(tmp_path, *SETTINGS, "data.validation=2", model=base, data=write(tmp_path / "pairs.jsonl", rows))
    batch = made.steps[0].batches["judgements"]
    assert batch.samples == 8
    assert sorted(batch.relations["desirable"].tolist()) == [False] * 4 + [True] * 4
    assert made.evaluation is not None
    assert made.evaluation.turns["judgements"].samples == 4  # both answers of two rows


def test_what_a_step_or_an_evaluation_has_no_answer_for_is_not_reported(base: Path, tmp_path: Path) -> None:
    """One of three steps has the only undesirable answer; a line over several has the mean of those that measured."""
    rows = [{**row(number), "label": number != 1} for number in range(6)]
    file = write(tmp_path / "rows.jsonl", rows)
    held_out = write(tmp_path / "held_out.jsonl", [row(8), row(10)])
    settings = (*SETTINGS, "train.global_batch=2", "train.max_steps=3", f"data.validation={held_out}")
    every = train(tmp_path / "every", *settings, model=base, data=file)
    of_bad = {"rejected_reward", "rejected_log_probability", "reward_margin"}
    assert [len(of_bad & {*line}) for line in every.metrics] == [0, 3, 0]
    assert all({"chosen_reward", "divergence"} <= {*line} for line in every.metrics)
    assert [len(of_bad & {*line}) for line in every.evaluations] == [0]
    (_, *seldom) = train(
        tmp_path / "seldom", *settings, "logging.every=3", "checkpoints.every=3", model=base, data=file
    ).metrics
    _, second, third = every.metrics
    assert [line["rejected_log_probability"] for line in seldom] == [second["rejected_log_probability"]]
    mean = (second["chosen_log_probability"] + third["chosen_log_probability"]) / 2
    assert [line["chosen_log_probability"] for line in seldom] == [pytest.approx(mean)]
    with pytest.raises(ConfigError, match="reward_margin: all held-out answers are desirable"):
        train(tmp_path / "margin", *settings, "checkpoints.metric=reward_margin", model=base, data=file)


def test_one_sample_a_step_and_keys_without_effect(base: Path, answers: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "one", *SETTINGS, "train.global_batch=1", model=base, data=answers)
    (problem,) = caught.value.problems
    assert problem.what == "train.global_batch 1: kto compares samples of a step"
