"""The model and the data that a configuration names."""

from loradock.env_check.base import Check
from loradock.env_check.model import (
    base,
    data_files,
    embedding,
    model_memory,
    model_space,
    model_weights,
    offline,
    revision,
    token,
    tokenizer,
)

CHECKS: tuple[Check, ...] = (
    base.CHECK,
    revision.CHECK,
    token.CHECK,
    offline.CHECK,
    tokenizer.CHECK,
    embedding.CHECK,
    model_space.CHECK,
    data_files.CHECK,
    model_weights.CHECK,
    model_memory.CHECK,
)
