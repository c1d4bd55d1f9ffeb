"""aten's operators: the CUDA kernel runs for its checks, allocations and launches, the CPU's gives the numbers."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections import Counter
from typing import Any

import torch
from torch.utils._pytree import tree_map

from gpu_on_cpu.attention import SPECIAL
from gpu_on_cpu.capture import is_capturing, record
from gpu_on_cpu.memory import flat_tensors, on_cpu
from gpu_on_cpu.native import COMPUTES, native_code, warn

LEFT_ALONE = set(
    "empty.memory_format empty_strided resize_ set_ set_.source_Storage set_.source_Storage_storage_offset "
    "set_.source_Tensor set_.source_Tensor_storage_offset view as_strided _reshape_alias unfold _local_scalar_dense "
    "record_stream _pin_memory is_pinned is_set_to _fused_sdp_choice view_as_real view_as_complex _efficientzerotensor "
    "_cudnn_init_dropout_state _nested_from_padded _to_sparse _nested_tensor_from_mask narrow_copy resize_.symint "
    "copy_sparse_to_sparse_ _has_same_storage_numel alias _coalesce _assert_async _assert_async.msg".split()
)
"""Operators without numbers of their own: they make or look at memory."""
WITHOUT_NATIVE = re.compile(
    r"aten::(nonzero|nonzero_static|masked_select|unique|_unique|unique_dim|unique_consecutive|_unique2"
    r"|repeat_interleave|bincount|histc|multinomial|randperm|_linalg|linalg|_fft|convolution|cudnn|miopen|_cudnn|_conv"
    r"|_assert|_embedding_bag|_scaled_mm|_grouped_mm|sort|argsort|topk|kthvalue|median|mode|cumsum|cumprod|_cum"
    r"|index_put|_index_put|embedding_dense_backward|_scaled_dot_product_cudnn|pow\.Scalar)"
)
"""Whose CUDA code computes on the host from what a kernel gave, or calls libraries that want a driver of their own."""
MIXING = tuple(
    f"aten::{name}"
    for name in "index _index_put _unsafe_index copy_ _foreach _fused _amp where _copy_from".split()
)  # fmt: skip
"""Operators that take tensors of several devices."""
FINDS_NAN = os.environ.get("FAKEGPU_NAN") == "1"
MOST_NANS_TOLD = 5
LIBRARIES: list[Any] = []
RUN: Counter[str] = Counter()
"""Operators that ran, by name."""


def install() -> None:
    """Put the CPU's kernels behind those for CUDA."""
    if LIBRARIES:
        return
    library = torch.library.Library("aten", "IMPL")
    LIBRARIES.append(library)
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    with warnings.catch_warnings(action="ignore"):  # "overriding a kernel"
        for name in (*(n.removeprefix("aten::") for n in names if n.startswith("aten::")), "copy_"):
            if name in LEFT_ALONE:
                continue
            packet, _, overload = name.partition(".")
            try:
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                native = torch.library.get_kernel(op, "CUDA")
            except (AttributeError, RuntimeError) as error:
                warn(f"no kernel of {name}: {str(error)[:100]}")
                continue
            library.impl(op, Operator(op, native), "CUDA", with_keyset=True, allow_override=True)


def histc(values: torch.Tensor, *bounds: Any) -> torch.Tensor:
    """Of integers, too, which CUDA counts and the CPU does not."""
    counted = torch.ops.aten.histc(values if values.is_floating_point() else values.double(), *bounds)
    return counted.to(values.dtype)


OF_INTEGERS: dict[str, Any] = {"aten::histc": histc}
"""Operators that take integers on CUDA alone."""


