"""The base in memory: 4-bit (or 8-bit, or whole) weights on this process's own device, and proof that they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loradock.catalog.engines import MODES
from loradock.config.sections.model import ModelConfig
from loradock.errors import ModelError, OutOfMemory
from loradock.files.foreign import reading, said, unreadable
from loradock.model import added_error, architecture, dequantised, finite, made_dense, prequantised, spread
from loradock.model.patches import BUILDING, PATCHES
from loradock.model.shape import is_matrix

if TYPE_CHECKING:
    import torch

    from loradock.model.source import BaseModel
    from loradock.plan.plan import Plan


UNREACHED_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How far quantisation reached. Counts are weights; embeddings, head and norms are not expected to be reached.

    `stored_as`: how files hold the weights that were quantised a second time here, and `added_error` what that added
    (`model.added_error`).
    """

    quantised_weights: int
    all_weights: int
    other_bytes: int
    missed: tuple[str, ...]
    missed_weights: int
    added_error: float | None = None
    stored_as: str | None = None

    def __str__(self) -> str:
        moved = (
            f"; quantised twice: going on from {self.stored_as} moved weights by {self.added_error:.1%} of their size "
            "(root mean square)"
            if self.added_error is not None
            else ""
        )
        return (
            f"{self.quantised_weights:,} of {self.all_weights:,} weights are quantised; "
            f"the rest takes {self.other_bytes / 2**20:,.1f} MiB{moved}"
        )


def load(base: BaseModel, model_config: ModelConfig, *, plan: Plan, local_rank: int) -> tuple[Any, Coverage]:
    """Load the base as planned. Returns the frozen transformers model and what quantisation covers.

    Every process puts the whole model on its own GPU (a device map over GPUs would break DDP); under FSDP and ZeRO-3
    its part, and the weights are stand-ins until the engine has them (`model.spread`). Raises ModelError where
    files do not fit the config or quantisation covers less than asked, OutOfMemory where the GPU is full.
    """
    import torch

    torch.set_num_threads(plan.threads.value)
    dtype = getattr(torch, plan.compute_dtype.value)
    device = f"cuda:{local_rank}" if plan.device.value == "cuda" else "cpu"
    attention = plan.attention.value
    mode = MODES[plan.parallel.value]
    if not mode.cuts_weights:
        model = load_whole(base, model_config, dtype=dtype, device=device, attention=attention)
    else:
        with _refusals(base, device):
            model = spread.read(
                base,
                model_config,
                dtype=dtype,
                storage=torch.uint8 if mode.zero_stage else dtype,
                attention=attention,
                device=device,
                kept_on="cpu" if plan.cpu_offload.value else device,
            )
        _settle(model)
    covered = coverage(model)
    if form := made_dense.format_of(base.config):
        share = added_error.of(model, base)
        covered = replace(covered, added_error=share, stored_as=form.title if share is not None else None)
    check_asked(covered, model_config, base=base)
    dequantised.check(model)
    return model, covered


def load_whole(
    base: BaseModel, model_config: ModelConfig, *, dtype: torch.dtype | str, device: str, attention: str | None = None
) -> Any:
    """The whole frozen base on one device; `dtype` "auto": as its files are. Raises as `load` does.

    ModelError where a weight is not finite.
    """
    import torch

    finite.check(base.weight_files)
    is_packed = bool(prequantised.check(base.config, base.weight_files, model_config, directory=base.directory))
    hint = "do the weights belong to config.json?"
    with (
        _refusals(base, device),
        reading(base.directory, "does not load", hint=hint, passes=(torch.OutOfMemoryError,)),
        made_dense.reading(base.config, base.weight_files),
    ):
        model = architecture.loaded(
            base.directory,
            trust_remote_code=base.trust_remote_code,
            dtype=dtype,
            device_map={"": device},
            attn_implementation=attention,
            **_storage(base, model_config, dtype),
        )
    if is_packed and not isinstance(dtype, str):
        compute_in(model, dtype)
    _settle(model)
    return model


def _storage(base: BaseModel, model_config: ModelConfig, dtype: torch.dtype | str) -> dict[str, Any]:
    """What `architecture.loaded` is told of how weights are held, in the files and in memory."""
    if prequantised.is_nf4(base.config):
        return {"config": prequantised.computing_in(base.config, dtype)}
    asked = quantization(model_config, dtype)
    is_made_dense = made_dense.format_of(base.config) is not None
    config = prequantised.plain(base.config) if is_made_dense else base.config
    return {"config": config, "quantization_config": asked}


