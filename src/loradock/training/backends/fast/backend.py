"""The fast backend: our own forward and backward over flat micro-batches, gradients in one buffer.

It reads the model, chooses what computes it, and holds it against PEFT before it trains.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed

from loradock.catalog import optimizers
from loradock.data.collate import MicroBatch
from loradock.distributed.stragglers import Pace
from loradock.model import dtypes, optimizer
from loradock.model.adapters import trainable
from loradock.plan.plan import Decision
from loradock.training.backends.base import Backend
from loradock.training.backends.fast import attention, rehearsal, self_check, vector_check
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.batch import FlatBatch, PooledBatch, Tokens
from loradock.training.backends.fast.families.base import decoder_of
from loradock.training.backends.fast.families.parts import Unfit
from loradock.training.backends.fast.graphs import graphs_of
from loradock.training.backends.fast.inputs import filled_up, flat_inputs, pooled_inputs, scored_inputs
from loradock.training.backends.fast.kernels import kernels_for
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.events import Decided, Emit
from loradock.training.expert_load import ExpertLoad
from loradock.training.job import Job, Unsound
from loradock.training.objectives.supervised import balancing_of
from loradock.training.passes import Embedded, MicroStep, Scored

AnyTokens = TypeVar("AnyTokens", bound=Tokens)
ForwardKept = Callable[[Any], tuple[torch.Tensor, Callable[[torch.Tensor], None]]]
CLIP_EPSILON = 1e-6
CPU_ELEMENTS_AT_ONCE = 1 << 16


class FastBackend(Backend):
    """Trains a `FastModel` over the job's model."""

    model: FastModel

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.found: tuple[Decision[Any], ...] = ()
        self.is_reported = False

    def prepare(self) -> tuple[str, ...]:
        """Read the model and hold it against PEFT. Unsound also where no family serves it."""
        self.model, self.found = made_ready(self.job)
        return ()

    def begin(self, job: Job, pace: Pace, emit: Emit) -> None:
        """The adapter from rank 0, in one buffer, and its optimiser."""
        if not self.found:
            self.prepare()
        if not self.is_reported:
            emit(Decided(decisions=self.found))
        self.is_reported = True
        self.job, self.pace, self.emit, model = job, pace, emit, self.model
        if job.world_size > 1:
            torch.distributed.broadcast(model.adapters.values, src=0)
        model.adapters.refresh()
        train = job.config.train
        self.device = model.adapters.values.device
        settings = optimizers.named(job.plan.optimizer.value).settings(train)
        groups, ratios = [trainable(job.model)], (1.0,)
        if train.loraplus_lr_ratio != 1:
            groups, ratios = optimizer.by_rate(job.model, groups[0]), optimizer.lr_ratios(train)
        self.optimizer = FlatAdamW(model.adapters, groups, lr_ratios=ratios, **settings)
        self.scaler = torch.amp.GradScaler(self.device.type) if model.dtype == torch.float16 else None
        self.shape = filled_up(job)
        self.graphs = graphs_of(model, emit) if job.plan.cuda_graphs.value else None
        self.grown = 1.0
        self.expert_load = model.balance.load = ExpertLoad.of(job.model)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Also into the flat buffer."""
        super().restore(checkpoint)
        self.model.adapters.refresh()

    def start(self, step: int) -> None:
        """Keep the weights dense that have room, and see that the longest step fits the GPU."""
        self.model.keep_dense(self.job.plan.cached_layers.value)
        if self.device.type == "cuda":
            self.emit(Decided(decisions=(rehearsal.found(self.model, self.job),)))

    def tensors(self, batch: MicroBatch) -> tuple[Tokens, int]:
        """Flat, without padding between rows."""
        if batch.purpose == "embed":
            return pooled_inputs(batch, embedding=self.job.config.embedding, **self.shape)
        if self.job.config.objective_spec.has_head:
            return scored_inputs(batch, **self.shape)
        return flat_inputs(batch, **self.shape)

    def begin_step(self) -> None:
        """The flat gradient is zero."""
        self.model.adapters.gradient.zero_()
        self.grown = self.scaler.scale(torch.ones((), device=self.device)).item() if self.scaler else 1.0

    def embed(self, batch: PooledBatch, *, at: MicroStep | None, keeps: bool) -> Embedded:
        """By documents end to end; dropout follows from step and token, so a second forward has the same."""
        vectors, backward = self.passed(self.model.vectors, self.model.vectors_kept, batch, at=at, keeps=keeps)
        return Embedded(vectors=vectors, backward=backward)

    def score(self, batch: FlatBatch, *, at: MicroStep | None, keeps: bool) -> Scored:
        """By documents end to end; dropout as that of `embed`."""
        sums, backward = self.passed(self.model.scores, self.model.scores_kept, batch, at=at, keeps=keeps)
        return Scored(log_probabilities=sums, backward=backward)

    def passed(
        self,
        forward: Callable[[Any], torch.Tensor],
        forward_kept: ForwardKept,
        batch: Tokens,
        *,
        at: MicroStep | None,
        keeps: bool,
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
        """What a forward pass makes of a micro-batch, and what runs backward from its gradient."""
        inputs = self.placed(batch, at)
        if keeps:
            with self.counting(inputs, is_training=at is not None):
                output, kept = forward_kept(inputs)
            return output, lambda gradient: kept(gradient * self.grown)

        def backward(gradient: torch.Tensor) -> None:
            _, again = forward_kept(inputs)
            again(gradient * self.grown)

        with self.counting(inputs, is_training=at is not None):
            return forward(inputs), backward

    def counting(self, inputs: Tokens, *, is_training: bool) -> AbstractContextManager[None]:
        """Inside, a forward pass over these inputs counts as load of a mixture's experts, where it trains."""
        return self.expert_load.counting(inputs.uses()) if self.expert_load and is_training else nullcontext()

    def reference_model(self) -> AbstractContextManager[None]:
        """With the working copy of all adapters at zero and of rows at the base's, or at what the run began with."""
        initial = self.job.initial
        begun = zip(trainable(self.job.model), initial, strict=True) if initial else self.model.initial_rows
        return self.model.adapters.standing_at(begun)

    def forward_backward(self, batch: FlatBatch, *, scale: float, at: MicroStep) -> torch.Tensor:
        """Into the flat gradient, times the loss scale of float16."""
        computing = self.model if self.graphs is None else self.graphs
        inputs = self.placed(batch, at)
        with self.counting(inputs, is_training=True):
            return computing.loss_and_gradients(inputs, scale=scale * self.grown) / self.grown

    def reduce_gradients(self) -> None:
        """One all-reduce of the flat buffer."""
        if self.job.world_size > 1:
            torch.distributed.all_reduce(self.model.adapters.gradient)

    def clip(self) -> torch.Tensor:
        """The norm of the gradient, which is cut to the largest allowed."""
        gradient = self.model.adapters.gradient
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        norm = norm_of(gradient)
        most = self.job.config.train.max_grad_norm
        if most:
            gradient.mul_((most / (norm + CLIP_EPSILON)).clamp(max=1.0))
        return norm

    def update(self) -> None:
        """The optimiser's step, and a fresh working copy."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.model.adapters.refresh()

    def loss_sum(self, batch: FlatBatch) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""
        return self.model.loss(self.placed(batch, None))

    def dtypes(self) -> dict[str, str]:
        """Those that really came out."""
        return dtypes.fast_parts(self.model, self.job.model, self.optimizer)

    def placed(self, batch: AnyTokens, at: MicroStep | None) -> AnyTokens:
        """A micro-batch on the device, with the dropout of its step; `at` None: without.

        The masks follow from run, step and token: neither micro-batches nor processes nor a resume change them.
        """
        return batch.to(self.device).masked_by(None if at is None else salt_of(self.job.config.train.seed, at.step))


def salt_of(seed: int, step: int) -> int:
    """A number of 64 bits, signed, for the dropout of a step."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64).view(np.int64)[0])


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """The 2-norm of a flat gradient, float32; on a CPU of its parts, then of those.

    There torch adds up in float32 one after another: 4e-5 off at 0.8 million weights, 0.3 % at 42 million.
    """
    if gradient.device.type != "cpu":
        return torch.linalg.vector_norm(gradient)
    parts = gradient.split(CPU_ELEMENTS_AT_ONCE)
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))


