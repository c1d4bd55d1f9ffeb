"""Preference tuning: TRL's unmodified trainers as the reference, step by step, and planted faults."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mixtures
import pytest
import torch
from faults.forking import Forking
from jobs import job_of, trained
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from loradock.data.steps import Step
from loradock.distributed.stragglers import Pace
from loradock.model.adapters import trainable
from loradock.training.backends import backend_named
from loradock.training.backends.fast import batch as batches
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.backends.fast.batch import Tokens, flatten
from loradock.training.events import EvalResult, StepResult
from loradock.training.job import Job
from loradock.training.objectives.preference import Preference
from loradock.training.passes import MicroStep
from objectives.against_trl import OTHER_ORDER, arguments, begun, lines, logged

pytestmark = pytest.mark.thin(1)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TRL calls them experimental
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

PAIRS, STEPS = 8, 20
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "mistral with a window": {**SMALL, "num_key_value_heads": 2, "sliding_window": 12},
    "gemma2 with soft caps": {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 12},
    "qwen3_5_text, recurrent": {
        **SMALL,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
SETTINGS = (
    "objective=preference",
    f"train.global_batch={PAIRS}",
    "train.schedule=constant",
    "train.warmup=0",
    "train.learning_rate=1e-3",
    "train.weight_decay=0.1",
    "lora.dropout=0",
    "logging.every=1",
)
RELATIVE = 1e-6
AT = MicroStep(step=0, index=0, count=1)
OF_TRL = {"dpo": "sigmoid", "sppo": "sppo_hard"}
REPORTED = {
    "preference_accuracy": "rewards/accuracies",
    "reward_margin": "rewards/margins",
    "chosen_reward": "rewards/chosen",
    "rejected_reward": "rewards/rejected",
    "chosen_log_probability": "logps/chosen",
    "rejected_log_probability": "logps/rejected",
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bases")
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        kind = name.partition(" ")[0].rstrip(",")
        more = kind.startswith("qwen3_5")  # its tokenizer adds a token of its own
        config = AutoConfig.for_model(kind, vocab_size=len(tokenizer) + more, **shape)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in SHAPES} | {LATENTS: mixtures.make(folder / LATENTS, "deepseek_v2")}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of different lengths, so that sums and means over tokens differ."""
    file = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {
            "prompt": f"{number} stones and {number % 3}",
            "chosen": " lamp" * (1 + number % 4),
            "rejected": " cat, cat" * 2,
        }
        for number in range(PAIRS)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return file


def job(folder: Path, *settings: str, model: Path, data: Path) -> Job:
    return begun(folder, *SETTINGS, f"train.max_steps={STEPS}", *settings, model=model, data=data)


def documents(step: Step) -> list[tuple[list[int], int]]:
    """Ids and length of the prompt of each document of a step, chosen and rejected in turn."""
    found = []
    for batch in step.micro_batches:
        for ids, mask in batch.samples():
            found.append((ids.tolist(), int(mask.argmax())))
    return found


def of_trl(
    made: Job, folder: Path, *, loss: str | list[str], trainer: Any = DPOTrainer, config: Any = DPOConfig, **more: Any
) -> Any:
    """TRL's log lines, given the model and the pairs of the job's first step as one batch, ids as they are."""
    options = {"loss_type": OF_TRL.get(str(loss), loss)} if config is not ORPOConfig else {}
    length = {"max_length": None if config is DPOConfig else 1024}
    asked = config(**arguments(made, folder, samples=PAIRS), **length, **options, **more)
    found = documents(made.steps[0])
    rows = [row(*found[2 * n], *found[2 * n + 1]) for n in range(PAIRS)]
    return logged(trainer, made, asked, first=[{"prompt": "a", "chosen": " b", "rejected": " c"}] * PAIRS, rows=rows)