def compute_in(model: Any, dtype: torch.dtype) -> None:
    """Put a model that came in NF4 into a dtype: what its weights are dequantised to, and all that is in none.

    transformers leaves both as the files have them, whatever dtype it is asked for.
    """
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            weight: Any = module.weight
            weight.quant_state.dtype = dtype
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


@contextmanager
def _refusals(base: BaseModel, device: str) -> Iterator[None]:
    """Inside, a base is built; what keeps it from that is OutOfMemory or ModelError."""
    import torch

    for patch in BUILDING:
        patch(base.config)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"the base model does not fit on {device}", hint="free GPU memory, or use a smaller model or a larger GPU"
        ) from error
    except OSError as error:
        if error.errno:
            raise unreadable(error, error.filename or base.directory) from error
        raise _does_not_load(base, error) from error
    except (RuntimeError, ValueError) as error:
        raise _does_not_load(base, error) from error


def _does_not_load(base: BaseModel, error: Exception) -> ModelError:
    return ModelError(f"{base.directory} does not load: {said(error)}", hint="do the weights belong to config.json?")


def _settle(model: Any) -> None:
    """Freeze a model that was read, and put right what is wrong in it."""
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config.use_cache = False
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for patch in PATCHES:
        patch(model)


def quantization(model_config: ModelConfig, dtype: torch.dtype | str) -> Any:
    """The bitsandbytes configuration, or None for unquantised weights."""
    from transformers import BitsAndBytesConfig

    arguments = model_config.storage.arguments(double_quant=model_config.double_quant, dtype=dtype)
    return BitsAndBytesConfig(**arguments) if arguments else None


def coverage(model: Any) -> Coverage:
    """Count quantised weights by looking at the loaded layers themselves."""
    import torch
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    from loradock.model.experts import layout
    from loradock.model.experts.storage import NF4Experts

    vectors = {id(bias) for bias in layout.biases(model)}
    head = model.get_output_embeddings()
    quantised, other_bytes, total = 0, 0, 0
    missed: dict[str, int] = {}
    modules_seen: set[int] = set()
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in modules_seen:
                continue
            modules_seen.add(id(parameter))
            if isinstance(parameter, NF4Experts):
                total += parameter.numel()
                quantised += parameter.numel()
                continue
            is_quantised = isinstance(module, (Linear4bit, Linear8bitLt)) and key == "weight"
            state = getattr(parameter, "quant_state", None)
            count = state.shape.numel() if state is not None else parameter.numel()
            total += count
            if is_quantised and (state is not None or parameter.dtype == torch.int8):
                quantised += count
                continue
            other_bytes += parameter.numel() * parameter.element_size()
            is_inner = module is not head and not isinstance(module, torch.nn.Embedding)
            if is_matrix(parameter) and is_inner and id(parameter) not in vectors:
                missed[f"{name}.{key}"] = count
    return Coverage(
        quantised_weights=quantised,
        all_weights=total,
        other_bytes=other_bytes,
        missed=tuple(missed),
        missed_weights=sum(missed.values()),
    )


def check_asked(covered: Coverage, model_config: ModelConfig, *, base: BaseModel) -> None:
    """ModelError where quantisation was asked for and more than 1 % of the inner weights are still whole.

    Of a base that comes quantised: where other weights are in NF4 than in its files.
    """
    if prequantised.is_nf4(base.config):
        count = sum(weight.count for weight in prequantised.packed(base.weight_files).values())
        if covered.quantised_weights != count:
            raise ModelError(
                f"{base.directory} holds {count:,} weights in NF4, and {covered.quantised_weights:,} came to be in it",
                hint=prequantised.ORIGINAL,
            )
        return
    inner = covered.quantised_weights + covered.missed_weights
    if not model_config.storage.is_quantised or covered.missed_weights <= UNREACHED_SHARE * inner:
        return
    raise ModelError(
        f"{model_config.quantization} was requested, but {len(covered.missed)} weight(s) were not quantised: "
        f"{', '.join(covered.missed[:3])}{', ...' if len(covered.missed) > 3 else ''}",
        hint="--set model.quantization=none, if the GPU has the memory",
    )
