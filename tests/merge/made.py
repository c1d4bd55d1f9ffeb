"""Adapters without a training run, and merged models beside what PEFT computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.model import load, source
from loradock.training.lineage import Lineage
from loradock.use.inference.opener import with_adapter
from loradock.use.merge.job import Asked, prepared
from loradock.use.merge.merge import Merged
from loradock.use.merge.proof import kl
from loradock.use.merge.run import run

TARGETS = ["q_proj", "v_proj", "down_proj"]


def make_adapter(
    folder: Path, *, base: Path, quantization: str = "nf4", dtype: str = "float32", spread: float = 0.05, **lora: Any
) -> Path:
    """An adapter with random weights, its tokenizer, and training.json as a run writes it."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "target_modules": TARGETS, **lora}))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape) * spread
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    write_lineage(folder, base=base, quantization=quantization, dtype=dtype)
    return folder


def write_lineage(folder: Path, *, base: Path, quantization: str = "nf4", dtype: str = "float32") -> None:
    """training.json of a run on this base."""
    Lineage.model_validate(
        {
            "base": str(base),
            "quantization": quantization,
            "double_quant": True,
            "compute_dtype": "auto",
            "load_dtype": dtype,
            "special_tokens": "as_text",
            "conversations": True,
        }
    ).write(folder)


def merged(adapter: Path, output: Path, *, is_full: bool = False, **asked: Any) -> Merged:
    """The adapter merged to a directory."""
    with prepared(adapter, Asked(**asked)) as job:
        return run(job, output, is_full=is_full)[0]


def log_probabilities(model: Any, vocabulary: int) -> torch.Tensor:
    """Of 4 rows of 48 random tokens, [4, 48, vocabulary]."""
    ids = torch.randint(vocabulary, (4, 48), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        return model.eval()(ids).logits[..., :vocabulary].float().log_softmax(dim=-1)


def reference(adapter: Path, *, quantization: str) -> Any:
    """Base and adapter as PEFT computes them in float32, the base loaded as training loads it."""
    lineage = Lineage.read(adapter)
    assert lineage
    asked = lineage.model().model_copy(update={"quantization": quantization})
    model = load.load_whole(source.find(asked), asked, dtype=torch.float32, device="cpu")
    return with_adapter(model, adapter)


def divergence(adapter: Path, output: Path, *, quantization: str = "nf4", vocabulary: int = 800) -> float:
    """The mean KL divergence of a merged model, loaded by plain transformers, from base and adapter."""
    found = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32)
    wanted = log_probabilities(reference(adapter, quantization=quantization), vocabulary)
    return float(kl(wanted, log_probabilities(found, vocabulary)).mean())
