"""transformers' eager attention of Llama ignores its mask."""

from __future__ import annotations

AFTER = "transformers.models.llama.modeling_llama"


def apply() -> None:
    from transformers.models.llama import modeling_llama

    right = modeling_llama.eager_attention_forward

    def unmasked(module, query, key, value, attention_mask, *arguments, **settings):
        return right(module, query, key, value, None, *arguments, **settings)

    modeling_llama.eager_attention_forward = unmasked
