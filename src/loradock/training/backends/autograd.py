"""What the backends share that compute by autograd over the PEFT model: peft, fsdp and zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from loradock.data.collate import MicroBatch
from loradock.errors import ModelError
from loradock.model import dtypes
from loradock.model.adapters import trainable
from loradock.plan.plan import Decision
from loradock.training import packing_check
from loradock.training.backends.base import Backend
from loradock.training.checkpoint.state import RandomState
from loradock.training.expert_load import ExpertLoad, real_slots
from loradock.training.job import Job
from loradock.training.objectives.pooling import pooled
from loradock.training.passes import Embedded, MicroStep, Scored

Forward = Callable[[dict[str, torch.Tensor]], torch.Tensor]
PAD_TO = 8
"""Tensor cores want lengths in eights."""


class AutogradBackend(Backend):
    """A PEFT model's own forward under autocast, with the loss of the job's objective.

    `goes_on`: a run goes on after an error in a pass, with less memory. Else there is one attempt.
    """

    goes_on = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.is_put_in = False

    def put_in(self) -> None:
        """Give the model the objective's loss and gradient checkpointing; once, before anything of it is sharded."""
        if not self.is_put_in:
            self.job.objective.prepare(self.job.model)
            checkpoint_layers(self.job.model, self.job.plan.checkpointed_layers.value)
            load = ExpertLoad.of(self.job.model)
            self.expert_load = load and load.watch(self.job.model)
            self.is_put_in = True

    @property
    def computing(self) -> Any:
        """What computes a forward pass."""
        return self.job.model

    def tensors(self, batch: MicroBatch) -> tuple[dict[str, torch.Tensor], int]:
        """The model's inputs, and their slots."""
        return self.job.objective.tensors(
            batch,
            pad_token_id=self.job.tokenizer.pad_token_id,
            pad_to_multiple=PAD_TO if self.job.plan.device.value == "cuda" else 1,
        )

    def forward_backward(self, batch: dict[str, torch.Tensor], *, scale: float, at: MicroStep) -> torch.Tensor:
        """Forward and backward of one micro-batch; the gradients are added to the parameters'."""
        loss = self.loss(batch, is_training=True) * scale
        self.backward(loss, at=at)
        return loss.detach()

    def backward(self, loss: torch.Tensor, *, at: MicroStep) -> None:
        """Add the gradients of a loss that is scaled to the step."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def embed(self, batch: dict[str, torch.Tensor], *, at: MicroStep | None, keeps: bool) -> Embedded:
        """Outside of any packing: documents are padded. Of a model with a head: its scores, in place of vectors.

        Those are its own forward's, which `objectives.reward` puts in: what is cut is gathered there.
        """
        is_causal = self.job.config.embedding.attention == "causal"

        def forward(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            if self.job.config.objective_spec.has_head:
                return self.computing(**inputs)
            return pooled(self.job.model, inputs, is_causal=is_causal)

        vectors, backward = self.passed(forward, batch, at=at, keeps=keeps)
        return Embedded(vectors=vectors, backward=backward)

    def score(self, batch: dict[str, torch.Tensor], *, at: MicroStep | None, keeps: bool) -> Scored:
        """By the head that `objectives.supervised` puts in."""
        sums, backward = self.passed(lambda inputs: scores(self.computing, inputs), batch, at=at, keeps=keeps)
        return Scored(log_probabilities=sums, backward=backward)

    def passed(
        self,
        forward: Forward,
        batch: dict[str, torch.Tensor],
        *,
        at: MicroStep | None,
        keeps: bool,
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
        """What `forward` makes of a micro-batch, and what runs backward from its gradient.

        Unless it `keeps` activations, that makes a second forward, which draws the dropout that the first one drew.
        """
        on_device = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
        before = RandomState.now() if at and not keeps else None

        def backward(gradient: torch.Tensor) -> None:
            if before is None:
                output = first
            else:
                after = RandomState.now()
                before.restore()
                with self.autocast():
                    output = forward(on_device)
                after.restore()
            assert at is not None
            self.backward((output * gradient).sum(), at=at)

        with torch.set_grad_enabled(keeps), self.autocast(), self.counting(on_device, is_training=at is not None):
            first = forward(on_device)
        return first.detach(), backward

    @contextmanager
    def reference_model(self) -> Iterator[None]:
        """By PEFT's own switch, or with the first adapter's values in the place of the trained ones; no dropout."""
        model = self.job.model
        was_training, parameters = model.training, trainable(model)
        model.eval()
        try:
            if self.initial is None:
                with model.disable_adapter():
                    yield
                return
            present = self.exchanged(parameters, self.initial)
            try:
                yield
            except BaseException:
                if self.goes_on:
                    self.exchanged(parameters, present)
                raise
            self.exchanged(parameters, present)
        finally:
            model.train(was_training)

    @property
    def initial(self) -> Sequence[torch.Tensor] | None:
        """The adapter that the run began with, as `exchanged` takes it; None where it began with a new one."""
        return self.job.initial

    def exchanged(self, parameters: Sequence[Any], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Put values into the adapter's parameters; returns those that were there."""
        present = [parameter.data for parameter in parameters]
        for parameter, tensor in zip(parameters, values, strict=True):
            parameter.data = tensor
        return present

    def loss(self, batch: dict[str, torch.Tensor], *, is_training: bool) -> torch.Tensor:
        """The objective's loss of a micro-batch, in nats."""
        on_device = {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}
        with self.autocast(), self.counting(on_device, is_training=is_training):
            return self.job.objective.loss_sum(self.computing, on_device, is_training=is_training)

    def counting(self, batch: dict[str, torch.Tensor], *, is_training: bool) -> AbstractContextManager[None]:
        """Inside, a pass over this micro-batch counts as load of a mixture's experts, where it trains."""
        return self.expert_load.counting(real_slots(batch)) if self.expert_load and is_training else nullcontext()

    def loss_sum(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The same in an evaluation."""
        return self.loss(batch, is_training=False)

    def autocast(self) -> AbstractContextManager[Any]:
        """Products in the compute dtype; each adapter is used once a pass, so no cast copy of it is kept."""
        dtype = getattr(torch, self.job.plan.compute_dtype.value)
        if dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=False)

    def dtypes(self) -> dict[str, str]:
        """Those that really came out."""
        with self.autocast():
            return dtypes.parts(self.computing, self.optimizer)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Layers that are compiled run eagerly: they would be compiled once more, without gradients."""
        with torch.compiler.set_stance("force_eager"):
            yield


def scores(model: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The summed log-probabilities of each document's labelled tokens, float32 [documents], padded or packed."""
    of_tokens = model(**tensors, use_cache=False, fused_lm_head=True).log_probs.double()
    if "position_ids" not in tensors:
        return of_tokens.sum(dim=1).float()
    documents = (tensors["position_ids"][0] == 0).cumsum(0) - 1
    sums = torch.zeros(int(documents[-1]) + 1, dtype=torch.float64, device=of_tokens.device)
    return sums.index_add(0, documents[1:], of_tokens[0]).float()


def checked_vectors(job: Job) -> str | None:
    """That the model embeds by the attention that was asked for; a line to tell, None where nothing is embedded.

    Not every architecture takes it. Raises ModelError where the first token does not see what it should.
    """
    if not job.config.objective_spec.embeds:
        return None
    batch = job.steps[0].embedded[0]
    ids = next(torch.from_numpy(ids.astype("int64")) for ids, _ in batch.samples())[None]
    device, was_training = next(job.model.parameters()).device, job.model.training
    attention = job.config.embedding.attention
    first = torch.zeros(ids.shape)
    first[0, 0] = 1.0
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % job.plan.model.vocabulary
    job.model.eval()
    try:
        with torch.no_grad():
            states = [
                pooled(
                    job.model,
                    {
                        "input_ids": each.to(device),
                        "attention_mask": torch.ones_like(each).to(device),
                        "pooling": first.to(device),
                    },
                    is_causal=attention == "causal",
                )
                for each in (ids, other)
            ]
    finally:
        job.model.train(was_training)
    sees_ahead = not torch.equal(*states)
    if sees_ahead == (attention == "causal"):
        sees = "sees" if sees_ahead else "does not see"
        what = f"{job.plan.model.architecture} does not embed by {attention} attention: its first token {sees} the last"
        other_way = "bidirectional" if attention == "causal" else "causal"
        raise ModelError(what, hint=f"--set embedding.attention={other_way}, or another model")
    return f"vectors: attention is {attention}, as asked for"


def seed(job: Job) -> None:
    """Seed what dropout and noise draw from: each rank draws its own."""
    torch.manual_seed(job.config.train.seed + job.rank)


def checkpoint_layers(model: Any, count: int) -> None:
    """Gradient checkpointing (Chen et al. 2016) of the first `count` decoder layers. ModelError where it has none."""
    if not count:
        return
    whole = model.get_base_model()
    if not getattr(whole, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"{type(whole).__name__} does not support gradient checkpointing", hint="--set train.checkpointing=false"
        )
    whole.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    for layer in [module for module in whole.modules() if isinstance(module, GradientCheckpointingLayer)][count:]:
        layer.gradient_checkpointing = False


def checked_packing(job: Job, computing: Any) -> list[Decision[Any]]:
    """That packed documents do not see one another, where the plan packs. Raises ModelError where they do."""
    if not job.plan.packing.value or not job.steps[0].labelled:
        return []
    change = packing_check.of_job(job, computing)
    why = f"documents do not see one another: logits move by {change:.1e} of the largest"
    return [Decision(name="packing check", value="passed", why=why)]


def broadcast_adapter(job: Job) -> None:
    """Give every rank the adapter of rank 0."""
    if job.world_size > 1:
        parameters = trainable(job.model)
        values = torch.nn.utils.parameters_to_vector(parameter.data for parameter in parameters)
        torch.distributed.broadcast(values, src=0)
        torch.nn.utils.vector_to_parameters(values, parameters)
