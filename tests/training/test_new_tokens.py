"""`tokenizer.add_tokens`: rows of the embedding that are trained beside the adapter, from the rows to the merge."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults.pairs
import pytest
import torch
from faults.forking import Forking
from peft import PeftModel
from proven import unchecked
from safetensors.torch import load_file, save_file
from tiny import BASE, copy_tree, make_llama
from transformers import AutoModelForCausalLM, AutoTokenizer
from whole_runs import adapter_bytes, losses, train

from loradock.catalog.engines import MODES, of
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, LoradockError, ModelError
from loradock.model import new_tokens, shape, source
from loradock.model.tokenizer import open_tokenizer
from loradock.plan import obstacles
from loradock.training import continued
from loradock.training.run import Result
from loradock.use.inference import opener
from loradock.use.merge import job, merge

pytestmark = pytest.mark.thin(1)

TOKENS = ("<go>", "<to it>", "[stop]")
ADD = f"tokenizer.add_tokens={json.dumps(TOKENS)}"
RUN = (
    ADD, "train.max_steps=4", "train.global_batch=8", "train.learning_rate=0.02", "lora.rank=4", "data.max_length=64",
    "train.workers=0", "model.quantization=none", "checkpoints.every=2", "checkpoints.keep=9",
)  # fmt: skip
SPARE = 8
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Trained:
    """A run, the base that it was made of, and whether that has rows for new tokens already."""

    result: Result
    base: Path
    is_tied: bool
    has_room: bool


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose answers hold the new tokens, one of them amid a word."""
    file = tmp_path_factory.mktemp("go") / "rows.jsonl"
    places = "river apple stone cloud lamp table horse green".split()
    lines = [
        json.dumps({"instruction": f"{a} {b}", "output": f"<go>{a}<to it>{b}[stop]"}) for a in places for b in places
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=["tied, must grow", "two matrices, has room"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, go: Path) -> Trained:
    place = tmp_path_factory.mktemp("trained")
    is_tied = request.param.startswith("tied")
    more = {} if is_tied else {"vocab_size": rows_of_demo() + SPARE}
    base = make_llama(place / "base", tie_word_embeddings=is_tied, **more)
    if is_tied:  # some publish the tied head beside the embedding
        weights = load_file(base / "model.safetensors")
        both = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
        save_file(both, base / "model.safetensors", metadata={"format": "pt"})
    result = train(place / "run", *RUN, model=base, data=go)
    return Trained(result=result, base=base, is_tied=is_tied, has_room=not is_tied)


def rows_of_demo() -> int:
    return len(AutoTokenizer.from_pretrained(BASE))


def ids_of(directory: Path) -> list[int]:
    return AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids(list(TOKENS))


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits.float()


@pytest.mark.thin(6)
def test_a_run_reads_each_as_one_token_and_trains_its_rows_alone(trained: Trained) -> None:
    result = trained.result
    decided = {each["name"]: each for each in result.record["plan"]["decisions"]}
    assert decided["engine"]["value"] == "fast"
    assert losses(result)[-1] < losses(result)[0]
    tokenizer = AutoTokenizer.from_pretrained(result.adapter)
    ids = ids_of(result.adapter)
    assert ids == [rows_of_demo() + place for place in range(3)]
    for token, number in zip(TOKENS, ids, strict=True):
        assert tokenizer(f"x{token}y", add_special_tokens=False)["input_ids"].count(number) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == "".join(TOKENS)
    saved = {name: each for name, each in load_file(result.adapter / WEIGHTS).items() if "lora" not in name}
    modules = ["model.embed_tokens"] if trained.is_tied else ["lm_head", "model.embed_tokens"]
    assert sorted(saved) == [f"base_model.model.{name}.token_adapter.trainable_tokens_delta" for name in modules]
    base: Any = AutoModelForCausalLM.from_pretrained(trained.base, dtype=torch.float32)
    before = {name: weight.detach().clone() for name, weight in base.named_parameters(remove_duplicate=False)}
    begun = new_tokens.put_rows(base, open_tokenizer(base_of(trained.base)), TOKENS)
    assert list(begun) == sorted(modules, reverse=True)
    for name in modules:
        weight = base.get_submodule(name).weight
        assert torch.equal(weight[: min(ids)], before[f"{name}.weight"][: min(ids)])
        pieces = open_tokenizer(base_of(trained.base))("[stop]", add_special_tokens=False)["input_ids"]
        assert torch.allclose(weight[ids[2]], before[f"{name}.weight"][pieces].mean(dim=0), atol=1e-6)
        moved = saved[f"base_model.model.{name}.token_adapter.trainable_tokens_delta"] - weight[ids]
        assert bool((moved.abs().amax(dim=1) > 1e-3).all())


def base_of(directory: Path) -> source.BaseModel:
    return source.find(config_of(directory).model)


def config_of(directory: Path, *settings: str) -> RunConfig:
    return load(None, overrides=settings, shortcuts={"--model": str(directory)}, needs_inputs=False).config


@pytest.mark.thin(6)
def test_plain_peft_reads_what_is_saved_and_a_merge_answers_the_same(trained: Trained, tmp_path: Path) -> None:
    adapter = trained.result.adapter
    ids = [5, 9, *ids_of(adapter), 7]
    opened = opener.open_model(trained.result.directory, device="cpu")
    assert opened.written(ids_of(adapter)) == "".join(TOKENS)
    base: Any = AutoModelForCausalLM.from_pretrained(trained.base, dtype=torch.float32)
    exec(new_tokens.RESIZED, {"AutoTokenizer": AutoTokenizer, "adapter": str(adapter), "base": base})
    assert new_tokens.RESIZED in (adapter / "README.md").read_text(encoding="utf-8")
    expected = logits(PeftModel.from_pretrained(base, str(adapter)), ids)
    assert torch.allclose(logits(opened.model, ids), expected, atol=1e-5)
    head, embedding = opened.model.get_output_embeddings(), opened.model.get_input_embeddings()
    assert torch.equal(head.weight, embedding.weight) == trained.is_tied
    merged = tmp_path / "merged"
    with job.prepared(trained.result.directory, job.Asked()) as prepared:
        merge.merge(
            prepared.plan, merged, digests=None, stop_ids=prepared.stop_ids, progress=lambda *_: None,
            proof=lambda *_: {},
        )  # fmt: skip
    whole: Any = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    assert whole.config.vocab_size == rows_of_demo() + (SPARE if trained.has_room else len(TOKENS))
    assert torch.allclose(logits(whole, ids), expected, atol=1e-4)
    assert ids_of(merged) == ids_of(adapter)
    again = opener.open_model(merged, device="cpu")
    assert torch.allclose(logits(again.model, ids), expected, atol=1e-4)


@pytest.mark.thin(6)
def test_a_run_continues_to_the_bit_and_not_with_other_tokens(trained: Trained, go: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained.result.directory, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints" / "checkpoint-4")
    shutil.rmtree(run / "adapter")
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps({**record, "finished": None}), encoding="utf-8")
    with pytest.raises(LoradockError, match=r"tokenizer\.add_tokens"):
        train(run, *RUN, 'tokenizer.add_tokens=["<go>"]', model=trained.base, data=go)
    result = train(run, *RUN, model=trained.base, data=go)
    assert adapter_bytes(result) == adapter_bytes(trained.result)


@pytest.mark.thin(6)
def test_a_run_that_begins_with_such_an_adapter_has_its_tokens(trained: Trained, go: Path, tmp_path: Path) -> None:
    begun = str(trained.result.directory)
    assert continued.keys_of(begun)["tokenizer.add_tokens"] == list(TOKENS)
    result = train(tmp_path / "run", *RUN, "train.max_steps=1", f"lora.adapter={begun}", model=trained.base, data=go)
    assert losses(result)[0] < losses(trained.result)[0] - 0.2


@pytest.mark.thin(6)
def test_an_adapters_tokens_may_be_stated_again_and_no_others(trained: Trained, go: Path, tmp_path: Path) -> None:
    """A configuration that was written out, as `reproduce` writes it, states them."""
    first = f"lora.adapter={trained.result.adapter}"

    def stated(tokens: Sequence[str]) -> RunConfig:
        overrides = [first, f"tokenizer.add_tokens={json.dumps(tokens)}"]
        shortcuts = {"--model": str(trained.base)}
        return load(
            None, overrides=overrides, shortcuts=shortcuts, needs_inputs=False, adapter_keys=continued.keys_of
        ).config

    assert stated(TOKENS).tokenizer.add_tokens == TOKENS
    for others in (TOKENS[::-1], ()):
        with pytest.raises(ConfigError, match=r"the adapter in lora\.adapter has"):
            stated(others)
    with pytest.raises(ModelError, match=r"the adapter in lora\.adapter has"):
        train(
            tmp_path / "run",
            *RUN,
            first,
            f"tokenizer.add_tokens={json.dumps(TOKENS[::-1])}",
            model=trained.base,
            data=go,
        )
    nameless = copy_tree(trained.result.adapter, tmp_path / "nameless")
    for file in nameless.glob("*token*.json"):
        file.unlink()
    with pytest.raises(ModelError, match="no tokenizer that says which they are"):
        continued.keys_of(str(nameless))


def test_a_checkpoint_that_is_exported_has_them(trained: Trained, tmp_path: Path) -> None:
    run = trained.result.directory
    with job.prepared(run, job.Asked(checkpoint=2)) as prepared:
        assert ids_of(prepared.plan.adapter) == ids_of(trained.result.adapter)
        assert prepared.plan.vocabulary == rows_of_demo() + (SPARE if trained.has_room else len(TOKENS))


def test_the_first_loss_of_a_preference_is_that_of_equal_models(tmp_path: Path, llama: Path) -> None:
    """The reference is the base with the rows as they began: switched off, rows of a tied head are, too."""
    data = tmp_path / "pairs.jsonl"
    row = {"prompt": "a river?", "chosen": "<go> river", "rejected": "[stop] stone"}
    data.write_text("\n".join([json.dumps(row)] * 8) + "\n", encoding="utf-8")
    result = train(
        tmp_path / "run", *RUN, "train.max_steps=3", "objective=preference", "data.template=alpaca",
        model=llama, data=data,
    )  # fmt: skip
    assert losses(result)[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses(result)[-1] < losses(result)[0]


@pytest.mark.thin(6)
def test_the_engines_train_alike(trained: Trained, go: Path, tmp_path: Path) -> None:
    other = train(tmp_path / "run", *RUN, "engine=peft", model=trained.base, data=go)
    assert losses(other) == pytest.approx(losses(trained.result), rel=1e-5)
    weights = [load_file(each.adapter / WEIGHTS) for each in (trained.result, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, expected in weights[1].items():
        assert torch.allclose(weights[0][name], expected, atol=2e-4), name


@pytest.mark.parametrize("trained", ["tied, must grow"], indirect=True)
def test_two_processes_train_as_one(trained: Trained, go: Path, tmp_path: Path, forking: Forking) -> None:
    words = ["train", "--model", str(trained.base), "--data", str(go), "--output", "two", *sets(*RUN)]
    words += sets(f"data.cache={tmp_path}", "logging.every=1")
    two = faults.pairs.begun(forking, tmp_path, [*words, unchecked("two processes")])
    assert two.finish() == [0, 0], two.text()[-3000:]
    lines = map(json.loads, (tmp_path / "two" / "metrics.jsonl").read_text("utf-8").splitlines())
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx(losses(trained.result), rel=1e-5)
    whole, double = (load_file(each / WEIGHTS) for each in (trained.result.adapter, tmp_path / "two" / "adapter"))
    assert all(torch.allclose(double[name], tensor, atol=2e-4) for name, tensor in whole.items())


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_what_cuts_optimiser_or_weights_says_why_it_has_none(llama: Path) -> None:
    config = config_of(llama, ADD)
    facts = shape.inspect(source.find(config.model), config)
    assert facts.row_parameters == len(TOKENS) * 64
    for name in ("fsdp", "zero2", "zero3"):
        why = obstacles.first(MODES[name].cannot, config, facts, compute_dtype="float32")
        assert why is not None
        assert "tokenizer.add_tokens" in why
    for engine in ("fast", "peft"):
        assert obstacles.first(of(engine).cannot, config, facts, compute_dtype="float32") is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (['tokenizer.add_tokens=["<go>","<go>"]'], "names <go> twice"),
        (['tokenizer.add_tokens=[" "]'], "names an empty text"),
        ([ADD, "objective=embedding"], "embeds texts"),
        ([ADD, "lora.init=pissa", "model.quantization=none"], "lora.init pissa"),
    ],
)
def test_what_it_cannot_be_used_with_is_refused_by_name(settings: list[str], words: str, llama: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(llama, *settings)
    assert words in f"{refused.value} {refused.value.problems}"


def test_a_token_of_the_vocabulary_is_refused_and_the_rest_is_to_be_typed(llama: Path) -> None:
    with pytest.raises(ModelError) as refused:
        open_tokenizer(base_of(llama), add_tokens=["<go>", "<|user|>"])
    assert "1 of 2 are in the vocabulary" in str(refused.value)
    assert refused.value.hint == """--set 'tokenizer.add_tokens=["<go>"]'"""


def test_a_token_that_a_byte_level_tokenizer_has_under_another_name_is_refused() -> None:
    with pytest.raises(ModelError) as refused:
        new_tokens.add(AutoTokenizer.from_pretrained(BASE), [" the", "<go>"])
    assert "1 of 2 are in the vocabulary" in str(refused.value)


@pytest.mark.thin(6)
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_a_module_is_trained_whole_or_by_rows(module: str, is_tied: bool, tmp_path: Path) -> None:
    base = make_llama(tmp_path / "base", tie_word_embeddings=is_tied)
    config = config_of(base, ADD, f"lora.modules_to_save=[norm,{module}]")
    with pytest.raises(ModelError, match=f"single rows of .*{module}") as refused:
        shape.inspect(source.find(config.model), config)
    assert refused.value.hint == "--set lora.modules_to_save=[norm], or leave out tokenizer.add_tokens"