def made_ready(job: Job) -> tuple[FastModel, tuple[Decision[Any], ...]]:
    """The job's model as it will be trained, and what was decided and found. Unsound where it is not to be trained."""
    try:
        model, decisions = build(job)
    except Unfit as error:
        raise Unsound(f"the fast engine cannot train this model: {error}", hint="--set engine=peft") from error
    checks: list[Decision[Any]] = []
    if job.config.objective_spec.answers:
        found = self_check.check(model, job)
        checks.append(Decision(name="self-check", value="passed", why=str(found)))
    if job.config.objective_spec.embeds:
        found = vector_check.check_vectors(model, job)
        checks.append(Decision(name="self-check of vectors", value="passed", why=str(found)))
    if job.config.objective_spec.has_head:
        found = vector_check.check_scores(model, job)
        checks.append(Decision(name="self-check of scores", value="passed", why=str(found)))
    if torch.cuda.is_available():  # what the comparison took counts neither as the run's peak nor as its own
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return model, (*decisions, *checks)


def build(job: Job) -> tuple[FastModel, tuple[Decision[Any], ...]]:
    """The fast backend's view of the job's model, and what computes it. Unfit where no family serves it."""
    plan, asked, config = job.plan, job.config.model, decoder_of(job.model).config
    chosen: dict[int, tuple[Attention, str]] = {}
    device = next(job.model.parameters()).device
    dtype = getattr(torch, plan.compute_dtype.value)

    def attention_of(head_dim: int) -> Attention:
        if head_dim not in chosen:
            chosen[head_dim] = attention.choose(
                device=device.type,
                capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
                dtype=dtype,
                head_dim=head_dim,
                softcap=getattr(config, "attn_logit_softcapping", None),
                has_flash_attn=plan.attention.value == "flash_attention_2",
                asked="auto" if asked.attention == "eager" else asked.attention,  # eager is for the reference alone
            )
        return chosen[head_dim][0]

    kernels = kernels_for(device, plan.kernels.value)
    model = FastModel(
        job.model,
        positions=plan.data.limit_tokens,
        dtype=dtype,
        attention_of=attention_of,
        kernels=kernels,
        checkpointed=plan.checkpointed_layers.value,
    )
    model.balance.coefficient = balancing_of(job.model.get_base_model()) if model.has_experts else 0.0
    return model, tuple(
        Decision(
            name="attention over documents" + f", heads of {size}" * (len(chosen) > 1), value=backend.name, why=why
        )
        for size, (backend, why) in sorted(chosen.items())
    )
