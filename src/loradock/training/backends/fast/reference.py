"""What the fast engine is held against: the PeftModel itself, by autograd, in the run's dtype or in float32.

A 7B model in float32 has 28 GB. So what is frozen stays as it lies in memory, and is made float32 for the time of a
product, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from loradock.data.collate import Array
from loradock.model.experts import forward, layout, peft_layers
from loradock.model.experts.storage import NF4Experts

NOT_LEARNED = -100
ROWS_AT_ONCE = 16_384
"""Of a whole matrix, as an output head is one: 256 MiB in float32 at a width of 4 096."""


def loss_and_gradient(
    model: Any, rows: Sequence[Array], parameters: Sequence[torch.nn.Parameter], *, balancing: float = 0.0
) -> tuple[float, torch.Tensor]:
    """The summed loss of the rows, each alone, in nats, and its flat float32 gradient; in evaluation mode.

    What fills up the shorter ones stands behind them, where no token sees it, and is not learned. `balancing`: the
    coefficient of a mixture's balancing loss over all rows, which is added for each learned token.
    """
    device = parameters[0].device
    tokens = pad_sequence([torch.from_numpy(row.astype("int64")) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    targets = tokens[:, 1:].masked_fill(torch.arange(1, tokens.shape[1]) >= lengths[:, None], NOT_LEARNED).to(device)
    was_training = model.training
    model.eval()
    try:
        filled = torch.arange(tokens.shape[1]) < lengths[:, None]
        more = {"attention_mask": filled.to(device), "output_router_logits": True} if balancing else {}
        out = model(input_ids=tokens.to(device), use_cache=False, **more)
        logits = out.logits[:, :-1].float()
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=NOT_LEARNED
        )
        if balancing:
            loss = loss + balancing * int((lengths - 1).sum()) * out.aux_loss
        loss.backward()
    finally:
        model.train(was_training)
    parts = [parameter.grad if parameter.grad is not None else torch.zeros_like(parameter) for parameter in parameters]
    for each in parameters:
        each.grad = None
    return loss.item(), torch.cat([part.float().flatten() for part in parts])


@contextmanager
def choices(model: Any) -> Iterator[list[torch.Tensor]]:
    """Inside, the experts that the routers choose are noted: int64 [tokens, K] for each layer of each pass."""
    experts: list[torch.Tensor] = []

    def note(_: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        experts.append(options["top_k_index"] if "top_k_index" in options else arguments[1])

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for _, module in layout.modules(model)]
    try:
        yield experts
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Inside, the PeftModel computes in float32, with the values that its weights have.

    Products of NF4 layers by bitsandbytes' own compute dtype, those of whole layers in `Product`. FlashAttention has no
    float32; eager attention stands in for it.
    """
    base = model.get_base_model()
    config = base.get_decoder().config
    undone: list[Callable[[], object]] = [partial(setattr, config, "_attn_implementation", config._attn_implementation)]
    if "flash" in config._attn_implementation:
        config._attn_implementation = "eager"
    for module in base.modules():
        if isinstance(module, Linear4bit):
            undone.append(quantised_in_float32(module))
        elif layout.is_served(module):
            undone += experts_in_float32(module)
        elif isinstance(module, TrainableTokensLayer):
            module.forward = partial(rows_in_float32, module)
            undone.append(partial(delattr, module, "forward"))
        elif isinstance(module, torch.nn.Embedding):
            undone.append(module.register_forward_hook(embedded).remove)
        elif is_router(module) or isinstance(module, torch.nn.Conv1d):
            undone += [in_float32_meanwhile(each) for each in module.parameters(recurse=False)]
        elif isinstance(module, torch.nn.Linear) and module.weight.dtype != torch.float32:
            module.forward = partial(product, module)  # pyright: ignore[reportAttributeAccessIssue]
            undone.append(partial(delattr, module, "forward"))
    allows_tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allows_tf32
        for undo in undone:
            undo()


