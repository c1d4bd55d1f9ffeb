"""What TRL and PEFT compute by themselves, in a process without loradock: losses as JSON.

    python reference.py train BASE ROWS STEPS       each step's loss of TRL's SFTTrainer, all rows a step
    python reference.py loss BASE ROWS ADAPTER      the mean loss of the supervised tokens, by PEFT with that adapter

Rows are `instruction` and `output`, through the tokenizer's chat template; an answer and the token that ends its turn
are learned.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, set_seed

NOT_LEARNED = -100


def examples(base: str, rows: str) -> list[dict[str, list[int]]]:
    """`input_ids` and `labels` of each row, from three texts that are tokenised apart."""
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    found = []
    for line in Path(rows).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        asked = [{"role": "user", "content": row["instruction"]}]
        answered = [*asked, {"role": "assistant", "content": row["output"]}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template(answered, tokenize=False)
        answer = row["output"] + tokenizer.eos_token
        texts = (prompt, answer, whole.removeprefix(prompt + answer))
        parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        assert whole == "".join(texts)
        labels = [NOT_LEARNED] * len(parts[0]) + parts[1] + [NOT_LEARNED] * len(parts[2])
        ids = [*parts[0], *parts[1], *parts[2]]
        assert ids == tokenizer(whole, add_special_tokens=False)["input_ids"]
        found.append({"input_ids": ids, "labels": labels})
    return found


def quantised(base: str) -> Any:
    """The base in NF4 with double quantisation, computing in float32."""
    bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model: Any = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=bits, dtype=torch.float32, device_map={"": "cpu"}
    )
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # else some CPUs compute in bfloat16
    return model


def train(base: str, rows: str, steps: str) -> list[float]:
    """TRL's trainer with our defaults; its adapter is put back to float32 after TRL's cast to bfloat16."""
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    data = Dataset.from_list(examples(base, rows))
    model = quantised(base)
    set_seed(0)
    model = get_peft_model(
        model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    fresh = {name: each.detach().clone() for name, each in model.named_parameters() if each.requires_grad}
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            max_steps=int(steps),
            learning_rate=2e-4,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            weight_decay=0.0,
            max_grad_norm=1.0,
            per_device_train_batch_size=len(data),
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            dataloader_pin_memory=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SFTTrainer(
            model=model, args=config, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(base)
        )
        for name, each in model.named_parameters():
            if each.requires_grad:
                each.data = fresh[name]
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def loss(base: str, rows: str, adapter: str) -> float:
    """Each row alone, summed in float64."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(quantised(base), adapter).eval()
    total, count = 0.0, 0
    for row in examples(base, rows):
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].double()
        total += float(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum"))
        count += int((labels != NOT_LEARNED).sum())
    return total / count


if __name__ == "__main__":
    output = sys.stdout
    sys.stdout = sys.stderr  # where the trainer prints its log
    kind, *arguments = sys.argv[1:]
    print(json.dumps({"train": train, "loss": loss}[kind](*arguments)), file=output)
