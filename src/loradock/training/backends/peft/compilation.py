"""torch.compile over the decoder layers of a loaded model, in place, with a way back to eager.

Each layer is compiled for itself, whatever the number of processes: over NF4 weights and peft's adapters a layer of
transformers 5 is one graph (it holds gradient checkpointing, too), while the model as a whole breaks at its generators
and context managers. All layers share one compiled graph, or two where the first one's input needs no gradient.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.config
import torch._functorch.config
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._dynamo.utils import counters, get_compilation_metrics
from torch._inductor import list_mode_options
from transformers.modeling_layers import GradientCheckpointingLayer

from loradock.plan.knobs.compile import OFF
from loradock.plan.plan import Decision
from loradock.text.terminal import first_line
from loradock.training.events import Decided, Emit

TORCH_MODES = {
    "default": "default",
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""Ours -> torch's. Tuning goes without CUDA graphs, which every new length of a micro-batch would record again."""

Compiler = str | Callable[..., Any]
"""What torch.compile hands graphs to."""


class CompiledLayers:
    """The decoder layers of a model with their forward compiled; parameters and modules keep their names.

    Layers are compiled when they are first called. Where that fails, forward or backward, all of them go back to eager,
    the reason is emitted, and the call goes on: nothing has been computed or drawn by then.
    """

    def __init__(self, model: Any, *, mode: str, emit: Emit, backend: Compiler = "inductor") -> None:
        """`mode`: a value of `train.compile`."""
        self.emit = emit
        self.layers: list[Any] = []
        self.config = ExitStack()
        self.told: Decision[Any] | None = None
        self.before = Count.now()
        if mode != OFF:
            self.layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
            self.compile(mode, backend)

    def compile(self, mode: str, backend: Compiler) -> None:
        """Put the compiled forwards in."""
        if not self.layers:
            self.tell(Decision(name="compile", value=OFF, why="the model has no layers of the kind that is compiled"))
            return
        # DDP's optimiser would cut a layer at its buckets, and cannot where it holds checkpointing; a backward that
        # does not compile has to fail while the forward can still be made anew.
        self.config.enter_context(torch._dynamo.config.patch(optimize_ddp=False))
        self.config.enter_context(torch._functorch.config.patch(force_non_lazy_backward_lowering=True))
        given = options(mode) if backend == "inductor" else None
        for layer in self.layers:
            eager = layer.forward
            compiled = torch.compile(eager, backend=backend, dynamic=mode != "reduce-overhead", options=given)
            layer.forward = self.guarded(compiled, eager)

    def guarded(self, compiled: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled forward of a layer, or the eager one from the first failure on."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.layers:
                return eager(*args, **kwargs)
            try:
                return compiled(*args, **kwargs)
            except TorchDynamoException as error:
                self.release()
                why = f"compiling failed, so the layers run eagerly: {cause(error)}"
                self.tell(Decision(name="compile", value=OFF, why=why))
            return eager(*args, **kwargs)

        return forward

    def report(self) -> None:
        """Emit how many graphs there are, where they break and why they were made again, if that is news."""
        if self.layers:
            self.tell(Count.now().since(self.before, layers=len(self.layers)))

    def tell(self, decision: Decision[Any]) -> None:
        """Emit a decision once."""
        if decision != self.told:
            self.told = decision
            self.emit(Decided(decisions=(decision,)))

    def release(self) -> None:
        """Put the eager forwards back."""
        for layer in self.layers:
            del layer.forward
        self.layers = []
        self.config.close()


@dataclass(frozen=True, kw_only=True)
class Count:
    """What the compiler has done in this process, as torch counts it. `micros` is a moment, in microseconds."""

    graphs: int
    breaks: Counter[str]
    micros: int

    @classmethod
    def now(cls) -> Count:
        """The present count."""
        graphs = counters["stats"]["unique_graphs"]
        return cls(graphs=graphs, breaks=Counter(counters["graph_break"]), micros=time.time_ns() // 1000)

    def since(self, before: Count, *, layers: int) -> Decision[Any]:
        """What came in between, as a decision whose reason holds the last graph break and the last recompile."""
        breaks = self.breaks - before.breaks
        made = [
            compilation_metric
            for compilation_metric in get_compilation_metrics()
            if (compilation_metric.start_time_us or 0) >= before.micros
        ]
        reasons = [each.recompile_reason for each in made if each.recompile_reason]
        value = {
            "graphs": self.graphs - before.graphs,
            "graph_breaks": breaks.total(),
            "recompiles": len(reasons),
        }
        seconds = sum(each.duration_us or 0 for each in made) / 1e6
        why = f"{layers} layers, one like the other, compiled in {seconds:.0f} s"
        if breaks:
            why += f"; a break: {first_line(list(breaks)[-1])}"
        if reasons:
            why += f"; the last recompile: {first_line(reasons[-1])}"
        if len(reasons) >= torch._dynamo.config.recompile_limit:
            why += "; what comes beyond the compiler's limit runs eagerly"
        return Decision(name="compiled graphs", value=value, why=why)


def options(mode: str) -> dict[str, Any]:
    """Inductor's options for a mode of ours; dropout draws what it draws in eager mode."""
    return {**list_mode_options(TORCH_MODES[mode]), "fallback_random": True}


def cause(error: TorchDynamoException) -> str:
    """What a compilation failed of: the backend's own error where it was that."""
    inner = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
    return f"{type(inner).__name__}: {first_line(inner)}"
