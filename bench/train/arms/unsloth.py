"""unsloth, in a venv of its own: `PYTHON -m bench.train.arms.unsloth TASK` with that venv's Python.

Settings: `batch` and `checkpointing`; where they are left out, unsloth decides.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bench.train.arms import sft
from bench.train.arms.base import LORA, Report, Task, adapter_digest
from bench.train.rows import Rows

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def base(unsloth: Any, task: Task) -> tuple[Any, Any]:
    """The model in 4 bits with unsloth's adapter, and the tokenizer."""
    import torch

    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=task.model,
        max_seq_length=task.longest,
        dtype=getattr(torch, task.dtype),
        load_in_4bit=True,
        local_files_only=True,
    )
    adapted = unsloth.FastLanguageModel.get_peft_model(
        model,
        r=LORA["r"],
        lora_alpha=LORA["lora_alpha"],
        lora_dropout=task.dropout,
        target_modules=list(TARGETS),
        bias=LORA["bias"],
        use_gradient_checkpointing="unsloth" if task.settings.get("checkpointing", True) else False,
        random_state=task.seed,
    )
    return adapted, tokenizer


def take_adapter(model: Any, path: Path) -> str:
    """Put the values of the other arms' adapter in, where they lie there and fit; the digest of what is in."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    if path.exists():
        values = load_file(path)
        names = get_peft_model_state_dict(model).keys()
        if values.keys() == names:
            set_peft_model_state_dict(model, values)
    return adapter_digest(get_peft_model_state_dict(model))


def arguments(task: Task, *, rows: Rows) -> dict[str, Any]:
    """The SFTConfig's values without those that unsloth decides itself."""
    values = sft.arguments(task, rows=rows)
    values.pop("use_liger_kernel")
    values["gradient_checkpointing"] = task.settings.get("checkpointing", True)
    if "batch" not in task.settings:
        values.pop("padding_free")
    return values


def main() -> None:
    """Do the task."""
    task = Task.read()
    report = Report(task)
    unsloth = importlib.import_module("unsloth")  # before trl, which it changes as it is imported
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = base(unsloth, task)
    report.line(adapter=take_adapter(model, Path(task.adapter)))
    config = SFTConfig(**arguments(task, rows=Rows.load(Path(task.rows) / "rows.npz")))
    sft.run(SFTTrainer, model, tokenizer, config=config, task=task, report=report)


if __name__ == "__main__":
    main()
