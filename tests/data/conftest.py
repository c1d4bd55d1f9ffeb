"""Tokenizers of three families, trained on a few lines, and rows to prepare with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data.measured import Maker, pairs
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = (
    "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]",
)  # fmt: skip
CORPUS = (
    "Please choose the correct answer to the question: which of these is true?\n\nAnswer format: answer1/answer2",
    "the correct answer is answer1\nthe correct answer is true\n\n### Response:\nthe correct answer is false",
    "assistant\nYes.\nuser\nNo, über café naïve 日本語 東京 🙂👍🏽 e\u0301\n\n  two  spaces\tand a tab",
    "def add(a, b):\n    return a + b\n\n",
) * 3


def wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """A transformers tokenizer around a trained backend, as it would be loaded from a directory."""
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's family, with a post-processor that hides leading spaces from offsets; adds no special token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return wrapped(backend)


def sentencepiece() -> PreTrainedTokenizerFast:
    """Llama 2's family: a prepended block, byte fallback, and a post-processor that adds BOS."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*SPECIAL, *byte_tokens], limit_alphabet=60, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    tree = json.loads(backend.to_str())
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["content"] not in byte_tokens]
    backend = Tokenizer.from_str(json.dumps(tree))
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return wrapped(backend)


def across_newlines() -> PreTrainedTokenizerFast:
    """Tokens that span newlines, spaces and whatever stands on both sides of them; NFKC and lower case before."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]{0,3}\n+[^\n]{0,3}|[^\n]{4}"), behavior="isolated")
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=list(SPECIAL), show_progress=False)
    backend.train_from_iterator([line.lower() for line in CORPUS], trainer)
    return wrapped(backend)


TOKENIZERS = {"byte-level": byte_level, "sentencepiece": sentencepiece, "across-newlines": across_newlines}


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Each family once a session."""
    return {name: build() for name, build in TOKENIZERS.items()}


@pytest.fixture(scope="session", params=TOKENIZERS)
def tokenizer(
    request: pytest.FixtureRequest, tokenizers: dict[str, PreTrainedTokenizerFast]
) -> PreTrainedTokenizerFast:
    """One family after the other."""
    return tokenizers[request.param]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the repository."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"shared data absent: {folder}")
    return folder


@pytest.fixture
def make(tmp_path: Path, tokenizers: dict[str, PreTrainedTokenizerFast]) -> Maker:
    return Maker(tmp_path, tokenizers["byte-level"])


@pytest.fixture
def counted(make: Maker) -> list[list[bool]]:
    """Of each of `pairs()`, which tokens are learned: a token of ASCII text is as long as its characters."""
    masks = []
    for prompt, completion in pairs():
        ids = make.tokenizer(f"{prompt}{completion}</s>")["input_ids"]
        ends = np.cumsum([len(token) for token in make.tokenizer.convert_ids_to_tokens(ids)])
        assert ends[-1] == len(f"{prompt}{completion}</s>")
        masks.append([bool(end > len(prompt)) for end in ends])
    return masks
