"""The models that are trained: real configs as data with random weights, made here, and one with its real weights.

To add one: its values, with where they come from. The values are those of the published config.json that shapes,
speed or memory depend on. A model of `REAL` is fetched by scripts/real-model instead of being made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.floor.machine import ROOT

MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "source": "made up, for the harness itself",
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
    },
    "120m": {
        "source": "made up: a Llama that a CPU trains",
        "model_type": "llama",
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "smollm2-135m": {
        "source": "SmolLM2-135M-Instruct by scripts/real-model: real weights, passed through 4 bits (Q4_1)",
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "tinyllama-1.1b": {
        "source": "TinyLlama/TinyLlama-1.1B-Chat-v1.0, config.json",
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "phi-3-mini": {
        "source": "microsoft/Phi-3-mini-4k-instruct, config.json",
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32064,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "sliding_window": 2047,
    },
    "mistral-7b": {
        "source": "mistralai/Mistral-7B-v0.1, config.json",
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    },
    "llama-3-8b": {
        "source": "meta-llama/Meta-Llama-3-8B, config.json",
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
}
REAL = {"smollm2-135m": "smollm2"}
"""Models with their real weights, and what scripts/real-model calls them."""
SHARED = {"rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu", "initializer_range": 0.02}
UNKNOWN, BOS, EOS, PAD = SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
SHARD = "2GB"


def settings(name: str) -> dict[str, Any]:
    """The config's values: those of the model, what they share, and its special tokens."""
    values = {key: value for key, value in MODELS[name].items() if key != "source"}
    theta = values.pop("rope_theta", 10000.0)
    numbers = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    return {**SHARED, **numbers, **values, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def word(number: int) -> str:
    """The text of a token id that is not special."""
    return f"t{number}"


def make(name: str, *, folder: Path, kind: str) -> Path:
    """The model's directory below `folder`, made where it is not there: random weights (seed 0), a tokenizer.

    `kind` is the device (cpu or cuda) that draws the weights; bfloat16 for a card, float32 for a CPU. A real model's
    files are links to those of scripts/real-model.
    """
    target = folder / f"{name}-{kind}"
    if (target / "made.json").exists():
        return target
    if name in REAL:
        link(REAL[name], target=target)
    else:
        draw(name, target=target, kind=kind)
    (target / "made.json").write_text(json.dumps({"name": name, "source": MODELS[name]["source"]}) + "\n")
    return target


def link(name: str, *, target: Path) -> None:
    """Links to the files of a real model."""
    script = ROOT / "scripts" / "real_models.py"
    told = subprocess.run([sys.executable, script, name], stdout=subprocess.PIPE, text=True, check=True).stdout
    target.mkdir(parents=True, exist_ok=True)
    for file in Path(told.strip()).iterdir():
        (target / file.name).unlink(missing_ok=True)
        (target / file.name).symlink_to(file)


def draw(name: str, *, target: Path, kind: str) -> None:
    """Random weights and a tokenizer of words."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = settings(name)
    config = AutoConfig.for_model(**values)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    with torch.device(kind):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(target, max_shard_size=SHARD)
    write_tokenizer(target, vocabulary=values["vocab_size"])


def words(model: Path) -> list[str]:
    """Words of that model's tokenizer that are one token each, in the order of their ids, with a space before or not.

    Of a real tokenizer: those of at least two letters.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    if UNKNOWN in dict(vocabulary):
        return [text for text, _ in vocabulary if text not in SPECIAL]
    known = dict(vocabulary)
    spaced = (text.removeprefix("Ġ") for text, _ in vocabulary if text.startswith("Ġ"))
    return [text for text in spaced if len(text) > 1 and text.isascii() and text.isalpha() and text in known]


def write_tokenizer(folder: Path, *, vocabulary: int) -> None:
    """A tokenizer of one word a token, so that text and ids say the same."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {text: number for number, text in enumerate(SPECIAL)}
    words |= {word(number): number for number in range(len(SPECIAL), vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token=UNKNOWN, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":  # in a process of its own, which leaves no memory of the card behind
    print(make(sys.argv[1], folder=Path(sys.argv[2]), kind=sys.argv[3]))
