"""config.json read by hand: the fields whose value costs time or memory have a range, all problems told at once.

Everything else in it is transformers' to judge (`foreign.reading`); `suspects` then finds the field that it tripped on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loradock.errors import ModelError, Problem
from loradock.model.files import json_object, leaves

MOST_LAYERS = 1_000
"""Each is built, on the meta device, in about 2 ms. The deepest published decoders have 126; stacked ones about 200."""
MOST_HEADS = 1 << 16
MOST_WIDTH = 1 << 20
MOST_INNER = 1 << 24
MOST_POSITIONS = 1 << 31
RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"),
        (1, MOST_LAYERS),
    ),
    **dict.fromkeys(
        ("encoder_layers", "decoder_layers", "num_nextn_predict_layers", "num_kv_shared_layers"), (0, MOST_LAYERS)
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads", "num_kv_heads", "n_head_kv"),
        (1, MOST_HEADS),
    ),
    **dict.fromkeys(
        (
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "n_shared_experts",
            "num_experts_per_tok",
            "num_labels",
            "conv_kernel",
            "mamba_n_heads",
        ),
        (0, MOST_HEADS),
    ),
    **dict.fromkeys(("hidden_size", "n_embd", "n_embed", "d_model", "head_dim", "kv_channels"), (1, MOST_WIDTH)),
    **dict.fromkeys(
        ("word_embed_proj_dim", "q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        (0, MOST_WIDTH),
    ),
    **dict.fromkeys(("state_size", "time_step_rank", "mamba_d_state", "mamba_expand", "expand"), (0, MOST_WIDTH)),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "vocab_size"), (1, MOST_INNER)),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "type_vocab_size"), (0, MOST_INNER)),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), (1, MOST_POSITIONS)),
}
"""Whole numbers by the names that models of transformers give them; null is what transformers fills in."""
DTYPES = frozenset(
    {"auto", "float16", "half", "bfloat16", "float32", "float", "float64", "double", "float8_e4m3fn", "float8_e5m2"}
)
MOST_QUOTED = 40


def read(directory: Path) -> dict[str, Any]:
    """The content of a directory's config.json. ModelError with everything that is wrong in it by itself."""
    file = directory / "config.json"
    content = json_object(file)
    problems = [Problem(what=what, file=str(file)) for what in wrong(content)]
    if problems:
        raise ModelError(
            f"{file} describes no model that can be built",
            hint="copy config.json again; do the weights belong to it?",
            problems=problems,
        )
    return content


def wrong(content: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the values of a config.json, each with its field."""
    for name, holder in sections(content):
        for key, value in holder.items():
            path = f"{name}.{key}" if name else key
            if key in RANGES:
                yield from out_of_range(path, value, *RANGES[key])
            elif key in ("dtype", "torch_dtype"):
                yield from no_dtype(path, value)
            elif key.endswith(("dropout", "_pdrop", "dropout_prob")):
                yield from no_share(path, value)


def sections(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object itself, and the configs of its parts (text_config, vision_config, ...) by their names."""
    yield "", content
    for key, value in content.items():
        if isinstance(value, dict) and key.endswith("_config"):
            yield key, value


def out_of_range(path: str, value: Any, least: int, most: int) -> Iterator[str]:
    """A value, or those of a list (some models have a width for each layer), that is no whole number of the range."""
    if value is None:
        return
    several: list[Any] = value if isinstance(value, list) and value else [value]
    for name in several:
        is_whole = isinstance(name, int) or (isinstance(name, float) and name.is_integer())
        if isinstance(name, bool) or not is_whole:
            yield f"{path} is {quoted(name)}, not a whole number"
            return
        if not least <= name <= most:
            yield f"{path} is {quoted(name)}: it has to be from {least:,} to {most:,}"
            return


def no_dtype(path: str, value: Any) -> Iterator[str]:
    """A dtype that is no floating-point type of torch: weights of whole numbers cannot be trained, nor quantised."""
    if value is None or isinstance(value, dict):  # of several parts, each with its own
        return
    if not isinstance(value, str) or value.removeprefix("torch.") not in DTYPES:
        yield f"{path} is {quoted(value)}, not a floating-point type (bfloat16, float16, float32)"


def no_share(path: str, value: Any) -> Iterator[str]:
    """A probability that is none; true and false are the names of another thing."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 <= value <= 1:
        yield f"{path} is {quoted(value)}: it has to be from 0 to 1"


def suspects(file: Path, text: str) -> list[Problem]:
    """The fields of config.json whose values a library's words quote, or that are likely to be what it tripped on."""
    content = json_object(file)
    values = [
        f"{path} is {quoted(value)}"
        for path, value in leaves(content)
        if isinstance(value, str) and value and (f"'{value}'" in text or f'"{value}"' in text)
        if path.rpartition(".")[2] != "model_type" or "model_type" in text or "model type" in text
    ]
    for name, holder in sections(content):
        pad, vocabulary = holder.get("pad_token_id"), holder.get("vocab_size")
        if isinstance(pad, int) and isinstance(vocabulary, int) and not -vocabulary <= pad < vocabulary:
            path = f"{name}.pad_token_id" if name else "pad_token_id"
            values.append(f"{path} is {quoted(pad)}, and vocab_size {quoted(vocabulary)}")
    return [Problem(what=what, file=str(file)) for what in values]


def quoted(value: Any) -> str:
    """A value as JSON has it, or how it begins."""
    text = repr(value) if isinstance(value, (str, float)) else str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}" if abs(value) < 10**MOST_QUOTED else "a number of more digits than can be meant"
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]}..."
