"""Reward models: TRL's unmodified RewardTrainer as the reference, step by step; what plain libraries read; and runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import faults.pairs
import pytest
import torch
from faults.forking import Forking
from jobs import trained
from peft import PeftModel
from proven import unchecked
from safetensors.torch import load_file
from tiny import BASE, copy_tree
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
)
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer
from whole_runs import adapter_bytes, losses, train
from wrappers import make_wrapper

from loradock.config.load import load
from loradock.distributed.stragglers import Pace
from loradock.errors import ConfigError, ModelError, UsageError
from loradock.model import reward_head
from loradock.model.source import BaseModel
from loradock.training.backends.fast.backend import FastBackend, made_ready
from loradock.training.backends.fast.inputs import scored_inputs
from loradock.training.backends.fast.pooler import ScalarHead, head_of
from loradock.training.events import EvalResult, StepResult
from loradock.training.job import Job, Unsound
from loradock.training.passes import MicroStep
from loradock.training.run import Result
from loradock.use.evaluation import asked
from loradock.use.evaluation.methods import Reward
from loradock.use.inference.opener import open_model
from loradock.use.merge import job as merging
from loradock.use.merge.run import run as merge
from objectives.against_trl import OTHER_ORDER, arguments, begun, lines, logged

pytestmark = pytest.mark.thin(1)

PAIRS, STEPS, RELATIVE = 8, 20, 1e-6
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "mistral": {**SMALL, "num_key_value_heads": 2, "sliding_window": 12},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
SETTINGS = (
    *("objective=reward", f"train.global_batch={PAIRS}", "train.schedule=constant", "train.warmup=0"),
    *("train.learning_rate=1e-3", "train.weight_decay=0.1", "lora.dropout=0", "logging.every=1"),
)
RUN = (
    *("objective=reward", "train.max_steps=6", "train.global_batch=4", "train.micro_batch=4", "train.workers=0"),
    *("train.schedule=constant", "lora.rank=4", "lora.dropout=0.1", "train.learning_rate=1e-2", "train.warmup=0"),
    *("data.max_length=64", "checkpoints.every=2", "checkpoints.keep=9"),
)
MARGINS = (0.5, None, -0.25, 2, 1)
REPORTED = {"preference_accuracy": "accuracy", "reward_margin": "margin"}
PLAIN = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, BitsAndBytesConfig
base, adapter, rows, pad = json.loads(sys.argv[1])
nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                         bnb_4bit_compute_dtype=torch.float32)
more = {"num_labels": 1, "quantization_config": nf4} if adapter else {}
model = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32, **more)
for layer in model.modules():
    if hasattr(layer, "support_avx512bf16_for_cpu"):
        layer.support_avx512bf16_for_cpu = False  # else some CPUs compute in bfloat16
if adapter:
    model.config.pad_token_id = pad
    model = PeftModel.from_pretrained(model, adapter)
with torch.no_grad():
    print(json.dumps([float(model.eval()(torch.tensor([row])).logits) for row in rows]))
"""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, vocab_size=len(tokenizer), **shape)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in SHAPES}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of different lengths, so that the places of their ends differ."""
    return written(tmp_path_factory.mktemp("data") / "pairs.jsonl", rows=PAIRS)


def written(file: Path, *, rows: int, has_margins: bool = False) -> Path:
    lines_of = [
        {"question": f"{n} stones and {n % 3}", "chosen": "lamp " * (1 + n % 4), "rejected": "cat, cat " * (1 + n % 2)}
        | ({"margin": MARGINS[n % len(MARGINS)]} if has_margins else {})
        for n in range(rows)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines_of), "utf-8")
    return file


def job(folder: Path, *settings: str, model: Path, data: Path) -> Job:
    return begun(folder, *SETTINGS, f"train.max_steps={STEPS}", *settings, model=model, data=data)


def of_trl(made: Job, folder: Path, *, base: Path, center: float, has_margins: bool = False) -> Any:
    """TRL's log lines: its trainer has the class that transformers reads, with the job's adapter and head as saved."""
    made.model.save_pretrained(folder / "adapter")
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    form: dict[str, Any] = {"quantization_config": nf4}
    if made.config.model.quantization == "none":
        form = {"dtype": torch.float32}
    whole = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, **form)
    theirs = PeftModel.from_pretrained(whole, str(folder / "adapter"), is_trainable=True)
    options = RewardConfig(
        **arguments(made, folder, samples=PAIRS), max_length=None, center_rewards_coefficient=center or None
    )
    documents = [ids.tolist() for batch in made.steps[0].micro_batches for ids, _ in batch.samples()]
    rows: list[dict[str, Any]] = [
        {"chosen_ids": documents[2 * n], "rejected_ids": documents[2 * n + 1]} for n in range(PAIRS)
    ]
    if has_margins:
        order = made.steps[0].batches["preferences"].row_ids.tolist()
        margins = [float(MARGINS[number % len(MARGINS)] or 0) for number in order]
        rows = [row | {"margin": margin} for row, margin in zip(rows, margins, strict=True)]
    first = [{"prompt": "a", "chosen": " b", "rejected": " c"}] * PAIRS
    return logged(RewardTrainer, replace(made, model=theirs), options, first=first, rows=rows)


def compare(ours: Sequence[StepResult], theirs: Sequence[dict[str, Any]], *, relative: float) -> None:
    assert [each.loss for each in ours] == pytest.approx([each["loss"] for each in theirs], rel=relative, abs=relative)
    norms = [each["grad_norm"] for each in theirs]
    assert [each.grad_norm for each in ours] == pytest.approx(norms, rel=50 * relative)
    for name, key in REPORTED.items():
        expected = [each[key] for each in theirs]
        assert [each.parts[name] for each in ours] == pytest.approx(expected, rel=10 * relative, abs=2e-5), name
    means = [(each.parts["chosen_reward"] + each.parts["rejected_reward"]) / 2 for each in ours]
    assert means == pytest.approx([each["mean_reward"] for each in theirs], rel=10 * relative, abs=2e-5)


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("shape", "center", "has_margins", "quantization"),
    [
        ("llama", 0.0, False, "nf4"),
        ("llama", 0.01, True, "nf4"),
        ("gpt2", 0.01, False, "nf4"),
        pytest.param("mistral", 0.01, True, "none", marks=pytest.mark.full),
    ],
)
def test_twenty_steps_are_those_of_the_unmodified_reward_trainer(
    shape: str, center: float, has_margins: bool, quantization: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    pairs = written(tmp_path / "pairs.jsonl", rows=PAIRS, has_margins=has_margins)
    common = (f"reward.center={center}", f"model.quantization={quantization}")
    whole = (*common, "train.micro_batch=16", "engine=peft")
    ours = lines(job(tmp_path / "ours", *whole, model=bases[shape], data=pairs))
    made = job(tmp_path / "theirs", *whole, model=bases[shape], data=pairs)
    theirs = of_trl(made, tmp_path / "trl", base=bases[shape], center=center, has_margins=has_margins)
    assert ours[-1].loss < 0.5 * ours[0].loss
    compare(ours, theirs, relative=2 * RELATIVE)
    small = (*common, "train.micro_batch=3", "engine=peft")
    compare(lines(job(tmp_path / "small", *small, model=bases[shape], data=pairs)), theirs, relative=OTHER_ORDER)
    for micro_batch in (4, 2) if shape != "gpt2" else ():
        fast = (*common, f"train.micro_batch={micro_batch}", "engine=fast")
        packed = lines(job(tmp_path / f"fast-{micro_batch}", *fast, model=bases[shape], data=pairs))
        compare(packed, theirs, relative=OTHER_ORDER)


def test_a_score_read_from_another_place_or_a_head_that_stays_would_be_seen(
    bases: dict[str, Path], pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("train.micro_batch=16", "train.max_steps=3", "engine=peft")
    made = job(tmp_path / "theirs", *settings, model=bases["llama"], data=pairs)
    theirs = of_trl(made, tmp_path / "trl", base=bases["llama"], center=0.0)
    compare(lines(job(tmp_path / "right", *settings, model=bases["llama"], data=pairs)), theirs, relative=2 * RELATIVE)
    with monkeypatch.context() as planting:
        planting.setattr(reward_head, "last_place", lambda ids, **_: len(ids) - 2)
        wrong = lines(job(tmp_path / "place", *settings, model=bases["llama"], data=pairs))
    assert abs(wrong[0].loss - theirs[0]["loss"]) > 1e-3
    made = job(tmp_path / "frozen", *settings, model=bases["llama"], data=pairs)
    for name, parameter in made.model.named_parameters():
        if "score" in name:
            parameter.requires_grad_(requires_grad=False)
    assert abs(lines(made)[1].loss - theirs[1]["loss"]) > 1e-4


@pytest.mark.thin(6)
def test_an_unquantised_base_in_bfloat16_comes_out_as_planned_and_its_head_computes_in_float32(
    bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    settings = ("engine=peft", "model.quantization=none", "model.compute_dtype=bfloat16", "train.max_steps=1")
    made = job(tmp_path, *settings, model=bases["llama"], data=pairs)
    vectors = torch.randn(3, SMALL["hidden_size"])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        scores = reward_head.rewards(made.model, vectors)
    weight = head_of(made.model)
    assert weight is not None
    assert torch.equal(scores, vectors @ weight.t())
    trained(made)  # it checks the dtypes after the first step


def scored_by(made: Job, *, shares_prompts: bool, multiple: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Scores by the fast engine, the gradient of their weighted sum, and how many tokens were computed."""
    backend = FastBackend(made)
    backend.prepare()
    backend.begin(made, Pace(torch.device("cpu")), lambda _: None)
    backend.begin_step()
    (micro_batch,) = made.steps[0].micro_batches
    micro_batch = replace(micro_batch, shares_prompts=shares_prompts)
    batch, _ = scored_inputs(micro_batch, **backend.shape | {"multiple": multiple})
    found = backend.embed(batch, at=MicroStep(step=0, index=0, count=1), keeps=True)
    found.backward(torch.linspace(-1, 2, len(micro_batch.rows))[:, None])
    return found.vectors, backend.model.adapters.gradient.clone(), batch.tokens


