"""Every kind of file that PEFT writes for LoRA, and the answers of the model in memory that was saved.

It is a program, too: BASES OUT, so that another PEFT than the lock's can write them. It imports nothing of loradock.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

EMBEDDING, HEAD = ["q_proj", "embed_tokens"], ["q_proj", "lm_head"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all-linear": {"target_modules": "all-linear"},
    "head": {"target_modules": HEAD},
    "head-by-pattern": {"target_modules": ".*(q_proj|lm_head)"},
    "embedding": {"target_modules": EMBEDDING},
    "head-and-embedding": {"target_modules": [*EMBEDDING, "lm_head"]},
    "head-tied": {"target_modules": HEAD, "ensure_weight_tying": True},
    "embedding-tied": {"target_modules": EMBEDDING, "ensure_weight_tying": True},
    "dora": {"use_dora": True},
    "dora-on-head": {"use_dora": True, "target_modules": HEAD},
    "dora-on-embedding": {"use_dora": True, "target_modules": EMBEDDING},
    "rslora-on-head": {"use_rslora": True, "target_modules": HEAD, "rank_pattern": {"lm_head": 2}},
    "save-head": {"modules_to_save": ["lm_head"]},
    "save-embedding": {"modules_to_save": ["embed_tokens"]},
    "save-both": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "save-embedding-tied": {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    "save-norms": {"modules_to_save": ["norm", "input_layernorm"]},
    "save-mlp": {"modules_to_save": ["mlp"]},
    "save-head-that-has-lora": {"target_modules": HEAD, "modules_to_save": ["lm_head"]},
    "tokens": {"trainable_token_indices": [3, 5, 7]},
    "tokens-tied": {"trainable_token_indices": [3, 5, 7], "ensure_weight_tying": True},
    "tokens-of-both": {"trainable_token_indices": {"embed_tokens": [3, 5], "lm_head": [3, 9]}},
    "tokens-and-head": {"trainable_token_indices": [3, 5, 7], "target_modules": HEAD},
    "bias-all": {"bias": "all"},
    "bias-of-lora": {"bias": "lora_only"},
    "lora-bias": {"lora_bias": True},
    "parameters": {"target_modules": [], "target_parameters": ["q_proj.weight"]},
}
ROWS = 3


def write(kind: str, folder: Path, *, base: Path, is_resized: bool) -> torch.Tensor:
    """Save an adapter of random weights as PEFT does by default, and its logits beside it: [1, 40, rows].

    `is_resized`: with three tokens more than the base has.
    """
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if is_resized:
        model.resize_token_embeddings(model.config.vocab_size + ROWS, mean_resizing=False)
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight.data[-ROWS:].normal_()
    settings = {"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"], **KINDS[kind]}
    adapted = get_peft_model(model, LoraConfig(**settings))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.05)
    logits = answers(adapted)
    adapted.save_pretrained(str(folder))
    torch.save(logits, folder / "logits.pt")
    return logits


def answers(model: Any) -> torch.Tensor:
    """The logits of the first 40 tokens, [1, 40, rows]."""
    with torch.no_grad():
        return model.eval()(torch.arange(40)[None]).logits


def main(bases: Path, out: Path) -> None:
    """Write every kind that this PEFT knows for each base in a directory, to OUT/BASE/KIND[-resized]."""
    for base in sorted(bases.iterdir()):
        for kind in KINDS:
            for is_resized in (False, True):
                folder = out / base.name / (f"{kind}-resized" if is_resized else kind)
                try:
                    write(kind, folder, base=base, is_resized=is_resized)
                except (TypeError, ValueError) as error:
                    sys.stdout.write(f"{base.name} {kind}: {type(error).__name__}: {error}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
