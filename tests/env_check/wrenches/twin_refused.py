"""transformers refuses the config of the check's tiny twin, as it did for heads that do not divide its hidden size."""

from __future__ import annotations

from typing import Any

AFTER = "transformers.models.llama.configuration_llama"


def apply() -> None:
    from transformers.models.llama import configuration_llama

    kind: Any = configuration_llama.LlamaConfig
    right = kind.__init__

    def refusing(config, *arguments, **settings):
        if settings.get("vocab_size") == 256:
            raise ValueError("The hidden size (64) is not a multiple of the number of attention heads (6).")
        right(config, *arguments, **settings)

    kind.__init__ = refusing
