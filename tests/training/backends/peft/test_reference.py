"""The peft backend takes the steps of TRL's SFTTrainer as it is, in float32, whatever the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from jobs import job_of, trained
from tiny import BASE, write_rows
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from loradock.model.adapters import trainable
from loradock.training.events import StepResult
from loradock.training.job import Job

ROWS, STEPS = 8, 20
RELATIVE = 1e-6
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_neox": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "starcoder2": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
    },
}


@pytest.fixture(params=SHAPES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, vocab_size=len(tokenizer), **SHAPES[request.param])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def of_trl(job: Job, folder: Path) -> list[float]:
    """The losses of TRL's trainer, given the model and the rows of the job's first step, as one batch."""
    rows = []
    for batch in job.steps[0].micro_batches:
        for ids, mask in ((ids.tolist(), mask.tolist()) for ids, mask in batch.samples()):
            labels = [token if learned else -100 for token, learned in zip(ids, mask, strict=True)]
            rows.append({"input_ids": ids, "labels": labels})
    fresh = [(each, each.data) for each in trainable(job.model)]
    train = job.config.train
    config = SFTConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        learning_rate=train.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        per_device_train_batch_size=len(rows),
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
        model=job.model, args=config, train_dataset=Dataset.from_list(rows), processing_class=job.tokenizer
    )
    for parameter, data in fresh:  # TRL casts the adapters of a quantised model to bfloat16
        parameter.data = data
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.thin(4)
def test_twenty_steps_are_those_of_the_unmodified_trainer(base: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", rows=ROWS)
    settings = (
        "engine=peft",
        f"train.max_steps={STEPS}",
        f"train.micro_batch={ROWS}",
        "train.packing=false",
        "train.schedule=constant",
        "train.warmup=0",
        "train.learning_rate=1e-3",
        "train.weight_decay=0.1",
        "lora.dropout=0",
        "logging.every=1",
    )
    ours, theirs = (job_of(tmp_path / name, *settings, model=base, data=data) for name in ("ours", "theirs"))
    _, events = trained(ours)
    found = [event.loss for event in events if isinstance(event, StepResult)]
    assert len(found) == STEPS
    assert found[-1] < found[0]
    assert found == pytest.approx(of_trl(theirs, tmp_path / "trl"), rel=RELATIVE)