def quantised_in_float32(module: Any) -> Callable[[], None]:
    """Let a Linear4bit dequantise and multiply in float32; what puts it back. bitsandbytes casts a bias in place."""
    state, bias = module.weight.quant_state, module.bias
    before = module.compute_dtype, state.dtype, bias.data if bias is not None else None
    module.compute_dtype = state.dtype = torch.float32

    def undo() -> None:
        module.compute_dtype, state.dtype, values = before
        if bias is not None:
            bias.data = values

    return undo


def experts_in_float32(module: Any) -> list[Callable[[], object]]:
    """Let a layer's experts be multiplied in float32, one expert's matrix at a time; what puts it back."""
    undone: list[Callable[[], object]] = [partial(setattr, module, "config", module.config)]
    module.config = copy(module.config)  # all layers share it
    forward.put_into(module)
    peft_layers.install()
    for key in layout.keys(module):
        weights = getattr(module, key)
        if isinstance(weights, NF4Experts):
            values = NF4Experts.of_parts(weights.parts, shape=weights.shape, dtype=torch.float32)
            setattr(module, key, torch.nn.Parameter(values, requires_grad=False))
            undone.append(partial(setattr, module, key, weights))
    return undone


def is_router(module: Any) -> bool:
    """Whether a module that is no layer of torch's has a matrix: in a decoder that is served, a router alone does.

    Or is a linear layer that answers with more than its product.
    """
    weight = dict(module.named_parameters(recurse=False)).get("weight")  # PEFT's layers show that of their base, too
    is_torchs = isinstance(module, (torch.nn.Linear, torch.nn.Embedding)) and not layout.is_deciding(module)
    return weight is not None and weight.dim() == 2 and not is_torchs


def in_float32_meanwhile(parameter: Any) -> Callable[[], object]:
    """Let a router's matrix or bias, or a convolution's, be of float32; what puts it back."""
    undo = partial(setattr, parameter, "data", parameter.data)
    parameter.data = parameter.data.float()
    return undo


def embedded(module: Any, arguments: tuple[Any, ...], _: torch.Tensor) -> torch.Tensor:
    """A hook of an embedding: its rows in float32. Gemma's has a scale, which it rounds to its own dtype."""
    rows = functional.embedding(arguments[0], module.weight).float()
    scale = getattr(module, "embed_scale", None)
    return rows if scale is None else rows * scale.to(module.weight.dtype)


def rows_in_float32(module: Any, x: torch.Tensor) -> torch.Tensor:
    """In the place of PEFT's forward of an embedding or a head with rows of its own, which it rounds to the base's."""
    (name,) = module.active_adapters
    rows, base = module.trainable_tokens_delta[name].float(), module.base_layer
    places = torch.tensor(module.token_indices[name], device=x.device)
    if isinstance(base, torch.nn.Linear):
        return product(base, x).index_copy(-1, places, x @ rows.t())
    is_row = x[..., None] == places
    scale = module._get_embed_scale()
    new_states = rows[is_row.int().argmax(-1)] * (1.0 if scale is None else scale.to(base.weight.dtype).float())
    return torch.where(is_row.any(-1, keepdim=True), new_states, embedded(base, (x,), x))


def product(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """In the place of a whole layer's forward."""
    y: Any = Product.apply(x, module.weight)
    return y if module.bias is None else y + module.bias


class Product(torch.autograd.Function):
    """x W^T for a frozen W of another dtype, a few rows of it at a time, of which none is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [..., in], weight [out, in] -> [..., out]."""
        ctx.weight = weight
        return torch.cat([x @ part.to(x.dtype).t() for part in weight.split(ROWS_AT_ONCE)], -1)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradient to x alone."""
        parts = zip(dy.split(ROWS_AT_ONCE, -1), ctx.weight.split(ROWS_AT_ONCE), strict=True)
        return sum(part @ weight.to(dy.dtype) for part, weight in parts), None  # pyright: ignore[reportReturnType]
