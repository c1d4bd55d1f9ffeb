"""The dtypes that really came out, read off the live model and optimiser, to be compared with the plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loradock.catalog import optimizers
from loradock.errors import EnvironmentUnfit
from loradock.model import reward_head
from loradock.model.adapters import trainable
from loradock.plan.plan import Plan

IN_PRODUCTS = "adapters in products"


def parts(model: Any, optimizer: Any) -> dict[str, str]:
    """What the peft backend computes with, part -> dtype, read off bitsandbytes' layers, the adapters and one forward.

    base (storage of the inner weights), other weights, compute, adapters, optimiser state, logits. A part of several
    dtypes lists them all, the most frequent first.
    """
    from bitsandbytes.nn import Linear4bit

    compute = Counter(short(layer.compute_dtype) for layer in model.modules() if isinstance(layer, Linear4bit))
    return {
        **stored(model),
        "compute": listed(compute or whole_weights(model)),
        "adapters": listed(Counter(short(p.dtype) for p in trainable(model))),
        "optimiser state": state_dtypes(optimizer),
        "logits": short(head_dtype(model)),
    }


def fast_parts(fast: Any, model: Any, optimizer: Any) -> dict[str, str]:
    """The same of the fast engine, whose FastModel `fast` computes with the weights of `model` without its code.

    Its products write the adapters' fresh gradient, so they have its dtype; they read a working copy of the adapters,
    which is one part more: "adapters in products". Nothing is computed to find out.
    """
    return {
        **stored(model),
        "compute": short(fast.adapters.fresh.dtype),
        "adapters": listed(Counter(short(p.dtype) for p in trainable(model))),
        IN_PRODUCTS: short(fast.adapters.working.dtype),
        "optimiser state": state_dtypes(optimizer),
        "logits": short(fast.head.weight.dtype),
    }


def stored(model: Any) -> dict[str, str]:
    """How the frozen weights lie in memory: base (inner weights) and other weights."""
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    quantised = Counter(
        f"{quant_type(layer)} in {short(layer.weight.dtype)}" if isinstance(layer, Linear4bit) else "int8"
        for layer in model.modules()
        if isinstance(layer, (Linear4bit, Linear8bitLt))
    )
    parameters = whole_weights(model)
    return {"base": listed(quantised or parameters), "other weights": listed(parameters)}


def quant_type(layer: Any) -> str:
    """nf4 or fp4, of a 4-bit layer. A sharded weight has lost its state, and the layer keeps it."""
    return (getattr(layer.weight, "quant_state", None) or layer.quant_state).quant_type


def whole_weights(model: Any) -> Counter[str]:
    """Dtypes of the frozen weights that are not quantised, but for a scalar head, of which PEFT keeps a copy."""
    head = reward_head.of(model)
    of_head = {id(parameter) for parameter in head.parameters()} if head else set[int]()
    parameters = (p for p in model.parameters() if id(p) not in of_head)
    return Counter(short(p.dtype) for p in parameters if not p.requires_grad and p.is_floating_point())


def state_dtypes(optimizer: Any) -> str:
    """Of the optimiser's tensors, its count of steps left out."""
    return listed(
        Counter(
            short(value.dtype)
            for values in optimizer.state.values()
            for key, value in values.items()
            if hasattr(value, "dtype") and key != "step"
        )
    )


def head_dtype(model: Any) -> Any:
    """The dtype in which the output head computes, seen at a forward of one token (no gradient, no random number)."""
    import torch

    dtypes: list[Any] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, __, out: dtypes.append(out.dtype))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(
                input_ids=torch.zeros((1, 1), dtype=torch.long, device=next(model.parameters()).device), use_cache=False
            )
    finally:
        hook.remove()
        model.train(was_training)
    return dtypes[0]


def short(dtype: Any) -> str:
    """torch.float32 -> float32."""
    return str(dtype).removeprefix("torch.")


def listed(counts: Counter[str]) -> str:
    """Distinct names, the most frequent first."""
    return ", ".join(name for name, _ in counts.most_common()) or "-"


def check(dtypes: dict[str, str], plan: Plan) -> None:
    """EnvironmentUnfit where a part came out in another dtype than the plan says."""
    expected = {"compute": plan.compute_dtype.value, "adapters": "float32"}
    if IN_PRODUCTS in dtypes:
        expected[IN_PRODUCTS] = plan.compute_dtype.value
    if optimizers.named(plan.optimizer.value).state_bits == optimizers.FLOAT32_BITS:
        expected["optimiser state"] = "float32"
    wrong = [f"{part} is {dtypes[part]}, not {dtype}" for part, dtype in expected.items() if dtypes[part] != dtype]
    if wrong:
        raise EnvironmentUnfit(
            f"the model did not come out as planned: {'; '.join(wrong)}",
            hint="scripts/run restores the locked packages; report this if it stays",
        )
