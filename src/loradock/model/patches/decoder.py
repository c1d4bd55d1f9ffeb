"""Let a Llama 4 name its decoder: its two classes name a part that they do not have.

For transformers the whole model is its own decoder then, and what is asked of the decoder is answered by the model:
logits of all tokens in the place of hidden states, from which TRL's head makes a loss.
"""

from __future__ import annotations

from typing import Any

KINDS = ("llama4", "llama4_text")


def build(config: Any) -> None:
    """Before a Llama 4 is built: have its language model name the part that is called `model`."""
    if config.model_type in KINDS:
        from transformers import Llama4ForCausalLM

        Llama4ForCausalLM.base_model_prefix = "model"


def apply(model: Any) -> int:
    """Make `base_model` the decoder where it is a whole wrapper; returns 1 where it was. A bare layer has none."""
    if not hasattr(model, "base_model") or model.base_model is not model or model.get_decoder() is model:
        return 0
    whole: Any = type(model)
    members = {"__module__": whole.__module__, "base_model": property(lambda self: self.get_decoder())}
    model.__class__ = type(whole.__name__, (whole,), members)
    return 1
