"""How long a row may be: by `data.max_length` or the lengths of texts to embed, and by the base's positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.facts import PositionFacts
from loradock.model import rope_scaling

if TYPE_CHECKING:
    from loradock.config.schema import RunConfig
    from loradock.model.source import BaseModel

DEFAULT_LENGTH = 1024


def positions_of(base: BaseModel, config: RunConfig) -> PositionFacts:
    """The positions of a base, of which config.json alone is there. ModelError where texts to embed exceed them."""
    text = base.config.get_text_config(decoder=True)
    facts = PositionFacts(
        name=base.name,
        context_length=getattr(text, "max_position_embeddings", None),
        window=rope_scaling.window_of(base.config, base.scaling, trusted=base.trust_remote_code),
    )
    if config.objective_spec.embeds:
        check_texts(config, facts, window=sliding_window(text))
    return facts


def pack_limit(config: Any) -> int | None:
    """The most tokens of a pack that a text model's code computes as if each document began a row; None without end.

    Llama 4's counts the temperature of layers without rotary positions from the row's start; chunks of attention from
    the document's.
    """
    is_counting = config.model_type == "llama4_text" and config.attn_temperature_tuning
    return config.floor_scale - 1 if is_counting and not all(config.no_rope_layers) else None


def sliding_window(config: Any) -> int | None:
    """Tokens that a text model's attention reaches back, at the least of its layers; None for all."""
    return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None


def check_texts(config: RunConfig, facts: PositionFacts, *, window: int | None) -> None:
    """ModelError where texts to embed may be longer than positions, or than a window that both sides would be cut to.

    Bidirectional attention in a sliding window is not defined alike: transformers cuts both sides, vLLM drops the
    window, and flash kernels have bounds of their own.
    """
    embedding = config.embedding
    most = min(
        filter(None, (facts.context_length, window if embedding.attention == "bidirectional" else None)), default=0
    )
    keys = {"query_length": embedding.query_length, "passage_length": embedding.passage_length}
    over = {key: length for key, length in keys.items() if most and length > most}
    if over:
        what = "positions" if most == facts.context_length else "tokens in its sliding window, which cuts both sides"
        settings = " and ".join(f"embedding.{key} is {length}" for key, length in over.items())
        hint = " ".join(f"--set embedding.{key}={most}" for key in over)
        raise ModelError(f"{settings}, and {facts.name} has {most} {what}", hint=hint)


def longest_row(setting: int | str, facts: PositionFacts, *, rows: int = 0) -> int:
    """`data.max_length` as a number of tokens; ModelError where it exceeds the model's positions.

    `rows`: tokens of the longest row of the data, which auto covers as far as the model has positions; 0: not known.
    """
    length = max(DEFAULT_LENGTH, rows)
    most = facts.context_length or length
    if isinstance(setting, str):
        return min(length, most)
    if facts.context_length is not None and setting > most:
        stretching = ""
        if facts.window:
            kind = "--set model.rope_scaling=yarn " if facts.window == most else ""
            stretching = f", or {kind}--set model.rope_factor={-(-setting // facts.window)} to stretch them"
        raise ModelError(
            f"data.max_length is {setting}, the model has {most} positions",
            hint=f"--set data.max_length={most}{stretching}",
        )
    return setting
