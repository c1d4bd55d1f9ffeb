"""What is exported for sentence-transformers is loaded by it, unmodified, and gives the vectors of training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from embedding.made import TASK, TEXTS, make_adapter, with_bos, write_recipe
from sentence_transformers import SentenceTransformer
from tiny import make_llama
from training.objectives.reference import MODEL, NEEDS_REFERENCE
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from loradock.cli import cli
from loradock.errors import ModelError
from loradock.use.embedding import st_export
from loradock.use.embedding.evaluate import Instructions
from loradock.use.embedding.opener import open_embedder

pytestmark = pytest.mark.thin(2)

BOUND = 1e-6
AS_THEIRS = Instructions(query=TASK)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose tokenizer writes BOS before each text, and has a chat template."""
    return with_bos(make_llama(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base=base)


def assert_same_vectors(model: Path, adapter: Path, *, instruction: str = TASK) -> None:
    """Queries with the instruction and passages without, by plain sentence-transformers and by us."""
    theirs, ours = SentenceTransformer(str(model), device="cpu"), open_embedder(adapter)
    wanted = ours.embed(TEXTS), ours.embed(TEXTS, instruction=instruction, kind="query")
    found = theirs.encode_document(TEXTS), theirs.encode_query(TEXTS)
    for own, their in zip(wanted, found, strict=True):
        np.testing.assert_allclose(their, own, atol=BOUND)
    np.testing.assert_array_equal(theirs.encode(TEXTS), found[0])
    assert np.abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_allclose(open_embedder(model).embed(TEXTS), wanted[0], atol=BOUND)


@pytest.mark.thin(6)
@pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "view"])
@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_sentence_transformers_gives_the_vectors_of_training(
    tmp_path: Path, base: Path, adapter: Path, pooling: str, attention: str, is_merged: bool
) -> None:
    made = shutil.copytree(adapter, tmp_path / "adapter")
    lengths = ("embedding.query_length=40", "embedding.passage_length=64")
    for template in ("gritlm", "e5", "plain"):
        chosen = (f"embedding.pooling={pooling}", f"embedding.attention={attention}", f"embedding.template={template}")
        write_recipe(made, *lengths, *chosen, base=base)
        instruction = "" if pooling == "mean" and template != "gritlm" else TASK
        st_export.export(made, tmp_path / template, is_merged=is_merged, asked=Instructions(query=instruction))
        assert_same_vectors(tmp_path / template, made, instruction=instruction)


@pytest.mark.parametrize("template", ["e5", "plain"])
def test_a_prompt_whose_end_merges_with_a_text_is_refused_under_mean_pooling(
    tmp_path: Path, base: Path, adapter: Path, template: str
) -> None:
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, f"embedding.template={template}", base=base)
    with pytest.raises(ModelError, match="would pool another first token than training did"):
        st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)


@NEEDS_REFERENCE
@pytest.mark.parametrize("is_merged", [True, False])
def test_the_references_model_is_exported_with_the_same_vectors(tmp_path: Path, is_merged: bool) -> None:
    made = make_adapter(tmp_path / "adapter", base=MODEL)
    st_export.export(made, tmp_path / "model", is_merged=is_merged, asked=AS_THEIRS)
    assert_same_vectors(tmp_path / "model", made)


def test_attention_that_was_trained_bidirectional_is_not_the_causal_one(
    tmp_path: Path, base: Path, adapter: Path
) -> None:
    ours = open_embedder(adapter).embed(TEXTS)
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, "embedding.attention=causal", base=base)
    assert np.abs(open_embedder(made).embed(TEXTS) - ours).max() > 1e-3


def test_a_pooled_instruction_is_pooled_there_too(tmp_path: Path, base: Path, adapter: Path) -> None:
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, "embedding.pool_instruction=true", base=base)
    st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)
    assert_same_vectors(tmp_path / "model", made)


def test_dora_is_merged_with_the_same_vectors(tmp_path: Path, base: Path) -> None:
    made = make_adapter(tmp_path / "adapter", base=base, use_dora=True)
    st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)
    assert_same_vectors(tmp_path / "model", made)


def test_an_adapter_with_rank_stabilised_scaling_is_read_as_such(tmp_path: Path, base: Path) -> None:
    made = make_adapter(tmp_path / "adapter", base=base, use_rslora=True)
    st_export.export(made, tmp_path / "model", is_merged=False, asked=AS_THEIRS)
    assert_same_vectors(tmp_path / "model", made)


