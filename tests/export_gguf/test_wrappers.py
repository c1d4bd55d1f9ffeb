"""Of a model that sees, GGUF has the language model; Gemma 3 as llama.cpp computes it, else a clear no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from export_gguf.test_export import exported, read, typed
from transformers import AutoModelForImageTextToText
from wrappers import make_wrapper

from loradock.errors import ModelError

pytestmark = pytest.mark.thin(1)

IDS = torch.randint(800, (2, 40), generator=torch.Generator().manual_seed(1))
PATTERN = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA = {
    "num_hidden_layers": 6,
    "layer_types": PATTERN,
    "head_dim": 256,  # with the scale that transformers' reader takes for granted
    "query_pre_attn_scalar": 256,
    "sliding_window": 16,  # shorter than the rows
    "tie_word_embeddings": True,
}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def test_the_language_model_of_a_gemma_3_that_sees_comes_back_with_its_logits(tmp_path: Path) -> None:
    base = make_wrapper(tmp_path / "base", "gemma3", text=GEMMA)
    result = typed(base, "-o", tmp_path / "a.gguf")
    assert result.exit_code == 0, result.exception
    assert "the language model alone" in result.stderr
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["general.architecture"].contents() == "gemma3"
    assert fields["gemma3.attention.sliding_window"].contents() == 16
    assert fields["gemma3.rope.freq_base"].contents() == 1e6
    whole = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    torch.testing.assert_close(logits(read(tmp_path / "a.gguf")), logits(whole), atol=1e-4, rtol=1e-4)


def test_the_language_model_of_a_mistral_3_is_a_llama_there(tmp_path: Path) -> None:
    base = make_wrapper(tmp_path / "base", "mistral3")
    told = exported(base, tmp_path / "a.gguf")
    assert told["tensors"] == 2 * 9 + 2  # layers, embedding and norm: the head is tied
    whole = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    torch.testing.assert_close(logits(read(tmp_path / "a.gguf")), logits(whole), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"layer_types": ["full_attention"] * 6}, "layer_types"),
        ({"query_pre_attn_scalar": 17}, "query_pre_attn_scalar"),
        ({"final_logit_softcapping": 30.0}, "softcapping"),
    ],
)
def test_a_gemma_3_that_llama_cpp_would_compute_otherwise_is_refused(
    tmp_path: Path, setting: dict[str, Any], named: str
) -> None:
    base = make_wrapper(tmp_path / "base", "gemma3", text=GEMMA | setting)
    result = typed(base, "-o", tmp_path / "a.gguf")
    assert isinstance(result.exception, ModelError)
    assert named in str(result.exception)
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("kind", ["qwen3_5", "gemma4", "qwen3_vl"])
def test_a_language_model_without_rules_here_is_refused_by_its_kind(tmp_path: Path, kind: str) -> None:
    result = typed(make_wrapper(tmp_path / "base", kind), "-o", tmp_path / "a.gguf")
    assert isinstance(result.exception, ModelError)
    assert "models are not exported to GGUF here, only llama, mistral, qwen2, qwen3, gemma3_text" in str(
        result.exception
    )
