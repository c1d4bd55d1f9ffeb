"""What the arms on top of an SFTTrainer share: its arguments, rows in our order, counts and clock a step.

Nothing of a library is imported at the top: unsloth wants to be imported before all the others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.train.arms.base import LEARNING_RATE, SCHEDULE, Report, Task
from bench.train.rows import Rows

COUNTS = ("tokens", "supervised_tokens", "samples")


def dataset(task: Task) -> Any:
    """The rows in our order: ids and labels as we prepared them, or as text where the arm is to tokenise itself."""
    from datasets import Dataset, load_dataset

    if task.settings.get("reads") == "text":
        return load_dataset("json", data_files=str(Path(task.rows) / "ordered.jsonl"), split="train")
    return Dataset.from_dict(Rows.load(Path(task.rows) / "rows.npz").examples())


def arguments(task: Task, *, rows: Rows) -> dict[str, Any]:
    """The SFTConfig's values."""
    batch = task.settings.get("batch", "padded")
    on_card = task.device == "cuda"
    micro_batch = task.micro_batch(float(rows.lengths.mean()))
    values: dict[str, Any] = {
        "output_dir": str(Path(task.scratch) / "out"),
        "max_steps": task.steps,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": SCHEDULE,
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "seed": task.seed,
        "bf16": on_card,
        "use_cpu": not on_card,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": task.samples // micro_batch,
        "gradient_checkpointing": task.settings.get("checkpointing", True),
        "use_liger_kernel": task.settings.get("liger", False),
        "logging_steps": 1,
        "logging_strategy": "steps",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "max_length": None,
        "padding_free": batch == "padding-free",
        "dataloader_pin_memory": on_card,
    }
    if batch == "packing":
        packed = max(task.longest, min(task.budget_tokens, 4096))
        rows_a_step = -(-task.samples * float(rows.lengths.mean()) // packed)
        micro_batch = max(1, min(int(rows_a_step), task.budget_tokens // packed))
        return values | {
            "packing": True,
            "max_length": packed,
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": max(1, round(rows_a_step / micro_batch)),
        }
    if task.settings.get("reads") != "text":
        values["dataset_kwargs"] = {"skip_prepare_dataset": True}
    return values


def counted(base: type[Any]) -> type[Any]:
    """The trainer class `base` without a shuffle, with `counts`: tensors on the device, summed over a step."""
    from torch.utils.data import SequentialSampler

    class Counted(base):
        counts: Any = None

        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            seen = counts_of(inputs)
            self.counts = seen if self.counts is None else self.counts + seen
            return super().training_step(model, inputs, *args, **kwargs)

    return Counted


def counts_of(inputs: dict[str, Any]) -> Any:
    """Real tokens, supervised tokens and samples of a micro-batch, int64 [3] on its device; nothing is read back."""
    import torch

    ids, labels, mask = inputs["input_ids"], inputs["labels"], inputs.get("attention_mask")
    real = ids.new_tensor(ids.numel()) if mask is None else mask.sum()
    is_flat = len(ids) == 1
    if is_flat and "position_ids" in inputs:
        samples = (inputs["position_ids"] == 0).sum()
    elif is_flat and "packed_seq_lengths" in inputs:
        samples = ids.new_tensor(inputs["packed_seq_lengths"].numel())
    else:
        samples = ids.new_tensor(len(ids))
    return torch.stack([real, (labels != -100).sum(), samples])


def recorder(task: Task, report: Report) -> Any:
    """A callback that reports each step, synchronised with the device, and ends the training when the time is up."""
    import torch
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        trainer: Any = None
        at = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if task.device == "cuda":
                torch.cuda.synchronize()
            self.at = time.time()
            control.should_log = True
            control.should_training_stop = control.should_training_stop or task.is_over
            return control

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if not logs or "loss" not in logs:
                return
            seen = dict(zip(COUNTS, self.trainer.counts.tolist(), strict=True))
            self.trainer.counts = None
            report.step(state.global_step, at=self.at, loss=float(logs["loss"]), **seen)

    return Recorder()


def run(trainer_class: type[Any], model: Any, tokenizer: Any, *, config: Any, task: Task, report: Report) -> None:
    """Train, report each step, and what memory it took."""
    import torch

    from bench.floor.machine import stack

    callback = recorder(task, report)
    rows = dataset(task)
    trainer = counted(trainer_class)(
        model=model, args=config, train_dataset=rows, processing_class=tokenizer, callbacks=[callback]
    )
    callback.trainer = trainer
    trainer.train()
    reserved = torch.cuda.max_memory_reserved() if task.device == "cuda" else None
    dtypes = sorted({str(each.dtype) for each in model.parameters() if each.requires_grad})
    report.summary(
        peak_reserved_bytes=reserved,
        stack=stack(),
        adapter_dtypes=dtypes,
        micro_batch=config.per_device_train_batch_size,
        accumulation=config.gradient_accumulation_steps,
    )
