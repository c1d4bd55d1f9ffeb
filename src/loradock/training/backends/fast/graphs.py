"""Micro-steps as CUDA graphs: hundreds of launches become one, so that a small model does not wait for the host.

A graph is captured for each shape of a micro-batch when the shape comes up for the second time, and is only used after
its loss and gradient were compared with those of the ordinary way. Whatever goes wrong ends the attempt for the whole
run, which goes on the ordinary way, and is reported. What a replay reads lies in static buffers, which are filled
before it; the gradient is added to the adapters' own buffer, as always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from loradock.plan.context import Decision
from loradock.text.terminal import first_line
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.layer import Attending
from loradock.training.backends.fast.model import FastModel
from loradock.training.events import Decided, Emit

MOST_SHAPES = 16
"""Shapes beyond these go the ordinary way: each graph keeps buffers of its own."""
TOLERANCE = 1e-2
"""Of the gradient's norm and of the loss: attention's backward on a GPU adds up in no fixed order."""

Step = Callable[[], torch.Tensor]
Capture = Callable[[Step], tuple[Callable[[], None], torch.Tensor]]
"""Runs a step so that it can be repeated: (repeat it, where its result lies)."""
Shape = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A captured micro-step: its static inputs, how to repeat it, and where its loss lies."""

    inputs: FlatBatch
    again: Callable[[], None]
    loss: torch.Tensor

    def replay(self, batch: FlatBatch, *, scale: float) -> torch.Tensor:
        """The micro-step of this batch; a copy of its loss."""
        fill(self.inputs, batch, scale=scale)
        self.again()
        return self.loss.clone()


class Graphs:
    """`loss_and_gradients` of a FastModel, replayed where a graph of the batch's shape was captured.

    `on_failure` is told once why graphs are no longer used.
    """

    def __init__(self, model: FastModel, *, capture: Capture, on_failure: Callable[[str], None]) -> None:
        self.model = model
        self.capture = capture
        self.on_failure = on_failure
        self.seen: set[Shape] = set()
        self.graphs: dict[Shape, Graph] = {}
        self.has_failed = False

    def loss_and_gradients(self, batch: FlatBatch, *, scale: float) -> torch.Tensor:
        """See `FastModel.loss_and_gradients`."""
        shape = (batch.tokens, batch.rows.numel(), batch.documents.cu_seqlens.numel())
        if shape in self.graphs:
            return self.graphs[shape].replay(batch, scale=scale)
        if self.has_failed or shape not in self.seen or len(self.graphs) >= MOST_SHAPES:
            self.seen.add(shape)
            return self.model.loss_and_gradients(batch, scale=scale)
        return self._first(shape, batch, scale=scale)

    def _first(self, shape: Shape, batch: FlatBatch, *, scale: float) -> torch.Tensor:
        """The ordinary way once more, then the capture, held against it."""
        gradient = self.model.adapters.gradient
        before = gradient.clone()
        loss = self.model.loss_and_gradients(batch, scale=scale)
        expected = gradient.clone()
        try:
            graph = self._captured(batch)
            gradient.copy_(before)
            found = graph.replay(batch, scale=scale)
            far = (gradient - expected).norm() / (expected - before).norm().clamp(min=1e-12)
            if not (far <= TOLERANCE and (found - loss).abs() <= TOLERANCE * loss.abs()):
                raise RuntimeError(f"its gradient differs by {float(far):.1e} from that of the ordinary way")
            self.graphs[shape] = graph
        except RuntimeError as error:
            self.has_failed = True
            self.graphs.clear()
            self.on_failure(first_line(error))
        gradient.copy_(expected)
        return loss

    def _captured(self, batch: FlatBatch) -> Graph:
        documents = replace(batch.documents, cu_seqlens=batch.documents.cu_seqlens.clone())
        inputs = FlatBatch(**{name: each.clone() for name, each in batch.tensors().items()}, documents=documents)
        again, loss = self.capture(lambda: self.model.loss_and_gradients(inputs, scale=1.0))
        return Graph(inputs=inputs, again=again, loss=loss)


def fill(inputs: FlatBatch, batch: FlatBatch, *, scale: float) -> None:
    """Write a batch into static inputs of its shape; the scale goes into the weights of the positions."""
    given = batch.tensors()
    for name, each in inputs.tensors().items():
        each.copy_(given[name])
    inputs.weights.mul_(scale)
    inputs.documents.cu_seqlens.copy_(batch.documents.cu_seqlens)


def cuda_capture() -> Capture:
    """Captures into CUDA graphs that share one pool of memory: one of them runs at a time.

    Where a capture fails, torch ends it half: its stream stays the current one, and the generators stay in the
    capture's mode, in which the next dropout fails. Both are as they were before once the error is out.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step) -> tuple[Callable[[], None], torch.Tensor]:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        mode = "thread_local"  # a loader pins memory meanwhile
        try:
            with torch.cuda.stream(before), torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
                loss = step()
        except RuntimeError:
            for generator in torch.cuda.default_generators:
                generator.graphsafe_set_state(generator.clone_state())
            raise
        return graph.replay, loss

    return capture


def graphs_of(model: FastModel, emit: Emit) -> Graphs | None:
    """Graphs of the model's micro-steps, or None; why there are none, or no longer any, is told."""

    def told(why: str) -> None:
        emit(Decided(decisions=(Decision(name="cuda_graphs", value=False, why=why),)))

    if not model.is_static:
        layer = next(each for each in model.layers if not each.is_static)
        kind = f"{layer.mixer.attention.name} attention" if isinstance(layer.mixer, Attending) else "recurrent layers"
        told(f"the launches of {kind} follow the documents")
        return None
    return Graphs(model, capture=cuda_capture(), on_failure=lambda why: told(f"a capture failed: {why}"))