@pytest.mark.thin(6)
@pytest.mark.parametrize("multiple", [1, 64])
def test_a_prompt_that_is_computed_once_gives_the_scores_and_gradients_of_two_rows(
    multiple: int, bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    found = {}
    for shares in (True, False):
        made = job(tmp_path / str(shares), "engine=fast", "train.micro_batch=16", model=bases["llama"], data=pairs)
        found[shares] = scored_by(made, shares_prompts=shares, multiple=multiple)
    (once, gradient, tokens), (twice, expected, all_tokens) = found[True], found[False]
    assert tokens < 0.85 * all_tokens
    torch.testing.assert_close(once, twice, rtol=RELATIVE, atol=1e-6)
    assert (gradient - expected).norm() < 2 * RELATIVE * expected.norm()


def test_a_head_whose_gradient_is_lost_is_refused_before_the_first_step(
    bases: dict[str, Path], pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(tmp_path, "engine=fast", model=bases["llama"], data=pairs)
    _, found = made_ready(made)
    assert "self-check of scores" in [each.name for each in found]
    weight = head_of(made.model)
    assert weight is not None
    monkeypatch.setattr(ScalarHead, "backward", lambda _, gradient, __: gradient @ weight.detach())
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        made_ready(job(tmp_path / "again", "engine=fast", model=bases["llama"], data=pairs))


@pytest.mark.thin(6)
def test_no_size_of_micro_batches_changes_a_step_or_an_evaluation(
    bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    found: list[list[float]] = []
    for size in (2, 10):
        words = (f"train.micro_batch={size}", "data.validation=3", "train.max_steps=3", "evaluation.every=3")
        made = job(tmp_path / str(size), *words, "train.global_batch=5", model=bases["llama"], data=pairs)
        _, events = trained(made)
        steps = [(each.loss, each.grad_norm) for each in events if isinstance(each, StepResult)]
        (judged,) = [each for each in events if isinstance(each, EvalResult)]
        found.append([*[number for pair in steps for number in pair], judged.loss, *judged.metrics.values()])
    assert found[0] == pytest.approx(found[1], rel=OTHER_ORDER, abs=1e-6)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> tuple[Result, Path]:
    """A run with held-out pairs in a file of their own, and that file."""
    folder = tmp_path_factory.mktemp("reward")
    data, held = written(folder / "pairs.jsonl", rows=24, has_margins=True), written(folder / "held.jsonl", rows=6)
    settings = (*RUN, f"data.validation={held}", "evaluation.every=3", "reward.center=0.01")
    return train(folder / "run", *settings, model=llama, data=data), held


def scored(result: Result, held: Path) -> tuple[Any, list[Any]]:
    """The opened run, and what came of each held-out pair."""
    opened = open_model(result.directory, dtype="float32", device="cpu", may_score=True)
    (wanted,) = asked.read([], folder=None, data=held, options=asked.Options(metric="choice"))
    method = wanted.method(opened)
    assert isinstance(method, Reward)
    return opened, method.run([method.prepare(item) for item in wanted.items.items])


def plainly(base: Path, adapter: Path | None, rows: list[list[int]], pad: int | None) -> list[float]:
    """What plain transformers and PEFT say of token ids, in a process of their own."""
    given = json.dumps([str(base), adapter and str(adapter), rows, pad])
    result = subprocess.run([sys.executable, "-c", PLAIN, given], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@pytest.mark.usefixtures("forked_proof")
@pytest.mark.thin(4)
def test_training_evaluate_plain_libraries_and_the_merged_model_say_the_same_of_each_answer(
    made: tuple[Result, Path], llama: Path, tmp_path: Path
) -> None:
    result, held = made
    judged = [line for line in result.evaluations if line["kind"] == "eval"][-1]
    opened, outcomes = scored(result, held)
    ours = [reward for each in outcomes for reward in each.rewards]
    assert sum(ours[0::2]) / 6 == pytest.approx(judged["chosen_reward"], rel=1e-5)
    assert sum(ours[1::2]) / 6 == pytest.approx(judged["rejected_reward"], rel=1e-5)
    assert sum(each.score for each in outcomes) / 6 == judged["preference_accuracy"]
    (wanted,) = asked.read([], folder=None, data=held, options=asked.Options(metric="choice"))
    rows = [opened.prompts.row(item.saying(text))[0] for item in wanted.items.items for text in item.texts]
    pad = opened.tokenizer.pad_token_id
    assert plainly(llama, result.adapter, rows, pad) == pytest.approx(ours, rel=1e-5)
    settings = json.loads((result.adapter / "adapter_config.json").read_text("utf-8"))
    assert settings["task_type"] == "SEQ_CLS"
    card = (result.adapter / "README.md").read_text("utf-8")
    assert "AutoModelForSequenceClassification.from_pretrained" in card
    assert "pipeline_tag: text-classification" in card
    with merging.prepared(result.directory, merging.Asked(dtype="f32")) as merged_job:
        _, proven = merge(merged_job, tmp_path / "merged", is_full=True)
    assert proven["verified"]["score_max"] < 1e-5
    assert plainly(tmp_path / "merged", None, rows, None) == pytest.approx(ours, rel=1e-5)
    assert not (tmp_path / "merged" / "generation_config.json").exists()


def test_its_card_scores_on_the_positions_of_training(tmp_path: Path, llama: Path) -> None:
    data = written(tmp_path / "pairs.jsonl", rows=8)
    settings = (*RUN, "model.rope_scaling=yarn", "model.rope_factor=4")
    result = train(tmp_path / "run", *settings, model=llama, data=data)
    card = (result.adapter / "README.md").read_text("utf-8")
    code = card[card.index("import torch") : card.rindex("print(")].replace('"."', repr(str(result.adapter)))

    def scored_by(text: str) -> tuple[float, list[list[int]]]:
        names: dict[str, Any] = {}
        exec(text, names)
        for layer in names["model"].modules():
            if hasattr(layer, "support_avx512bf16_for_cpu"):
                layer.support_avx512bf16_for_cpu = False  # else some CPUs compute in bfloat16
        return float(names["model"](**names["answer"]).logits), names["answer"]["input_ids"].tolist()

    score, rows = scored_by(code)
    opened = open_model(result.directory, dtype="float32", device="cpu", may_score=True)
    (ours,) = Reward(opened)._scores(rows)  # pyright: ignore[reportPrivateUsage]
    assert score == pytest.approx(ours, rel=1e-5)
    unscaled, _ = scored_by(code.replace(", config=config", ", num_labels=1"))
    assert unscaled != pytest.approx(ours, rel=1e-3)


def test_a_reward_model_writes_no_answers_and_its_base_scores_none(made: tuple[Result, Path]) -> None:
    result, _ = made
    with pytest.raises(UsageError, match="is a reward model: it scores answers") as refused:
        open_model(result.directory)
    assert str(refused.value.hint).startswith("loradock evaluate ")


def test_a_run_is_continued_to_the_bit(made: tuple[Result, Path], llama: Path, tmp_path: Path) -> None:
    whole, held = made
    copy = copy_tree(whole.directory, tmp_path / "copy")
    for step in (4, 6):
        shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}")
    shutil.rmtree(copy / "adapter")
    settings = (*RUN, f"data.validation={held}", "evaluation.every=3", "reward.center=0.01")
    again = train(copy, *settings, model=llama, data=held.with_name("pairs.jsonl"))
    assert again.record["resumed_from"] == "checkpoint-2"
    assert losses(again) == losses(whole)
    assert adapter_bytes(again) == adapter_bytes(whole)


@pytest.mark.parametrize(
    "setting", ["lora.adapter=x", "lora.modules_to_save=[lm_head]", "tokenizer.add_tokens=[zz]", "lora.init=pissa"]
)
def test_what_a_reward_model_has_no_place_for_is_refused_by_name(setting: str, llama: Path, tmp_path: Path) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError) as refused:
        train(tmp_path / "run", *RUN, setting, model=llama, data=written(tmp_path / "pairs.jsonl", rows=4))
    whats = [problem.what for problem in refused.value.problems]
    assert any(what.startswith(f"{key} cannot be used with objective reward") for what in whats), whats


def test_a_base_that_no_reward_model_can_be_read_of_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    granite = AutoConfig.for_model("granite", vocab_size=100, **SMALL)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(granite)
    config = load(None, overrides=["objective=reward"], needs_inputs=False).config
    base = BaseModel(
        name="b", directory=tmp_path, revision=None, config=granite, trust_remote_code=False, weight_files=()
    )
    with pytest.raises(ModelError, match="transformers has no sequence classification of granite"):
        reward_head.check(config, base, model)
    wrapper = make_wrapper(tmp_path / "wrapper", "qwen3_5")
    with pytest.raises(ModelError, match="also reads images, audio or video"):
        train(tmp_path / "run", *RUN, model=wrapper, data=written(tmp_path / "pairs.jsonl", rows=4))


def test_two_processes_give_the_losses_and_evaluations_of_one(tmp_path: Path, llama: Path, forking: Forking) -> None:
    pairs = written(tmp_path / "pairs.jsonl", rows=24)
    words = ["--model", str(llama), "--data", str(pairs), "--max-steps", "3"]
    settings = (*RUN, "data.validation=5", "evaluation.every=3", "lora.dropout=0", "logging.every=1")
    words += [word for setting in settings for word in ("--set", setting) if "max_steps" not in setting]
    words += ["--set", f"data.cache={tmp_path}"]
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
        for key in ("loss", "preference_accuracy", "reward_margin", "rejected_reward"):
            assert [each[key] for each in double] == pytest.approx([each[key] for each in single], rel=1e-4, abs=1e-5)
    tensors = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "two")]
    assert all(tensors[1][name].allclose(tensor, rtol=1e-2, atol=1e-4) for name, tensor in tensors[0].items())
