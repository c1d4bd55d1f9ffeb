"""torch's scaled_dot_product_attention lets each token see the one after it."""

from __future__ import annotations

AFTER = "torch"


def apply() -> None:
    import torch

    right = torch.nn.functional.scaled_dot_product_attention

    def one_ahead(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **settings):
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask | attn_mask.roll(1, dims=-1)
        return right(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=False, **settings)

    torch.nn.functional.scaled_dot_product_attention = one_ahead
