"""Rules of published tokenizers, as their tokenizer.json has them, by llama.cpp's names."""

from __future__ import annotations

from typing import Any

import pytest

from loradock.errors import ModelError
from loradock.use.gguf import pre_tokenizers

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT_OSS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", WORDS]
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer(*patterns: str, normalizer: Any = None, ignores: bool = False) -> dict[str, Any]:
    """As much of a tokenizer.json as its rules are."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    cuts = [*splits, BYTES] if splits else [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "model": {"type": "BPE", "ignore_merges": ignores},
    }


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (tokenizer(GPT_OSS, ignores=True), "gpt-4o"),
        (tokenizer(*DEEPSEEK, normalizer={"type": "Sequence", "normalizers": []}), "deepseek-v3"),
        (tokenizer(QWEN35, normalizer={"type": "NFC"}), "qwen35"),
        (tokenizer(CL100K), "dbrx"),
        (tokenizer(CL100K, ignores=True), "llama-bpe"),
        (tokenizer(normalizer={"type": "NFC"}), "olmo"),
        (tokenizer(), "gpt-2"),
    ],
)
def test_rules_are_known_by_llama_cpps_name(content: dict[str, Any], name: str) -> None:
    assert pre_tokenizers.name_of(content) == name


@pytest.mark.parametrize(
    "content",
    [
        tokenizer(*DEEPSEEK[:2]),
        tokenizer(*DEEPSEEK, normalizer={"type": "NFC"}),
        tokenizer(QWEN35, ignores=True),
        tokenizer(GPT_OSS.replace("{1,3}", "{1,2}")),
    ],
)
def test_rules_that_differ_in_one_place_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="none of those known here"):
        pre_tokenizers.name_of(content)
