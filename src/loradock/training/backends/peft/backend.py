"""TRL's SFTTrainer, whose batch is one of our optimiser steps.

One item of the trainer's loader is one optimiser step (a list of micro-batches), so samples, their order and the
cursor are ours; `training_step` loops over the micro-batches and divides each loss by the supervised tokens of the
whole step, over all micro-batches and processes. DDP averages gradients, hence the factor `world_size`. What is saved,
and how a run continues from it, is ours too (`training.saving`): the trainer is never told of a checkpoint.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import datasets
import torch
from transformers import PrinterCallback
from trl import SFTTrainer

from loradock import signals
from loradock.distributed import collectives
from loradock.distributed.stragglers import Pace
from loradock.model import dtypes
from loradock.model.adapters import trainable
from loradock.training import guards, schedule
from loradock.training.backends.trl.cadence import Cadence
from loradock.training.backends.trl.compilation import Backend, CompiledLayers
from loradock.training.backends.trl.inputs import evaluation_inputs, model_inputs
from loradock.training.backends.trl.settings import settings
from loradock.training.batches import StepLoader, only_item, step_loader
from loradock.training.cadence import Flow
from loradock.training.checkpoint import state
from loradock.training.checkpoint.state import RandomState, Stateful
from loradock.training.evaluation import evaluate
from loradock.training.job import (
    Doing,
    Dtypes,
    Emit,
    EvalResult,
    Job,
)
from loradock.training.meter import (
    DATA,
    OPTIMIZER,
    PASSES,
    Meter,
)
from loradock.training.recovery import StopNow
from loradock.training.saving import Saver


class StepTrainer(SFTTrainer):
    """An SFTTrainer whose batch is one of our optimiser steps. `backend` is the compiler's, where the plan compiles."""

    def __init__(self, job: Job, emit: Emit, saver: Saver, *, backend: Backend = "inductor") -> None:
        self.job = job
        self.emit = emit
        self.saver = saver
        self.meter = Meter()
        self.flow = Flow(job)
        self.loader: StepLoader | None = None
        self.step_loss: Any = 0.0
        self.updating_since = 0.0
        self.random_state = RandomState.now()
        self.reported_dtypes = False
        adapters = [(parameter, parameter.data) for parameter in trainable(job.model)]
        super().__init__(
            model=job.model,
            args=settings(job),
            train_dataset=datasets.Dataset.from_dict({"step": range(len(job.steps))}),
            data_collator=only_item,
            processing_class=job.tokenizer,
            callbacks=[Cadence(self.flow, emit)],
        )
        self.pace = Pace(self.args.device)
        for parameter, data in adapters:  # TRL casts adapters to bfloat16, where small updates vanish
            parameter.data = data
        self.remove_callback(PrinterCallback)
        self.compiled = CompiledLayers(job.model, mode=job.plan.compile.value, emit=emit, backend=backend)

    @property
    def step(self) -> int:
        """The last optimiser step that was completed."""
        return self.state.global_step

    def resume(self) -> None:
        """Take up the adapter of the checkpoint, where there is one, and hold the evaluation that it still owes."""
        checkpoint = self.job.resume
        if checkpoint is None:
            return
        state.restore_adapter(self.model, checkpoint)
        self.state.global_step = checkpoint.step
        if self.flow.resume(checkpoint, has_best=self.saver.has_best(checkpoint)):
            self.hold_owed_evaluation()

    def hold_owed_evaluation(self) -> None:
        """Evaluate what was saved and not evaluated before the run was cut off."""
        self._determine_best_metric(self.evaluate(), None)

    def let_go(self) -> None:
        """Take out of the model what the trainer's own end would have taken out, for another trainer to begin with."""
        if hook := getattr(self, "neftune_hook_handle", None):
            hook.remove()

    @property
    def computing(self) -> Any:
        """The model to call outside of a step."""
        return self.model

    def parts(self) -> Stateful:
        """What has a state of its own besides the adapter."""
        return {"optimizer": self.optimizer, "scaler": self.accelerator.scaler}

    def commit(self) -> None:
        """Save the last step that was completed."""
        self.meter.pause(self.saver.save(self.flow.progress(self.step), self.parts(), random_state=self.random_state))

    def poll(self) -> None:
        """A sign of life; and the end, where a signal came. Processes that train together end between steps."""
        self.job.watchdog.beat()
        if self.job.world_size == 1 and signals.requested():
            raise StopNow

    def poll_together(self) -> None:
        """The same in evaluation, where all processes take the same turns."""
        self.job.watchdog.beat()
        if collectives.any_of(bool(signals.requested())):
            raise StopNow

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """The trainer's own count, begun at the step that this run begins at."""
        step = self.state.global_step
        trained = super()._init_training_state(*args, **kwargs)
        self.state.global_step = step
        return trained

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Also take up optimiser, scaler and random state, and go on with the schedule."""
        prepared = super()._prepare_for_training(*args, **kwargs)
        self.after_preparing()
        if self.job.resume:
            state.restore(self.job.resume, self.parts(), rank=self.job.rank)
            schedule.continue_at(self.lr_scheduler, self.job.resume.step)
        self.random_state = RandomState.now()
        self.job.watchdog.beat("step")
        return prepared

    def after_preparing(self) -> None:
        """Model and optimiser are as they train, and hold what this attempt begins with."""

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
        self.loader = step_loader(self.job, model_inputs(self.job))
        return self.loader

    def close(self) -> None:
        """End the data workers, and leave the model as it was."""
        self.compiled.release()
        if self.loader is not None:
            self.loader.close()

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """What the loader has for the next step, once it is there."""
        with self.meter.spent(DATA):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of every micro-batch; returns the step's loss a supervised token, in nats."""
        model.train()
        batches = inputs["micro_batches"]
        scale = self.job.world_size / max(1, inputs["supervised_tokens"])
        total = torch.zeros((), device=self.args.device)
        with self.meter.spent(PASSES):
            for index, tensors in enumerate(batches):
                self.poll()
                with self.accumulating(model, is_last=index == len(batches) - 1):
                    with self.pace.own():  # the backward pass may wait for other processes, inside of DDP's hooks
                        loss = self.loss_sum(model, tensors, share=1 / len(batches)) * scale
                    self.backward(model, loss)
                total += loss.detach()
            self.end_passes(model)
        self.meter.add(**inputs["counts"])
        self.step_loss = total
        return total

    def accumulating(self, model: Any, *, is_last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch: processes exchange gradients with the last one."""
        return nullcontext() if is_last else self.accelerator.no_sync(model)

    def backward(self, model: Any, loss: torch.Tensor) -> None:
        """The gradient of a micro-batch."""
        self.accelerator.backward(loss)

    def end_passes(self, model: Any) -> None:
        """All micro-batches of a step are done."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Also the last look before the optimiser step."""
        with self.meter.spent(PASSES):
            norm = super()._get_grad_norm(model, grad_norm=grad_norm)
            scaler = self.accelerator.scaler
            scale = scaler.get_scale() if scaler is not None else None
            guards.check_step(self.step_loss, norm, step=self.state.global_step + 1, scale=scale)
            self.pace.settle()
        self.updating_since = time.monotonic()
        return norm

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
        self.emit(Doing(what="evaluating", step=self.state.global_step))
        with torch.compiler.set_stance("force_eager"):  # else every layer is compiled once more, without gradients
            result: EvalResult = evaluate(
                self.computing,
                evaluation_inputs(self.job),
                lambda tensors: self.loss_sum(self.computing, tensors),
                step=self.state.global_step,
                poll=self.poll_together,
            )
        self.meter.pause(result.seconds)
        if not math.isfinite(result.loss):
            raise guards.diverged(self.state.global_step, f"the evaluation loss is {result.loss}")
        self.emit(result)
        metrics = {"eval_loss": result.loss}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn the trainer's metric line into a StepResult; its end-of-run summary is ours to make."""
        if "learning_rate" not in logs:
            return
        began = time.monotonic()
        step, meter = self.state.global_step, self.meter
        if not self.reported_dtypes:
            self.reported_dtypes = True
            with torch.compiler.set_stance("force_eager"):
                found = dtypes.parts(self.computing, self.optimizer)
            dtypes.check(found, self.job.plan)
            self.emit(Dtypes(found=found))
        self.compiled.report()
        norm = logs.get("grad_norm", 0.0)
        line = meter.line(
            self.job,
            step,
            loss=logs["loss"],
            learning_rate=logs["learning_rate"],
            grad_norm=norm,
            passes_seconds=self.passes_seconds(),
        )
        self.emit(line)
        self.meter = Meter.after_line(began)

    def passes_seconds(self) -> float | None:
        """Since the last line, in the forward passes, where processes do not meet."""
        return self.pace.taken()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Our own judgement: whether to keep this step, and whether to go on."""
        is_kept = self.flow.judge(self.step, metrics["eval_loss"])
        self.control.should_save |= is_kept
        self.control.should_training_stop |= self.flow.ended is not None
        return is_kept

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """After a step: what the next one would draw from is known."""
        self.meter.add_spent(OPTIMIZER, since=self.updating_since)
        self.random_state = RandomState.now()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Our commit, in the place of the trainer's save."""
        self.commit()
