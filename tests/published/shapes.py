"""Published models as data: models.json holds what each config.json says, `make` builds one that is small.

A model is added by one entry: its id, the values of its config.json that shape attention and MLP in the file's own
keys, and what is expected: the engine that trains it, or the exit code and words of the refusal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FILE = Path(__file__).with_name("models.json")
OFTEN, OTHERS = 1, 1
"""Models that a run without --full takes of those that are used most, and of the others."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
INNER = ("intermediate_size", "ffn_dim", "moe_intermediate_size")
SMALL_INNER = 256
# More than the tokenizer has: the tokenizer class of some families adds a token or two of its own.
VOCABULARY = 1024
# Its inner size is that of the state, which hidden_size and expand decide.
NO_MLP = ("mamba",)


@dataclass(frozen=True, kw_only=True)
class Published:
    """One model: its config.json, and what `loradock train` is expected to do with it."""

    model: str
    config: dict[str, Any]
    expected: dict[str, Any]
    often: bool = False
    small: dict[str, Any] = field(default_factory=dict[str, Any])

    def made_small(self) -> dict[str, Any]:
        """Its config.json with two layers, a small MLP and the vocabulary of the tests; all else is true."""
        tokenizer = AutoTokenizer.from_pretrained(BASE)
        layers = {key: 2 for key in LAYERS if key in self.config}
        inner = {key: SMALL_INNER for key in INNER if key in self.config and self.config["model_type"] not in NO_MLP}
        tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        config: dict[str, Any] = self.config | layers | inner | tokens | {"vocab_size": VOCABULARY} | self.small
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][: next(config[key] for key in LAYERS if key in config)]
        return config


def published() -> list[Published]:
    """All models of the table."""
    return [Published(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))["models"]]


def chosen(key: str) -> list[Published]:
    """A few of those that are used most, and fewer others, which change with `key`: the same key, the same ones."""
    models = published()
    drawn = sorted(models, key=lambda each: hashlib.sha256(f"{key} {each.model}".encode()).digest())
    often, others = ([each for each in drawn if each.often == is_often] for is_often in (True, False))
    return [each for each in models if each in often[:OFTEN] or each in others[:OTHERS]]


def make(directory: Path, each: Published) -> Path:
    """The small model in bfloat16, random by a fixed seed; its config.json keeps the published keys."""
    config = each.made_small()
    directory.mkdir()
    file = directory / "config.json"
    file.write_text(json.dumps({key: value for key, value in config.items() if key != "quantization_config"}))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(directory)
    file.write_text(json.dumps(config))
    return directory
