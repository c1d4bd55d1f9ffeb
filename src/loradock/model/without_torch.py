"""transformers without torch: a process that reads rows needs a config and a tokenizer, and no model."""

from __future__ import annotations

import sys


def without_torch() -> None:
    """transformers of this process takes torch for absent; nothing where it is imported already.

    Its configs and tokenizers import torch, its compiler and what distributes tensors where they are installed, and
    use none of them: 0.9 s of CPU in the place of 2.7 s for both (transformers 5, 2 cores).
    """
    if "transformers" in sys.modules:
        return
    import transformers
    from transformers import utils
    from transformers.utils import import_utils

    for module in (transformers, utils, import_utils):
        vars(module)["is_torch_available"] = lambda: False
