"""A program for another transformers: what the tokenizer of a folder makes of texts, and how its model answers.

FOLDER [--model]: writes JSON. It imports nothing of loradock.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TEXTS = ("A row, its 2nd line\n  and an answer.", "  two  spaces é 日本 🙂\n\n", "def f(x):\n\treturn 12345678.90", "")
CHAT = [{"role": "user", "content": "How tall is K2?"}, {"role": "assistant", "content": "8,611 m."}]
IDS = 40


def told(folder: Path, *, is_model: bool) -> dict[str, Any]:
    """Ids of the texts, ends, a chat as text where there is a template, and the logits' sums of a few tokens."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    found: dict[str, Any] = {
        "version": transformers.__version__,
        "ids": [tokenizer(text)["input_ids"] for text in TEXTS],
    }
    found |= {"eos": tokenizer.eos_token_id, "special": sorted(tokenizer.all_special_ids)}
    if tokenizer.chat_template:
        found["chat"] = tokenizer.apply_chat_template(CHAT, tokenize=False)
    if is_model:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(torch.arange(IDS)[None]).logits
        found["logits"] = [round(each, 3) for each in logits.abs().sum(-1)[0].tolist()]
        found["ends"] = GenerationConfig.from_pretrained(folder).eos_token_id
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(told(Path(sys.argv[1]), is_model="--model" in sys.argv)))