class Operator:
    """One operator: the CUDA kernel, then the CPU's over the same memory."""

    def __init__(self, op: Any, native: Any) -> None:
        self.op, self.native, self.schema = op, native, op._schema
        self.name = self.schema.name
        results = [str(result.type) for result in self.schema.returns]
        is_answer = bool(results) and not any("Tensor" in result for result in results)  # read from what a kernel gave
        self.has_native = not is_answer and not WITHOUT_NATIVE.match(op.name())
        self.function = (SPECIAL | OF_INTEGERS).get(op.name()) or op
        arguments = self.schema.arguments
        self.names = [a.name for a in arguments]
        self.wants_tensor = [str(a.type) in ("Tensor", "Optional[Tensor]") for a in arguments]
        self.written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        self.returned = {
            place: argument.name
            for place, result in enumerate(self.schema.returns)
            for argument in arguments
            if result.alias_info and argument.alias_info
            if result.alias_info.before_set == argument.alias_info.before_set
        }
        """Arguments that are results, too, by their place among the results."""

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        RUN[self.op.name()] += 1
        args = tuple(map(as_tensor, args, self.wants_tensor))
        check_devices(self.name, args, kwargs)
        with native_code() as is_inner:
            result = self.native.call_boxed(keyset, *args, **kwargs) if self.has_native else None
        if self.has_native and (is_inner or not COMPUTES):
            return result  # within another operator's own code, whose numbers are made at its end
        bound = dict(zip(self.names, args, strict=False)) | kwargs
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return self.with_numbers(result, bound)

    def with_numbers(self, result: Any, bound: dict[str, Any]) -> Any:
        """The CUDA kernel's result (None: there was none), filled with the CPU's numbers, or with those of a replay."""
        cpu = {name: tree_map(to_cpu, value) for name, value in bound.items()}
        is_captured = is_capturing()
        computed = self.shapes(cpu) if is_captured else self.numbers(cpu)
        if not self.has_native:
            result = self.empty_like(computed, bound)
        targets = self.fresh(result)
        if is_captured:
            places = [on_cpu(target) for target in targets]
            record(lambda: self.fill(places, self.compute_again(cpu)))
        self.fill(targets, self.fresh(computed))
        return result

    def compute_again(self, cpu: dict[str, Any]) -> list[torch.Tensor]:
        """The results at a replay."""
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return self.fresh(self.compute(cpu))

    def shapes(self, cpu: dict[str, Any]) -> Any:
        """The results of copies: while a stream is captured nothing is written."""
        return self.compute({name: tree_map(cloned, v) if name in self.written else v for name, v in cpu.items()})

    def numbers(self, cpu: dict[str, Any]) -> Any:
        """The results; the first operators that make a NaN are told where that is asked for."""
        is_looking = FINDS_NAN and not has_nan(cpu)
        computed = self.compute(cpu)
        if is_looking and has_nan([computed, [cpu.get(name) for name in self.written]]):
            tell_nan(self.op)
        return computed

    def compute(self, values: dict[str, Any]) -> Any:
        """What the CPU's kernel gives."""
        values = dict(values)
        if "generator" in self.names:
            values["generator"] = generator_on_cpu(values.get("generator"))
        if values.get("device") is not None:
            values["device"] = torch.device("cpu")
        if "pin_memory" in values:
            values["pin_memory"] = None
        arguments = self.schema.arguments
        positional = [values.get(a.name, a.default_value) for a in arguments if not a.kwarg_only]
        keywords = {a.name: values[a.name] for a in arguments if a.kwarg_only and a.name in values}
        return self.function(*positional, **keywords)

    def empty_like(self, computed: Any, bound: dict[str, Any]) -> Any:
        """Device tensors in the places of those that the CPU gave; arguments where they are returned."""
        every = computed if isinstance(computed, tuple) else (computed,)
        found = tuple(
            bound[self.returned[place]] if place in self.returned else tree_map(on_device, each)
            for place, each in enumerate(every)
        )
        return None if not self.schema.returns else found[0] if len(self.schema.returns) == 1 else found

    def fresh(self, result: Any) -> list[torch.Tensor]:
        """The tensors of a result that are not arguments."""
        every = result if isinstance(result, tuple) else (result,)
        return [t for place, each in enumerate(every) if place not in self.returned for t in flat_tensors(each)]

    def fill(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        """Write numbers into the results. A shape or dtype that CUDA gives otherwise than the CPU is an error."""
        for target, value in zip(targets, values, strict=True):
            if target.numel() == 0 and value.numel() == 0:
                continue
            if (target.shape, target.dtype) != (value.shape, value.dtype):
                raise AssertionError(
                    f"{self.op}: {target.dtype} {tuple(target.shape)} on the device, "
                    f"{value.dtype} {tuple(value.shape)} on the CPU"
                )
            on_cpu(target).copy_(value)


def as_tensor(value: Any, is_wanted: bool) -> Any:
    """A number where a tensor is asked for, as torch wraps it."""
    if not is_wanted or not isinstance(value, (bool, int, float, complex)):
        return value
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype(), complex: torch.complex64}
    return torch.scalar_tensor(value, dtype=kinds[type(value)], device="cpu")  # pyright: ignore[reportArgumentType]


def check_devices(name: str, args: Any, kwargs: Any) -> None:
    """Refuse what mixes devices, as a launch on a device would fail or read memory that is not its own."""
    if name.startswith(MIXING):
        return
    devices = {t.device for t in flat_tensors((args, kwargs)) if t.device.type == "cuda" or t.dim()}
    if len({d for d in devices if d.type in ("cuda", "cpu")}) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {found} ({name})")


def to_cpu(value: Any) -> Any:
    return on_cpu(value) if isinstance(value, torch.Tensor) else value


def cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def on_device(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)


def generator_on_cpu(generator: Any) -> torch.Generator:
    """A CPU generator whose draws follow from the state of the device's, which goes on."""
    its = torch.cuda.default_generators[torch.cuda.current_device()] if generator is None else generator
    offset = 0
    if not is_capturing():
        offset = its.get_offset()
        its.set_offset(offset + 4)
    return torch.Generator("cpu").manual_seed((its.initial_seed() * 1000003 + offset) & (2**63 - 1))


def has_nan(value: Any) -> bool:
    """Whether a tensor among nested values has a NaN."""
    floating = (t for t in flat_tensors(value) if t.is_floating_point() and t.dtype.itemsize > 1)
    return any(bool(t.isnan().any()) for t in floating)


def tell_nan(op: Any) -> None:
    """Say which operator made a NaN. What is allocated and not written yet may hold some, too."""
    RUN["nan"] += 1
    if "empty" in op.name() or RUN["nan"] > MOST_NANS_TOLD:
        return
    stack = "".join(traceback.format_stack(limit=14)[:-3])
    sys.stderr.write(f"fakegpu: {op} gives NaN\n{stack}")
