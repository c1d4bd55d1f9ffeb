"""What TRL's trainer is told of a job: the shape of its loop; data, logging, evaluation and saving are ours."""

from __future__ import annotations

from trl import SFTConfig

from loradock.training.backends.trl import zero
from loradock.training.job import Job

OPTIMIZERS = {
    "adamw_fused": "adamw_torch_fused",
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}


def settings(job: Job) -> SFTConfig:
    """The trainer's arguments for this plan; data, logging and evaluation are ours, so most of it is switched off."""
    plan, train = job.plan, job.config.train
    dtype, steps = plan.compute_dtype.value, len(job.steps)
    sharding = zero.settings(job)
    return SFTConfig(
        output_dir=str(job.directory / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        optim=OPTIMIZERS[plan.optimizer.value],
        bf16=dtype == "bfloat16" and sharding is None,  # else DeepSpeed would copy the adapters to 16 bits
        fp16=dtype == "float16",
        deepspeed=sharding,
        tf32=plan.tf32.value or None,
        use_cpu=plan.device.value == "cpu",
        gradient_checkpointing=plan.checkpointing.value,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        neftune_noise_alpha=train.neftune_alpha or None,
        seed=train.seed,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="steps",
        save_steps=steps,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,  # they are constants; sending them would make each forward pass wait for rank 0
        ddp_backend=("gloo" if plan.device.value == "cpu" else "nccl") if job.world_size > 1 else None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        max_length=None,
        packing=False,
        report_to="none",
        disable_tqdm=True,
    )
