"""`model.rope_scaling`: longer texts by transformers' own positions, from the plan to the merged model."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make_model
from peft import PeftModel
from tiny import make_llama
from transformers import AutoConfig, AutoModelForCausalLM
from whole_runs import Silent, losses, train

from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, LoradockError, ModelError
from loradock.model import lengths, rope_scaling, shape, source
from loradock.training.run import Result
from loradock.use.inference import opener
from loradock.use.merge import job, merge

pytestmark = pytest.mark.thin(1)

WINDOW, FACTOR = 64, 4.0
SCALING = {kind: (f"model.rope_scaling={kind}", "model.rope_factor=4") for kind in ("yarn", "linear")}
RUN = (
    "train.max_steps=3", "train.global_batch=4", "lora.rank=4", "data.max_length=200", "train.learning_rate=0.01",
    "train.workers=0", "model.quantization=none",
)  # fmt: skip
IDS = torch.arange(180)[None] % 50 + 5


@dataclass(frozen=True)
class Trained:
    """A run with scaled positions, and the base and rows that it was made of."""

    kind: str
    result: Result
    base: Path
    data: Path
    view: Silent


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("base") / "base", max_position_embeddings=WINDOW)


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that are longer than the base's window."""
    file = tmp_path_factory.mktemp("long") / "rows.jsonl"
    row = {"instruction": "count", "output": " ".join(["river", "stone", "apple"] * 50)}
    file.write_text("\n".join([json.dumps(row)] * 8) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module", params=SCALING)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, base: Path, long_rows: Path
) -> Trained:
    view = Silent()
    place = tmp_path_factory.mktemp("trained") / "run"
    result = train(place, *RUN, *SCALING[request.param], model=base, data=long_rows, view=view)
    return Trained(request.param, result, base, long_rows, view)


def theirs(base: Path, kind: str) -> Any:
    """transformers' own model with the configuration that its pages give."""
    config = AutoConfig.from_pretrained(base)
    original = {"original_max_position_embeddings": WINDOW} if kind == "yarn" else {}
    config.rope_parameters = {**config.rope_parameters, "rope_type": kind, "factor": FACTOR, **original}
    return AutoModelForCausalLM.from_pretrained(base, config=config, dtype=torch.float32)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits.float()


def config_of(model: Path, *settings: str) -> RunConfig:
    return load(None, overrides=settings, shortcuts={"--model": str(model)}, needs_inputs=False).config


@pytest.mark.thin(6)
def test_the_adapter_is_used_and_merged_with_the_positions_of_training(trained: Trained, tmp_path: Path) -> None:
    adapter = trained.result.adapter
    assert losses(trained.result)[-1] < losses(trained.result)[0]
    expected = logits(PeftModel.from_pretrained(theirs(trained.base, trained.kind), str(adapter)))
    plain = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(trained.base, dtype=torch.float32), str(adapter)
    )
    assert not torch.allclose(logits(plain), expected, atol=1e-3)
    opened = opener.open_model(trained.result.directory, device="cpu")
    assert torch.allclose(logits(opened.model), expected, atol=1e-5)
    merged = tmp_path / "merged"
    with job.prepared(trained.result.directory, job.Asked()) as prepared:
        merge.merge(
            prepared.plan, merged, digests=None, stop_ids=prepared.stop_ids, progress=lambda *_: None,
            proof=lambda *_: {},
        )  # fmt: skip
    whole: Any = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    assert torch.allclose(logits(whole), expected, atol=1e-4)
    assert whole.config.max_position_embeddings == FACTOR * WINDOW
    assert torch.allclose(logits(opener.open_model(merged, device="cpu").model), expected, atol=1e-4)


@pytest.mark.thin(6)
def test_both_engines_train_alike_with_it(trained: Trained, tmp_path: Path) -> None:
    decided = {each.name: each for each in trained.view.plans[-1].decisions}
    assert decided["engine"].value == "fast"
    other = train(tmp_path / "run", *RUN, *SCALING[trained.kind], "engine=peft", model=trained.base, data=trained.data)
    assert losses(other) == pytest.approx(losses(trained.result), rel=1e-5)


def test_the_run_and_its_model_card_say_what_it_means(trained: Trained) -> None:
    said = f"{trained.kind} x4: 256 positions, the base was trained on 64"
    assert [line for line in trained.view.stages if said in line]
    decided = {each.name: each for each in trained.view.plans[-1].decisions}
    assert "rows that fit them are read otherwise than by the base, too" in decided["max_length"].why
    card = (trained.result.adapter / "README.md").read_text("utf-8")
    code = card[card.index("config = AutoConfig") : card.index("adapter = ")]
    made: dict[str, Any] = {"AutoConfig": AutoConfig, "AutoModelForCausalLM": AutoModelForCausalLM}
    exec(re.sub(r'from_pretrained\("[^"]*"', f'from_pretrained("{trained.base}"', code), made)
    adapted = PeftModel.from_pretrained(made["base"].float(), str(trained.result.adapter))
    opened = opener.open_model(trained.result.directory, device="cpu")
    assert torch.allclose(logits(adapted), logits(opened.model), atol=1e-5)


