"""Control tokens that the base never trained are told before a run trains into them, and the remedies end it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny import make_llama, write_rows
from transformers import AutoTokenizer
from whole_runs import Silent, train

from loradock.config.sections.model import ModelConfig
from loradock.model import source, untrained

pytestmark = pytest.mark.thin(2)

SETTINGS = ("train.max_steps=1", "lora.rank=2", "data.max_length=128")


def told(folder: Path, model: Path, *settings: str) -> list[str]:
    """What a run of one step says of untrained tokens."""
    view = Silent()
    rows = write_rows(folder / "rows.jsonl", rows=16)
    folder = folder / f"run-{len(settings)}-{hash(settings) & 0xFFFF}"
    train(folder, *SETTINGS, *settings, model=model, data=rows, view=view)
    return [line for line in view.stages if "never trained" in line]


def spoilt(model: Path, *tokens: str, value: float | None) -> None:
    """Give the rows of these tokens one value; None: that of the first."""
    file = model / "model.safetensors"
    weights = load_file(file)
    ids = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids(list(tokens))
    embedding = weights["model.embed_tokens.weight"]
    for number in ids:
        embedding[number] = embedding[ids[0]] if value is None else value
    save_file(weights, file, metadata={"format": "pt"})


def noted(model: Path, *tokens: str) -> str:
    """The warning about these tokens of a model; "" where there is none."""
    ids = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids(list(tokens))
    base = source.find(ModelConfig(name=str(model)))
    return untrained.note(base, dict(zip(ids, tokens, strict=True)), saved=()) or ""


def test_a_run_tells_them_by_name_and_each_remedy_ends_it(tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model")
    spoilt(model, "<|user|>", "<|assistant|>", value=None)
    (line,) = told(tmp_path, model)
    assert line.startswith("warning: the base never trained <|user|>, <|assistant|>, which rows hold")
    remedies = [shlex.split(each)[0] for each in re.findall(r"--set ('[^']+'|\S+)", line)]
    assert [remedy.partition("=")[0] for remedy in remedies] == ["lora.modules_to_save", "data.template"]
    for remedy in remedies:
        assert told(tmp_path, model, remedy) == []


@pytest.mark.parametrize("value", [0.0, 1e-9, None])
def test_rows_that_are_zero_or_equal_are_found_and_no_others(value: float | None, tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model")
    every = ("<|user|>", "<|assistant|>", "<|system|>", "</s>")
    assert noted(model, *every) == ""
    spoilt(model, *every[:2], value=value)
    assert noted(model, *every).startswith("warning: the base never trained <|user|>, <|assistant|>, which rows")
    assert noted(model, *every[2:]) == "", "none of the rows' business"


def test_a_head_of_its_own_is_looked_at_too(tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model", tie_word_embeddings=False)
    file = model / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"][AutoTokenizer.from_pretrained(model).eos_token_id] = 0
    save_file(weights, file, metadata={"format": "pt"})
    line = noted(model, "<|user|>", "</s>")
    assert "never trained </s>" in line
    assert "lora.modules_to_save=[lm_head]" in line
