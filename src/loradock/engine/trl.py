"""The reference engine: TRL's SFTTrainer, fed with our optimiser steps.

One item of the trainer's loader is one optimiser step (a list of micro-batches), so samples, their order and the
cursor are ours; `training_step` loops over the micro-batches and divides each loss by the supervised tokens of the
whole step, over all micro-batches and processes. DDP averages gradients, hence the factor `world_size`.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any

import datasets
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from loradock.directory import open_to_the_group
from loradock.engine import schedule
from loradock.engine.base import Dtypes, Emit, EvalResult, Job, Outcome, Saved, StepDone, StepResult
from loradock.engine.evaluation import evaluate
from loradock.engine.feed import evaluation_inputs, only_item, step_loader
from loradock.engine.meter import Meter
from loradock.errors import Diverged, OutOfMemory
from loradock.model import dtypes
from loradock.model.adapters import trainable

OPTIMIZERS = {
    "adamw_fused": "adamw_torch_fused",
    "adamw": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}


class TrlEngine:
    """Trains with `StepTrainer`."""

    name = "trl"

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`."""
        began = time.monotonic()
        torch.use_deterministic_algorithms(job.config.deterministic and job.plan.value("device") == "cuda")
        trainer = StepTrainer(job, emit)
        try:
            trainer.train(resume_from_checkpoint=str(job.resume_from) if job.resume_from else None)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"the GPU ran out of memory at step {trainer.state.global_step + 1} "
                f"(micro-batch {job.plan.value('micro_batch')})",
                hint=f"--set train.micro_batch={max(1, job.plan.value('micro_batch') // 2)} "
                "keeps the global batch, or --set train.checkpointing=true",
            ) from error
        return Outcome(
            steps=trainer.state.global_step,
            ended="early stop" if trainer.flow.stopped_early else "last step",
            seconds=time.monotonic() - began,
            best_step=trainer.state.best_global_step if job.config.checkpoints.keep_best else None,
        )


class StepTrainer(SFTTrainer):
    """An SFTTrainer whose batch is one of our optimiser steps."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.meter = Meter()
        self.flow = Flow(job, emit)
        self.reported_dtypes = False
        adapters = [(parameter, parameter.data) for parameter in trainable(job.model)]
        super().__init__(
            model=job.model,
            args=settings(job),
            train_dataset=datasets.Dataset.from_dict({"step": range(len(job.steps))}),
            data_collator=only_item,
            processing_class=job.tokenizer,
            callbacks=[self.flow],
        )
        for parameter, data in adapters:  # TRL casts adapters to bfloat16, where small updates vanish
            parameter.data = data
        self.remove_callback(PrinterCallback)

    def _send_telemetry(self) -> None:
        """Nothing is sent anywhere."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """The run writes one card, with its facts; checkpoints get none."""

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted here: the trainer's formula assumes full fine-tuning."""
        return 0

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule that every engine shares."""
        train = self.job.config.train
        shape = {"total_steps": num_training_steps, "warmup": train.warmup, "kind": train.schedule}
        target: Any = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(target, lambda step: schedule.factor(step, **shape))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """Optimiser steps in order."""
        return step_loader(self.job)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of every micro-batch; returns the step's loss a supervised token, in nats."""
        model.train()
        batches = inputs["micro_batches"]
        scale = self.job.world_size / max(1, inputs["supervised_tokens"])
        total = torch.zeros((), device=self.args.device)
        for index, tensors in enumerate(batches):
            is_last = index == len(batches) - 1
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                loss = self.loss_sum(model, tensors, share=1 / len(batches)) * scale
                self.accelerator.backward(loss)
            total += loss.detach()
        self.meter.add(**inputs["counts"])
        return total

    def loss_sum(self, model: Any, tensors: dict[str, torch.Tensor], *, share: float = 0.0) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""
        on_device = {key: value.to(self.args.device, non_blocking=True) for key, value in tensors.items()}
        out = model(**on_device, use_cache=False, fused_lm_head=True)
        loss = -out.log_probs.sum()
        if self.aux_loss_enabled and share:
            loss = loss + share * out.label_mask.sum() * self.router_aux_loss_coef * out.aux_loss
        return loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Loss over the validation part; the trainer's own would average batch means."""
        result: EvalResult = evaluate(
            self.model,
            evaluation_inputs(self.job),
            lambda tensors: self.loss_sum(self.model, tensors),
            step=self.state.global_step,
        )
        self.meter.pause(result.seconds)
        if not math.isfinite(result.loss):
            raise diverged(self.state.global_step, result.loss)
        self.emit(result)
        metrics = {"eval_loss": result.loss}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn the trainer's metric line into a StepResult; its end-of-run summary is ours to make."""
        if "learning_rate" not in logs:
            return
        step, meter = self.state.global_step, self.meter
        if not math.isfinite(logs["loss"]) or not math.isfinite(logs.get("grad_norm", 0.0)):
            raise diverged(step, logs["loss"])
        if not self.reported_dtypes:
            self.reported_dtypes = True
            found = dtypes.parts(self.model, self.optimizer)
            dtypes.check(found, self.job.plan)
            self.emit(Dtypes(found=found))
        self.emit(
            StepResult(
                step=step,
                epoch=step / self.job.steps.steps_per_epoch,
                loss=logs["loss"],
                learning_rate=logs["learning_rate"],
                grad_norm=logs.get("grad_norm", 0.0),
                tokens=meter.tokens,
                supervised_tokens=meter.supervised_tokens,
                padding_share=meter.padding_share(self.job.world_size),
                tokens_per_second=meter.tokens / meter.seconds,
                samples_per_second=meter.samples / meter.seconds,
                seconds=meter.seconds,
                memory_bytes=torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0,
            )
        )
        self.meter = Meter()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Also stop early: evaluations since the best one follow from the step numbers, so a resume keeps count."""
        is_best = super()._determine_best_metric(metrics, trial)
        patience, every = self.job.config.train.early_stopping, self.flow.cadence["evaluate"]
        if patience and self.state.global_step - (self.state.best_global_step or 0) >= patience * every:
            self.control.should_training_stop = self.control.should_save = self.flow.stopped_early = True
        return is_best

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, unless a weight is no longer finite."""
        began = time.monotonic()
        if not all(bool(torch.isfinite(parameter).all()) for parameter in trainable(self.model)):
            raise diverged(self.state.global_step, math.nan)
        super()._save_checkpoint(model, trial)
        if self.args.should_save:  # peft's empty card; the run writes one, with its facts
            checkpoint = self.job.directory / "checkpoints" / f"checkpoint-{self.state.global_step}"
            (checkpoint / "README.md").unlink(missing_ok=True)
            open_to_the_group(checkpoint)
        self.meter.pause(time.monotonic() - began)