@pytest.mark.parametrize(
    ("lora", "what"),
    [
        ({"modules_to_save": ["lm_head"]}, r"holds base_model\.model\.lm_head\.weight"),
        ({"use_dora": True}, r"holds .*\.lora_magnitude_vector"),
    ],
)
def test_what_transformers_does_not_read_with_an_adapter_is_exported_merged_only(
    tmp_path: Path, lora: dict[str, Any], what: str
) -> None:
    made = make_adapter(tmp_path / "adapter", base=make_llama(tmp_path / "base", tie_word_embeddings=False), **lora)
    with pytest.raises(ModelError, match=what) as error:
        st_export.export(made, tmp_path / "model", is_merged=False, asked=AS_THEIRS)
    assert error.value.hint == "add --merge"
    st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)


def test_a_base_in_bfloat16_stays_so_and_each_weight_is_rounded_once(tmp_path: Path, base: Path) -> None:
    from safetensors.torch import load_file

    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    made = make_adapter(tmp_path / "adapter", base=half, dtype=torch.bfloat16)
    st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)
    name = "model.layers.0.self_attn.q_proj"
    weights, lora = load_file(half / "model.safetensors"), load_file(made / "adapter_model.safetensors")
    down, up = (lora[f"base_model.model.{name}.lora_{each}.weight"] for each in "AB")
    wanted = weights[f"{name}.weight"].float() + up @ down * 2  # alpha 8 over r 4
    merged = load_file(tmp_path / "model" / "model.safetensors")[f"{name}.weight"]
    assert merged.dtype == torch.bfloat16
    assert torch.equal(merged, wanted.bfloat16())


def test_a_base_in_nf4_is_exported_beside_its_adapter_and_not_merged(tmp_path: Path, base: Path, adapter: Path) -> None:
    """What `--merge` would be added to are weights that nobody has any more."""
    packed = tmp_path / "packed"
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.float32}
    config = BitsAndBytesConfig(load_in_4bit=True, **nf4)  # pyright: ignore
    options: dict[str, Any] = {"quantization_config": config, "dtype": torch.float32, "device_map": "cpu"}
    AutoModelForCausalLM.from_pretrained(base, **options).save_pretrained(packed)
    AutoTokenizer.from_pretrained(base).save_pretrained(packed)
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, "model.quantization=nf4", base=packed)
    words = ("checkpoint", "export", str(made), "--as", "sentence-transformers", "--base-model", str(packed))
    refused = CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "model"), "--merge"])
    assert isinstance(refused.exception, ModelError)
    assert refused.exception.what.startswith(f"{packed} holds its weights in NF4")
    assert refused.exception.hint == "leave out --merge, or loradock embed RUN"
    assert not (tmp_path / "model").exists()
    done = CliRunner().invoke(cli, [*words, "-o", str(tmp_path / "model")])
    assert done.exception is None, done.output
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode_document(TEXTS)
    np.testing.assert_allclose(theirs, open_embedder(made).embed(TEXTS), atol=5e-3)  # one of them rounds to bfloat16


@pytest.mark.parametrize("pooling", ["weightedmean", "cls"])
def test_poolings_that_sentence_transformers_does_otherwise_are_refused(
    tmp_path: Path, base: Path, adapter: Path, pooling: str
) -> None:
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, f"embedding.pooling={pooling}", base=base)
    with pytest.raises(ModelError, match=f"sentence-transformers has another {pooling}"):
        st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)
    assert [each.name for each in tmp_path.iterdir()] == ["adapter"]


def test_an_instruction_that_fills_the_length_of_queries_is_refused(tmp_path: Path, base: Path, adapter: Path) -> None:
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, "embedding.query_length=16", base=base)
    with pytest.raises(ModelError, match="the instruction alone has"):
        st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)


@pytest.mark.parametrize("after", [" (end)", "{{ eos_token }}{{ eos_token }}"])
def test_a_template_that_a_tokenizer_cannot_end_is_refused(
    tmp_path: Path, base: Path, adapter: Path, after: str
) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ instruction }}: {{ text }}" + after)
    made = shutil.copytree(adapter, tmp_path / "adapter")
    write_recipe(made, f"embedding.template={template}", base=base)
    with pytest.raises(ModelError, match="more than one special token after the text"):
        st_export.export(made, tmp_path / "model", is_merged=True, asked=AS_THEIRS)


def test_the_view_links_to_the_base_and_says_what_its_attention_is(tmp_path: Path, base: Path, adapter: Path) -> None:
    st_export.export(adapter, tmp_path / "model", is_merged=False, asked=AS_THEIRS)
    view = tmp_path / "model" / "base"
    assert (view / "model.safetensors").resolve() == (base / "model.safetensors").resolve()
    assert json.loads((view / "config.json").read_text())["is_causal"] is False
    assert "is_causal" not in json.loads((base / "config.json").read_text())
    settings = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(view)
