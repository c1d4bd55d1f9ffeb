"""Triton's kernels: those of the fast engine at once (`own_kernels`), the others by Triton's own interpreter."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from gpu_on_cpu.memory import OF_THE_DEVICE, at
from gpu_on_cpu.native import LIBRARY

COMPILED: dict[int, Any] = {}
"""What was compiled, by the driver's function."""
ELEMENTS = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "i1": torch.bool,
    "i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip
SCALARS = {
    "fp64": ctypes.c_double, "fp32": ctypes.c_float, "i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16,
    "i32": ctypes.c_int32, "i64": ctypes.c_int64, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
}  # fmt: skip


def remember_compiled_kernels() -> None:
    """Keep every kernel that Triton loads, so that its launches can be told apart."""
    from triton.compiler.compiler import CompiledKernel

    load = CompiledKernel._init_handles

    def load_and_keep(self: Any) -> Any:
        result = load(self)
        COMPILED[self.function] = self
        return result

    CompiledKernel._init_handles = load_and_keep


class Pointer:
    """A pointer argument as the interpreter takes it."""

    def __init__(self, value: int, dtype: torch.dtype) -> None:
        self.value, self.dtype = value, dtype

    def data_ptr(self) -> int:
        return self.value


def arguments(compiled: Any, args: Any) -> dict[str, Any]:
    """A launch's arguments by name, read from what the driver was handed."""
    source = compiled.src
    found: dict[str, Any] = {}
    place = 0
    for index, (name, kind) in enumerate(source.signature.items()):
        if kind == "constexpr":
            found[name] = source.constants.get((index,))
            continue
        if kind.startswith("*"):
            pointer = ctypes.cast(args[place], ctypes.POINTER(ctypes.c_uint64)).contents.value
            found[name] = Pointer(pointer, ELEMENTS[kind[1:].removeprefix("k")])
        else:
            found[name] = ctypes.cast(args[place], ctypes.POINTER(SCALARS[kind])).contents.value
        place += 1
    return found


def launched(function: int, args: Any, grid: tuple[int, int, int]) -> Callable[[], None] | None:
    """What a launch would compute, or None where the kernel is not Triton's."""
    compiled = COMPILED.get(function)
    if compiled is None:
        return None
    values = arguments(compiled, args)
    for name, value in values.items():
        is_wrong = isinstance(value, Pointer) and value.value and LIBRARY.fakegpu_kind(value.value) not in OF_THE_DEVICE
        if is_wrong:
            raise RuntimeError(f"CUDA error: an illegal memory access was encountered: {compiled.name}({name})")

    def run() -> None:
        from gpu_on_cpu.own_kernels import OWN_KERNELS

        own = OWN_KERNELS.get(compiled.name) if os.environ.get("FAKEGPU_TRITON") != "interpret" else None
        if own is None:
            interpret(compiled.src.fn, values, grid)
        else:
            own(values, grid)

    return run


def interpret(function: Any, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
    """Run a kernel by Triton's own interpreter, over memory of the device."""
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    class Executor(interpreter.GridExecutor):
        """Takes pointers as they are, and copies nothing to or from a device."""

        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            return [self.hst(v) for v in args_dev], {k: self.hst(v) for k, v in kwargs.items()}

        def hst(self, v: Any) -> Any:
            if not isinstance(v, Pointer):
                return v
            return at(v.value, v.dtype, (1,)) if v.value else None

        def _restore_args_dev(self, *_: Any) -> None:
            pass

    made = interpreter.InterpretedFunction(function.fn)
    places = [tl, tl.core, tl.math, tl.standard, tl.core.tensor, tl.core.dtype, tl.core.tensor_descriptor_base]
    before = [dict(vars(place)) for place in places]
    interpreted = mock.patch.object(
        JITFunction, "__call__", lambda self, *a, **k: interpreter.InterpretedFunction(self.fn)(*a, **k)
    )
    with interpreted:
        executor = Executor(made.rewrite() if hasattr(made, "rewrite") else made.fn, list(values), grid, [])
        # Numbers stay Python's own: the interpreter's arrays of one entry can be no bound of a range under NumPy 2.
        executor.constexprs = [name for name, value in values.items() if not isinstance(value, (Pointer, float))]
        try:
            executor(**values)
        finally:  # it leaves some of the language's own functions changed, and kernels are compiled here, too
            for place, names in zip(places, before, strict=True):
                restore(place, names)


def restore(place: Any, names: dict[str, Any]) -> None:
    """Give a module or a type back the names that it had."""
    for name in set(vars(place)) - set(names) if isinstance(place, type) else ():
        delattr(place, name)
    for name, value in names.items():
        if vars(place).get(name) is not value:
            setattr(place, name, value)