class Flow(TrainerCallback):
    """When to log, evaluate, save and stop: the plan's cadence, and always at the last step."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.cadence = job.plan.value("cadence")
        self.stopped_early = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Set the flags of the step that ended."""
        step = state.global_step
        self.emit(StepDone(step=step))
        is_last = step >= len(self.job.steps)
        control.should_log = is_last or step == 1 or step % self.cadence["log"] == 0
        every = self.cadence["evaluate"] if self.job.evaluation is not None else 0
        control.should_evaluate = bool(every) and (is_last or step % every == 0)
        control.should_save = is_last or step % self.cadence["save"] == 0
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Report the checkpoint."""
        directory = self.job.directory / "checkpoints" / f"checkpoint-{state.global_step}"
        self.emit(Saved(step=state.global_step, directory=directory))
        return control


def diverged(step: int, loss: float) -> Diverged:
    """The error of a run whose loss, gradient or weights are no longer finite."""
    return Diverged(
        f"training diverged by step {step} (loss {loss})",
        hint="lower train.learning_rate, lengthen train.warmup, or set model.compute_dtype=bfloat16",
    )


def settings(job: Job) -> SFTConfig:
    """The trainer's arguments for this plan; data, logging and evaluation are ours, so most of it is switched off."""
    plan, train = job.plan, job.config.train
    dtype, steps = plan.value("compute_dtype"), len(job.steps)
    is_judged = job.config.checkpoints.keep_best or bool(train.early_stopping)
    return SFTConfig(
        output_dir=str(job.directory / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        optim=OPTIMIZERS[plan.value("optimizer")],
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        tf32=plan.value("tf32") or None,
        use_cpu=plan.value("device") == "cpu",
        gradient_checkpointing=plan.value("checkpointing"),
        gradient_checkpointing_kwargs={"use_reentrant": False},
        neftune_noise_alpha=train.neftune_alpha or None,
        torch_compile=plan.value("compile"),
        seed=train.seed,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="steps",
        save_steps=steps,
        save_total_limit=job.config.checkpoints.keep,
        metric_for_best_model="eval_loss" if is_judged else None,
        greater_is_better=False if is_judged else None,
        ddp_find_unused_parameters=False,
        ddp_backend=("gloo" if plan.value("device") == "cpu" else "nccl") if job.world_size > 1 else None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        max_length=None,
        packing=False,
        report_to="none",
        disable_tqdm=True,
    )
