"""Published models as data: models.json holds what each config.json says, `make` builds one that is small.

A model is added by one entry: its id, the values of its config.json that shape attention and MLP in the file's own
keys, and what is expected: the engine that trains it, or the exit code and words of the refusal. An entry of a year's
choice also says where its values are from, and names in `architectures` the class that its publisher saves: it is
built and saved as that class, with the towers for images and sound that a wrapper has around its language model.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from commit import turn_of
from quantised_files import fp8_parts
from safetensors.torch import load_file, save_file
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FILE = Path(__file__).with_name("models.json")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
INNER = (
    "intermediate_size",
    "intermediate_size_mlp",
    "ffn_dim",
    "block_ff_dim",
    "shared_intermediate_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
SMALL_INNER = 256
TOWERS = ("vision_config", "audio_config")
# What a tower has under these names becomes this; the text that the tests train on passes none of them.
NARROW = {
    "num_hidden_layers": 1,
    "depth": 1,
    "num_blocks": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "global_head_dim": 16,
}
# Tokens that stand for an image or a sound get ids behind those of the tokenizer.
MARK = re.compile(r"(?!bos|eos|pad).*_(token_id|token_index|start_id|end_id|newline_id)")
FIRST_MARK = 1000
# Bounds of a tower's activations are infinite before it was trained, and finite in what a publisher saves.
BOUND = 64.0
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
    year: int | None = None
    source: str | None = None

    def made_small(self) -> dict[str, Any]:
        """Its config.json with few layers, a small MLP, small towers and the tests' vocabulary; all else is true."""
        text = self.config.get("text_config", self.config)
        cut = reduced(text)
        wrapper = {} if text is self.config else {"text_config": cut} | tokens(self.config)
        towers = {key: narrowed(self.config[key]) for key in TOWERS if self.config.get(key)}
        config = self.config
        for smaller in ((wrapper or cut) | towers, marks(self.config, {}), self.small):
            config = merged(config, smaller)
        text = config.get("text_config", config)
        if "layer_types" in text:
            text["layer_types"] = text["layer_types"][: next(text[key] for key in LAYERS if key in text)]
        return config


def reduced(text: dict[str, Any]) -> dict[str, Any]:
    """What a language model's config is made smaller by: layers until each kind occurred, the MLP, the vocabulary."""
    kinds = text.get("layer_types", ())
    layers = next((n for n in range(2, len(kinds) + 1) if set(kinds[:n]) == set(kinds)), 2)
    inner = INNER if text["model_type"] not in NO_MLP else ()
    vocabulary = {key: VOCABULARY for key in ("vocab_size", "vocab_size_per_layer_input") if key in text}
    return (
        {key: layers for key in LAYERS if key in text}
        | {key: SMALL_INNER for key in inner if text.get(key)}
        | {"vocab_size": VOCABULARY}
        | vocabulary
        | tokens()
    )


def narrowed(tower: dict[str, Any]) -> dict[str, Any]:
    """What a tower's config is made smaller by."""
    return {key: value for key, value in NARROW.items() if key in tower}


def marks(config: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Ids in the tests' vocabulary for the tokens that stand for no text, in what is nested too: a name has one id."""
    found: dict[str, Any] = {key: marks(value, ids) for key, value in config.items() if isinstance(value, dict)}
    own = [key for key, value in config.items() if MARK.fullmatch(key) and isinstance(value, int)]
    return found | {key: ids.setdefault(key, FIRST_MARK + len(ids)) for key in own}


def tokens(config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The ids of the tests' tokenizer at begin, end and padding; of a config, those that it has."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(tokenizer, name) for name in names if config is None or name in config}


def merged(config: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A config with the values of another in place of its own, in what is nested too."""
    return config | {
        key: merged(config[key], value) if isinstance(value, dict) and isinstance(config.get(key), dict) else value
        for key, value in over.items()
    }


def published() -> list[Published]:
    """All models of the table."""
    return [Published(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))["models"]]


def chosen(key: str) -> Published:
    """One of those that are used most, of this year's or of the others, by `key`: the same key, the same one."""
    models = published()
    sorts = sorted({(each.often, each.year) for each in models}, key=str)
    sort = sorts[turn_of(key, len(sorts))]
    of_sort = [each for each in models if (each.often, each.year) == sort]
    return of_sort[turn_of(f"{key} {sort}", len(of_sort))]


def make(directory: Path, each: Published) -> Path:
    """The small model in bfloat16, random by a fixed seed, of the published class; its config.json keeps all keys."""
    config = each.made_small()
    directory.mkdir()
    file = directory / "config.json"
    file.write_text(json.dumps({key: value for key, value in config.items() if key != "quantization_config"}))
    torch.manual_seed(1)
    model = built(AutoConfig.from_pretrained(directory))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for buffer in filter(torch.is_floating_point, model.buffers()):
            buffer.nan_to_num_(posinf=BOUND, neginf=-BOUND)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(directory)
    file.write_text(json.dumps(config))
    quantise(directory, config.get("quantization_config", {}))
    return directory


def quantise(directory: Path, settings: dict[str, Any]) -> None:
    """Store its linear layers and experts as its config.json says: in FP8, or experts in MXFP4."""
    change = {"fp8": in_fp8, "mxfp4": in_mxfp4}.get(settings.get("quant_method", ""))
    for file in directory.glob("*.safetensors") if change else ():
        held: dict[str, torch.Tensor] = {}
        for name, tensor in load_file(file).items():
            held |= change(name, tensor, settings) if change else {}
        save_file(held, file, metadata={"format": "pt"})


def in_fp8(name: str, tensor: torch.Tensor, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What files hold of a tensor; those of towers, embeddings and routers stay as they are."""
    is_inner = name.endswith(("_proj.weight", "_with_mqa.weight")) or "experts." in name
    is_inner = is_inner and tensor.dim() == 2 and "vision" not in name and "projector" not in name
    return fp8_parts(name, tensor, block=settings["weight_block_size"]) if is_inner else {name: tensor}


def in_mxfp4(name: str, tensor: torch.Tensor, _: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What files hold of a tensor: experts are other ones, of random blocks."""
    if ".experts." not in name or tensor.dim() != 3:
        return {name: tensor}
    experts, columns, rows = tensor.shape
    size = (experts, rows, columns // 32)
    blocks = torch.randint(0, 256, (*size, 16), dtype=torch.uint8)
    return {f"{name}_blocks": blocks, f"{name}_scales": torch.randint(118, 122, size, dtype=torch.uint8)}


def built(config: Any) -> Any:
    """A random model in bfloat16: of the class that its publisher saves, where the config names one."""
    cls: Any = getattr(transformers, config.architectures[0]) if config.architectures else None
    return (cls._from_config if cls else AutoModelForCausalLM.from_config)(config, dtype=torch.bfloat16)
