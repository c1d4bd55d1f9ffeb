"""GGUF of real models: our export beside the published one, and the names of real tokenizers' rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest
from click.testing import CliRunner
from real.conftest import Real

from loradock.cli import cli
from loradock.use.gguf import vocabulary

# What llama.cpp's converter takes from a model card and a file's name.
FROM_CARD = {f"general.{each}" for each in "basename file_type finetune languages license name organization".split()}
IN_Q4_1 = 0.01


@pytest.mark.full
def test_the_published_file_of_the_same_base_says_the_same(tmp_path: Path, real: Real) -> None:
    published = next(real("smollm2-gguf").glob("*.gguf"))
    base = Path(shutil.copytree(real("smollm2"), tmp_path / "base"))
    # transformers made this base of that file, and left out that digits are cut one by one.
    content = json.loads((base / "tokenizer.json").read_text())
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    (base / "tokenizer.json").write_text(json.dumps(content))
    done = CliRunner().invoke(cli, ["export", "gguf", str(base), "-o", str(tmp_path / "a.gguf")])
    assert done.exit_code == 0, done.output
    ours, theirs = gguf.GGUFReader(tmp_path / "a.gguf"), gguf.GGUFReader(published)
    left_out = {*FROM_CARD, "general.size_label", "GGUF.kv_count"}
    for key in {*ours.fields, *theirs.fields} - left_out:
        assert ours.fields[key].contents() == theirs.fields[key].contents(), key
    others = {tensor.name: tensor for tensor in theirs.tensors}
    assert {tensor.name for tensor in ours.tensors} == others.keys()
    for tensor in ours.tensors:
        other = others[tensor.name]
        first, second = (gguf.quants.dequantize(each.data, each.tensor_type) for each in (tensor, other))
        assert abs(first - second).max() <= IN_Q4_1 * abs(second).max(), tensor.name


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "model", "pre"),
    [
        ("qwen3", "gpt2", "qwen2"),
        ("llama3.1", "gpt2", "llama-bpe"),
        ("mistral-v1", "llama", "default"),
        ("gpt-oss", "gpt2", "gpt-4o"),
        ("deepseek-v3", "gpt2", "deepseek-v3"),
    ],
)
def test_real_tokenizers_are_known_by_llama_cpps_names(real: Real, name: str, model: str, pre: str) -> None:
    found = vocabulary.read(real(name), rows=300_000)
    assert (found.model, found.pre) == (model, pre)
