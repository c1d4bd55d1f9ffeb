"""TRL's SFTTrainer with peft and bitsandbytes: `python -m bench.train.arms.trl TASK`.

Settings: `batch` (padded, padding-free or packing), `checkpointing`, `liger`, `reads` (ids or text).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.train.arms import sft
from bench.train.arms.base import LORA, Report, Task, adapter_digest
from bench.train.rows import Rows


def base(task: Task) -> Any:
    """The model in NF4 with double quantisation and its fresh adapter, whose values are those of our own engine."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, set_seed

    dtype = getattr(torch, task.dtype)
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        task.model,
        quantization_config=nf4,
        dtype=dtype,
        device_map={"": task.device if task.device == "cpu" else "cuda:0"},
        attn_implementation=task.attention,
        local_files_only=True,
    )
    set_seed(task.seed)
    settings: dict[str, Any] = {**LORA, "lora_dropout": task.dropout, "target_modules": "all-linear"}
    return get_peft_model(model, LoraConfig(**settings))


def keep_adapter(model: Any, path: Path) -> str:
    """Save the fresh adapter for the arms that cannot make the same one, where none lies there; its digest."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    values = {name: each.detach().float().cpu().contiguous() for name, each in get_peft_model_state_dict(model).items()}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(values, path)
    return adapter_digest(values)


def main() -> None:
    """Do the task."""
    task = Task.read()
    report = Report(task)
    from transformers import AutoTokenizer
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    model = base(task)
    report.line(adapter=keep_adapter(model, Path(task.adapter)))
    config = SFTConfig(**sft.arguments(task, rows=Rows.load(Path(task.rows) / "rows.npz")))
    sft.run(SFTTrainer, model, AutoTokenizer.from_pretrained(task.model), config=config, task=task, report=report)


if __name__ == "__main__":
    main()