def row(chosen: list[int], first: int, rejected: list[int], also_first: int) -> dict[str, Any]:
    """One pair as each of the trainers wants it."""
    assert chosen[:first] == rejected[:also_first]
    made: dict[str, Any] = {
        "prompt_ids": chosen[:first],
        "chosen_ids": chosen[first:],
        "rejected_ids": rejected[first:],
        "prompt_input_ids": chosen[:first],
        "prompt_attention_mask": [1] * first,
    }
    for name, ids in (("chosen", chosen), ("rejected", rejected)):
        made |= {f"{name}_input_ids": ids, f"{name}_attention_mask": [1] * len(ids)}
        made[f"{name}_labels"] = [-100] * first + ids[first:]
    return made


def compare(ours: Sequence[StepResult | SimpleNamespace], theirs: Sequence[dict[str, Any]], *, relative: float) -> None:
    assert [each.loss for each in ours] == pytest.approx([each["loss"] for each in theirs], rel=relative, abs=relative)
    norms = [each["grad_norm"] for each in theirs]
    assert [each.grad_norm for each in ours] == pytest.approx(norms, rel=50 * relative)
    for name, key in REPORTED.items():
        if key in theirs[0]:
            expected = [each[key] for each in theirs]
            assert [each.parts[name] for each in ours] == pytest.approx(expected, rel=10 * relative, abs=2e-5), name


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("loss", "more"),
    [
        ("dpo", {}),
        ("ipo", {}),
        ("hinge", {}),
        ("robust", {"label_smoothing": 0.1}),
        ("apo_zero", {}),
        ("apo_down", {}),
        ("sppo", {}),
        ("bco_pair", {}),
    ],
)
def test_twenty_steps_of_each_loss_are_those_of_the_unmodified_dpo_trainer(
    loss: str, more: dict[str, float], bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    settings = (f"preference.loss={loss}", *(f"preference.{name}={value}" for name, value in more.items()))
    padded = (*settings, "engine=peft", "train.packing=false", "train.micro_batch=16")
    ours = lines(job(tmp_path / "ours", *padded, model=bases["llama"], data=pairs))
    theirs = of_trl(
        job(tmp_path / "theirs", *padded, model=bases["llama"], data=pairs), tmp_path / "trl", loss=loss, **more
    )
    assert ours[-1].loss < ours[0].loss
    compare(ours, theirs, relative=3 * RELATIVE if loss == "sppo" else RELATIVE)  # its loss falls from 50 to 1.7
    fast = lines(
        job(tmp_path / "fast", *settings, "engine=fast", "train.micro_batch=2", model=bases["llama"], data=pairs)
    )
    compare(fast, theirs, relative=OTHER_ORDER)


@pytest.mark.thin(6)
def test_twenty_steps_of_a_sum_of_losses_are_those_of_the_unmodified_dpo_trainer(
    bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    """MPO (Wang et al. 2024) with `sft` as the likelihood term, and one more: means over tokens beside sums."""
    settings = ("preference.loss={dpo: 0.8, bco_pair: 0.2, ipo: 0.01}", "preference.likelihood_weight=0.5")
    padded = (*settings, "engine=peft", "train.packing=false", "train.micro_batch=16")
    made = job(tmp_path / "theirs", *padded, model=bases["llama"], data=pairs)
    names = ["sigmoid", "bco_pair", "ipo", "sft"]
    theirs = of_trl(made, tmp_path / "trl", loss=names, loss_weights=[0.8, 0.2, 0.01, 0.5])
    ours = lines(job(tmp_path / "ours", *padded, model=bases["llama"], data=pairs))
    assert ours[-1].loss < ours[0].loss
    compare(ours, theirs, relative=RELATIVE)
    small = (*settings, "engine=fast", "train.micro_batch=2")
    compare(lines(job(tmp_path / "fast", *small, model=bases["llama"], data=pairs)), theirs, relative=OTHER_ORDER)


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    "form", [("train.packing=false", "train.micro_batch=4"), ("train.packing=true", "train.micro_batch=3")]
)
def test_another_architecture_padded_and_packed_in_small_micro_batches(
    form: tuple[str, ...], bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    ours = lines(job(tmp_path / "ours", "engine=peft", *form, model=bases["gpt2"], data=pairs))
    whole = ("engine=peft", "train.packing=false", "train.micro_batch=16")
    theirs = of_trl(job(tmp_path / "theirs", *whole, model=bases["gpt2"], data=pairs), tmp_path / "trl", loss="dpo")
    compare(ours, theirs, relative=OTHER_ORDER)


IN_TWO = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from objectives.trl_ranks import main
main(Path.cwd())
os._exit(0)
"""


@pytest.mark.full
def test_two_processes_are_two_of_the_unmodified_dpo_trainer(
    bases: dict[str, Path], pairs: Path, tmp_path: Path, forking: Forking
) -> None:
    """Each has a half of the pairs; a step is the mean over both."""
    model = bases["llama"]
    found = documents(job(tmp_path / "rows", "engine=peft", model=model, data=pairs).steps[0])
    whole = (*SETTINGS, f"train.max_steps={STEPS}")
    engines = {
        "peft": (*whole, "engine=peft", "train.packing=false", f"train.micro_batch={PAIRS}"),
        "fast": (*whole, "engine=fast", "train.micro_batch=2"),
    }
    rows = [row(*found[2 * n], *found[2 * n + 1]) for n in range(PAIRS)]
    asked = {"model": str(model), "data": str(pairs), "engines": engines, "rows": rows}
    (tmp_path / "asked.json").write_text(json.dumps(asked), "utf-8")
    more = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    code = IN_TWO.format(here=str(Path(__file__).parents[1]))
    ranks = [forking.start(tmp_path, code=code, RANK=str(each), LOCAL_RANK=str(each), **more) for each in (0, 1)]
    assert [each.finish() for each in ranks] == [0, 0], "".join(each.text() for each in ranks)
    made = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert len(made["trl"]) == STEPS
    for engine in engines:
        relative = 3 * RELATIVE if engine == "peft" else OTHER_ORDER
        compare([SimpleNamespace(**line) for line in made[engine]], made["trl"], relative=relative)


@pytest.mark.thin(6)
def test_a_base_in_float32_of_another_family_by_both_engines(
    bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    model = bases["mistral with a window"]
    whole = ("model.quantization=none", "engine=peft", "train.packing=false", "train.micro_batch=16")
    theirs = of_trl(job(tmp_path / "theirs", *whole, model=model, data=pairs), tmp_path / "trl", loss="dpo")
    compare(lines(job(tmp_path / "peft", *whole, model=model, data=pairs)), theirs, relative=RELATIVE)
    for size in (2, 5):
        small = ("model.quantization=none", "engine=fast", f"train.micro_batch={size}")
        fast = lines(job(tmp_path / f"fast-{size}", *small, model=model, data=pairs))
        compare(fast, theirs, relative=OTHER_ORDER)


BASES = (("llama", ()), pytest.param("mistral with a window", ("model.quantization=none",), marks=pytest.mark.full))


@pytest.mark.thin(6)
@pytest.mark.parametrize(("shape", "stored"), BASES)
@pytest.mark.parametrize(
    ("loss", "theirs_is", "settings", "more"),
    [
        ("cpo", "sigmoid", (), {"cpo_alpha": 1.0}),
        (
            "simpo",
            "simpo",
            ("preference.beta=2", "preference.margin=0.5"),
            {"cpo_alpha": 0.0, "simpo_gamma": 0.5, "beta": 2.0},
        ),
    ],
)
def test_losses_without_a_reference_are_those_of_the_unmodified_cpo_trainer(
    loss: str, theirs_is: str, settings: tuple[str, ...], more: dict[str, float], shape: str, stored: tuple[str, ...],
    bases: dict[str, Path], pairs: Path, tmp_path: Path,
) -> None:  # fmt: skip
    words = (f"preference.loss={loss}", *settings, *stored)
    ours = lines(job(tmp_path / "ours", *words, "engine=fast", "train.micro_batch=2", model=bases[shape], data=pairs))
    padded = (*words, "engine=peft", "train.packing=false", "train.micro_batch=16")
    theirs = of_trl(
        job(tmp_path / "theirs", *padded, model=bases[shape], data=pairs),
        tmp_path / "trl", loss=theirs_is, trainer=CPOTrainer, config=CPOConfig, **more,
    )  # fmt: skip
    assert [each.loss for each in ours] == pytest.approx([each["loss"] for each in theirs], rel=OTHER_ORDER)


@pytest.mark.thin(6)
@pytest.mark.parametrize(("shape", "stored"), BASES)
def test_the_odds_ratio_is_that_of_the_unmodified_orpo_trainer(
    shape: str, stored: tuple[str, ...], bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    """Its likelihood term counts the prompt's tokens too; ours, as the paper's, those of the answer."""
    words = ("preference.loss=orpo", "preference.likelihood_weight=0", *stored)
    first = lines(job(tmp_path / "ours", *words, "engine=fast", "train.micro_batch=2", model=bases[shape], data=pairs))[
        0
    ]
    padded = (*words, "engine=peft", "train.packing=false", "train.micro_batch=16")
    theirs = of_trl(
        job(tmp_path / "theirs", *padded, model=bases[shape], data=pairs),
        tmp_path / "trl", loss="orpo", trainer=ORPOTrainer, config=ORPOConfig, beta=0.1,
    )[0]  # fmt: skip
    assert first.loss == pytest.approx(-0.1 * theirs["log_odds_ratio"], rel=OTHER_ORDER)


@pytest.mark.thin(6)
@pytest.mark.parametrize("loss", ["dpo", "orpo"])
def test_no_size_of_micro_batches_changes_a_step_or_an_evaluation(
    loss: str, bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    found = {}
    for size in (2, 3, 10):
        words = (f"preference.loss={loss}", f"train.micro_batch={size}", "data.validation=3", "train.max_steps=3")
        made = job(
            tmp_path / str(size),
            *words,
            "evaluation.every=3",
            "train.global_batch=5",
            "engine=fast",
            model=bases["llama"],
            data=pairs,
        )
        _, events = trained(made)
        steps = [(each.loss, each.grad_norm) for each in events if isinstance(each, StepResult)]
        (judged,) = [each for each in events if isinstance(each, EvalResult)]
        found[size] = [*[number for pair in steps for number in pair], judged.loss, *judged.metrics.values()]
    for size in (2, 3):
        assert found[size] == pytest.approx(found[10], rel=OTHER_ORDER, abs=1e-6)


def test_a_reference_with_the_adapter_would_be_seen(
    bases: dict[str, Path], pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first step the model is its reference, so each reward is nothing but what a fault adds."""
    for engine in ("peft", "fast"):
        words = ("lora.dropout=0", f"engine={engine}", "train.max_steps=2")
        made = job(tmp_path / engine, *words, model=bases["llama"], data=pairs)
        made.model.train()
        first, second = lines(made)
        assert first.parts["chosen_reward"] == 0
        assert first.loss == pytest.approx(0.6931472, abs=1e-6)
        assert second.parts["reward_margin"] > 0
    with monkeypatch.context() as planted:
        planted.setattr(FastBackend, "reference_model", lambda _: torch.enable_grad())
        _, second = lines(
            job(tmp_path / "planted", *words, "preference.keep_reference=false", model=bases["llama"], data=pairs)
        )
        assert second.parts["reward_margin"] == 0, "a reference that moves along: nothing would be measured"


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_reference_draws_no_dropout_and_the_trained_answers_do(
    engine: str, bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    """Of an adapter that is the reference itself, whose dropout would be drawn where it was left on."""
    words = (f"engine={engine}", "lora.dropout=0.3", "train.micro_batch=16")
    made = job_of(tmp_path, *SETTINGS[:-2], "logging.every=1", *words, model=bases["llama"], data=pairs)
    made = replace(made, initial=tuple(each.detach().clone() for each in trainable(made.model)))
    backend = backend_named(made.plan.engine.value)(made)
    backend.prepare()
    backend.begin(made, Pace(torch.device("cpu")), lambda _: None)
    made.model.train()
    (micro_batch,) = made.steps[0].micro_batches
    tensors, _ = backend.tensors(micro_batch)
    backend.begin_step()
    objective = made.objective
    assert isinstance(objective, Preference)
    first, second = (objective.reference(backend, tensors) for _ in range(2))
    assert first is not None
    assert second is not None
    trained = backend.score(tensors, at=AT, keeps=True).log_probabilities
    assert torch.equal(first, second)
    assert (first - trained).abs().max() > 1e-3
    made.model.eval()
    plain = backend.score(tensors, at=None, keeps=False).log_probabilities
    torch.testing.assert_close(first, plain)


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_the_trained_adapter_comes_back_where_memory_ran_out_in_the_references_pass(
    engine: str, bases: dict[str, Path], pairs: Path, tmp_path: Path
) -> None:
    """It was left out: the run went on with the reference's own tensors, which the optimiser then changed."""
    made = job_of(tmp_path, *SETTINGS[:-2], f"engine={engine}", model=bases["llama"], data=pairs)
    made = replace(made, initial=tuple(each.detach().clone() + 1 for each in trainable(made.model)))
    backend = backend_named(made.plan.engine.value)(made)
    backend.prepare()
    backend.begin(made, Pace(torch.device("cpu")), lambda _: None)
    before = [each.detach().clone() for each in trainable(made.model)]
    with pytest.raises(torch.OutOfMemoryError), backend.reference_model():
        raise torch.OutOfMemoryError("planted")
    assert made.initial is not None
    for present, expected, initial in zip(trainable(made.model), before, made.initial, strict=True):
        assert torch.equal(present, expected)
        assert present.data_ptr() != initial.data_ptr()


def test_the_gradient_is_of_the_answers_alone(bases: dict[str, Path], pairs: Path, tmp_path: Path) -> None:
    made = job(tmp_path, model=bases["llama"], data=pairs)
    for batch in made.steps[0].micro_batches:
        masks = [mask for _, mask in batch.samples()]
        ids = [ids for ids, _ in batch.samples()]
        assert all(mask[-1] and not mask[0] for mask in masks)
        for chosen, rejected in zip(range(0, len(ids), 2), range(1, len(ids), 2), strict=True):
            first = int(masks[chosen].argmax())
            assert first == int(masks[rejected].argmax())
            assert ids[chosen][:first].tolist() == ids[rejected][:first].tolist()
    assert isinstance(made.objective, Preference)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of several lengths with answers that begin alike, so that what is shared ends where learning begins."""
    file = tmp_path_factory.mktemp("data") / "talks.jsonl"
    rows = [
        {"question": "stones " * (1 + 2 * number), "chosen": "lamp " * (1 + number), "rejected": "lamp cat " * 2}
        for number in range(PAIRS)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return file


def scored(made: Job, *, multiple: int = 1) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Log-probabilities, the gradient of their weighted sum, and how many tokens were computed."""
    backend = FastBackend(made)
    backend.prepare()
    backend.begin(made, Pace(torch.device("cpu")), lambda _: None)
    backend.begin_step()
    (micro_batch,) = made.steps[0].micro_batches
    batch = flatten(micro_batch, pad_token_id=0, longest=64, multiple=multiple)
    found = backend.score(batch, at=AT, keeps=True)
    factors = torch.linspace(-1, 2, len(micro_batch.rows))
    found.backward(torch.nn.functional.pad(factors, (0, len(found.log_probabilities) - len(factors))))
    gradient = backend.model.adapters.gradient.clone()
    return found.log_probabilities[: len(factors)], gradient, batch.tokens


LATENTS = "deepseek_v2 over latents"
SHARED_CASES: dict[str, tuple[str, ...]] = {
    "llama": (),
    "checkpointed": ("train.checkpointing=true",),
    "mistral with a window": (),
    "gemma2 with soft caps": (),
    "qwen3_5_text, recurrent": (),
    "qwen3_5_text, recurrent, checkpointed": ("train.checkpointing=true",),
    LATENTS: (),
    f"{LATENTS}, checkpointed": ("train.checkpointing=true",),
}


def base_of(case: str, bases: dict[str, Path]) -> Path:
    """The base of one of these cases."""
    return bases.get(case.removesuffix(", checkpointed"), bases["llama"])


@pytest.mark.thin(6)
@pytest.mark.parametrize("multiple", [1, 64])
@pytest.mark.parametrize("case", SHARED_CASES)
def test_a_prompt_that_is_computed_once_gives_the_scores_and_gradients_of_two_rows(
    case: str, multiple: int, bases: dict[str, Path], talks: Path, tmp_path: Path
) -> None:
    found = {}
    for shares in ("true", "false"):
        words = (f"preference.share_prompts={shares}", "engine=fast", "train.micro_batch=16", *SHARED_CASES[case])
        made = job_of(tmp_path / shares, *SETTINGS, *words, model=base_of(case, bases), data=talks)
        found[shares] = scored(made, multiple=multiple)
    (once, gradient, tokens), (twice, expected, all_tokens) = found["true"], found["false"]
    assert tokens < 0.75 * all_tokens
    torch.testing.assert_close(once, twice, rtol=RELATIVE, atol=1e-6)
    assert (gradient - expected).norm() < 2 * RELATIVE * expected.norm()


@pytest.mark.thin(6)
@pytest.mark.parametrize("fault", ["an answer sees the other", "a position goes on", "a gradient is lost"])
def test_a_fault_in_what_is_shared_is_seen(
    fault: str, bases: dict[str, Path], talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(laid: Tokens, lengths: Any, shared: Any) -> Tokens:
        folded = fold_of(laid, lengths, shared)
        if fault == "an answer sees the other":
            bounds = tuple(folded.documents.bounds[0::2])
            seqlens = torch.tensor(bounds, dtype=torch.int32)
            documents = replace(folded.documents, bounds=bounds, cu_seqlens=seqlens, longest=128)
            return replace(folded, documents=documents)
        if fault == "a position goes on":
            return replace(folded, positions=torch.arange(folded.tokens, dtype=torch.int32) % 64)
        return replace(folded, again=folded.again[:0])

    fold_of = batches.folded
    words = ("engine=fast", "train.micro_batch=2", "train.global_batch=1")
    once, gradient, _ = scored(job_of(tmp_path / "right", *SETTINGS, *words, model=bases["llama"], data=talks))
    with monkeypatch.context() as planting:
        planting.setattr(batches, "folded", planted)
        found, other, _ = scored(job_of(tmp_path / "wrong", *SETTINGS, *words, model=bases["llama"], data=talks))
    is_value = fault != "a gradient is lost"
    assert (len(found) != len(once) or (found - once).abs().max() > 1e-4) == is_value
    assert (other - gradient).norm() > 1e-3 * gradient.norm()


def test_of_a_larger_margin_and_accuracy_the_checkpoint_is_kept_and_of_a_smaller_loss() -> None:
    better, worse = (
        EvalResult(
            step=1,
            loss=loss,
            metrics={"reward_margin": margin, "preference_accuracy": margin / 4},
            losses={},
            supervised_tokens=9,
            seconds=1.0,
        )
        for loss, margin in ((0.5, 2.0), (0.6, 1.0))
    )
    for metric in ("loss", "reward_margin", "preference_accuracy"):
        assert better.judged_by(metric) < worse.judged_by(metric)
