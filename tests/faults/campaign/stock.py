"""The negative control: transformers' own Trainer on a peft LoRA, as its documentation shows it, with resume.

`python stock.py BASE ROWS OUTPUT STEPS EVERY`: the same command again resumes where a checkpoint directory exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Train, or resume, and save the adapter and the losses."""
    from peft import LoraConfig, get_peft_model
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    base, rows, output, steps, every = sys.argv[1:6]
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    lora = LoraConfig(r=4, lora_alpha=32, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora)
    checkpoints = Path(output) / "checkpoints"
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(checkpoints),
            max_steps=int(steps),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            logging_steps=1,
            save_steps=int(every),
            save_total_limit=2,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=tokenised(Path(rows), tokenizer),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")) or None)
    model.save_pretrained(Path(output) / "adapter")
    losses = {line["step"]: line["loss"] for line in trainer.state.log_history if "loss" in line}
    (Path(output) / "losses.json").write_text(json.dumps(losses), encoding="utf-8")


def tokenised(rows: Path, tokenizer: Any) -> Any:
    """Each row as the tokens of its fields, one after the other."""
    read = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    return [dict(tokenizer("\n".join(row.values()) + tokenizer.eos_token)) for row in read]


if __name__ == "__main__":
    main()