@pytest.mark.thin(6)
def test_rows_that_fit_the_base_are_told_to_gain_nothing(tmp_path: Path, base: Path, rows: Path) -> None:
    view = Silent()
    settings = (*RUN, "data.max_length=60", "train.max_steps=1", *SCALING["yarn"])
    train(tmp_path / "run", *settings, model=base, data=rows, view=view)
    decided = {each.name: each for each in view.plans[-1].decisions}
    assert "no row is longer: it changes how all are read, and gains nothing" in decided["max_length"].why


def test_too_long_a_row_is_answered_with_the_factor_that_it_takes(base: Path) -> None:
    config = config_of(base, "data.max_length=200")
    facts = shape.inspect(source.find(config.model), config)
    with pytest.raises(ModelError) as refused:
        lengths.longest_row(200, facts)
    assert "--set model.rope_scaling=yarn --set model.rope_factor=4" in str(refused.value.hint)
    scaled = config_of(base, *SCALING["yarn"])
    stretched = shape.inspect(source.find(scaled.model), scaled)
    assert lengths.longest_row(200, stretched) == 200
    with pytest.raises(ModelError) as too_long:
        lengths.longest_row(600, stretched)
    assert str(too_long.value.hint).endswith("or --set model.rope_factor=10 to stretch them")


@pytest.mark.thin(6)
def test_an_adapter_is_not_continued_on_other_positions(trained: Trained, tmp_path: Path) -> None:
    begun = f"lora.adapter={trained.result.directory}"
    with pytest.raises(ModelError, match=f"was trained with {trained.kind} x4") as refused:
        train(tmp_path / "other", *RUN, begun, "data.max_length=60", model=trained.base, data=trained.data)
    assert refused.value.hint == f"--set model.rope_scaling={trained.kind} --set model.rope_factor=4"
    settings = (*RUN, begun, "train.max_steps=1", *SCALING[trained.kind])
    assert train(tmp_path / "same", *settings, model=trained.base, data=trained.data).record["status"] == "finished"


@pytest.mark.parametrize("factor", [0.5, 1e9])
def test_a_factor_that_is_none_is_an_error_of_the_file(trained: Trained, tmp_path: Path, factor: float) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(trained.result.adapter, folder)
    kept = json.loads((folder / "training.json").read_text())
    (folder / "training.json").write_text(json.dumps({**kept, "rope_factor": factor}))
    with pytest.raises(LoradockError, match=r"training\.json"):
        opener.open_model(folder, device="cpu")


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("gpt2", {}, "has no rotary positions"),
        ("gemma3_text", {}, "has several kinds of positions (full_attention, sliding_attention)"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "scales its positions already (yarn)"),
    ],
)
def test_a_base_that_does_not_take_it_is_refused_by_name(
    family: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "model", family, **settings)
    config = config_of(model, *SCALING["yarn"])
    with pytest.raises(ModelError) as refused:
        source.find(config.model)
    assert words in str(refused.value)
    assert refused.value.hint == "--set model.rope_scaling=off"


def test_a_class_that_does_not_read_it_is_refused() -> None:
    scaling = rope_scaling.Scaling(kind="yarn", factor=2, window=64)
    with pytest.raises(ModelError, match="does not read it"):
        rope_scaling.check_taken(torch.nn.Linear(2, 2), scaling, name="base")


def test_a_factor_that_stretches_nothing_is_refused_and_one_alone_has_no_effect(base: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(base, "model.rope_scaling=yarn")
    assert "stretches positions by model.rope_factor, which is 1" in f"{refused.value.problems}"
    loaded = load(None, overrides=["model.rope_factor=4"], shortcuts={"--model": str(base)}, needs_inputs=False)
    assert any("model.rope_factor" in warning and "no effect" in warning for warning in loaded.warnings)


@pytest.mark.thin(6)
def test_files_of_both_habits_are_written(tmp_path: Path) -> None:
    scaling = rope_scaling.Scaling(kind="linear", factor=2, window=64)
    old: dict[str, Any] = {"rope_theta": 1e4, "max_position_embeddings": 64}
    new: dict[str, Any] = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    for part in (old, new):
        scaling.put(part)
        assert part["max_position_embeddings"] == 128
    assert old["rope_scaling"] == {"rope_type": "linear", "factor": 2}
    assert new["rope_parameters"] == {"rope_theta": 1e4, "rope_type": "linear", "factor": 2}
