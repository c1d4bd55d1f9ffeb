"""NaN and infinity in weight files: looked for where a base or an adapter is opened, before anything is made of them.

A quantised weight hides them: NF4 makes numbers of a NaN, so that later nothing shows what the file held.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from loradock.errors import ModelError, Problem
from loradock.files import regular
from loradock.files.foreign import reading, unreadable
from loradock.model import headers

if TYPE_CHECKING:
    import torch

SHOWN = 12
"""Tensors that an error names."""
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
OF_FILES = {**DTYPES, "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
FLOAT8 = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7C}
"""Bits that are all set where a number of one byte is none: NaN, or in the second infinity."""
BLOCK_BYTES = 16 << 20
HINT = "copy the files again; a conversion to float16 overflows where one to bfloat16 does not"


def check(files: Iterable[Path], *, hint: str = HINT) -> None:
    """Read every tensor once, 5 to 10 GB/s a core where the files are in memory. ModelError names those that have one.

    Scalars are left out: files of GPT-NeoX keep the -inf of a mask in one. Raises as `foreign.reading` for a file that
    cannot be read.
    """
    wrong = [Problem(what=f"{name} holds {what}", file=str(file)) for file in files for name, what in _wrong(file)]
    if wrong:
        more = [Problem(what=f"and {len(wrong) - SHOWN} more")] if len(wrong) > SHOWN else []
        folder = wrong[0].file and Path(wrong[0].file).parent
        what = f"{len(wrong)} tensors in {folder} are not finite"
        raise ModelError(what, hint=hint, problems=[*wrong[:SHOWN], *more])


def problem(tensor: torch.Tensor) -> str | None:
    """ "NaN" or "infinity" where a tensor of any shape holds one. The extremes say it, at the speed of memory."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in FLOAT8:
        bits = FLOAT8[dtype]
        return "NaN" if bool((tensor.view(torch.uint8) & bits == bits).any()) else None
    if dtype not in DTYPES.values() or not tensor.dim() or not tensor.numel():
        return None
    low, high = torch.aminmax(tensor)
    if bool(torch.isfinite(low)) and bool(torch.isfinite(high)):
        return None
    return "NaN" if bool(torch.isnan(low)) else "infinity"


def _wrong(file: Path) -> Iterator[tuple[str, str]]:
    """(tensor, what it holds) of those that are not finite; a file is read in blocks, so that memory is bounded."""
    parts = _of_pickle(file) if file.suffix == ".bin" else _of_safetensors(file)
    reports: set[str] = set()
    for name, part in parts:
        if name not in reports and (what := problem(part)):
            reports.add(name)
            yield name, what


def _of_pickle(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    with reading(file, "cannot be read", hint="copy it again"):
        content = torch.load(file, map_location="cpu", mmap=zipfile.is_zipfile(file), weights_only=True)
        tensors = [(name, tensor) for name, tensor in content.items() if isinstance(tensor, torch.Tensor)]
    yield from tensors


def _of_safetensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Parts of the floating tensors that are no scalars, flat. They share one buffer: look before the next is asked."""
    import torch

    try:
        entries = headers.header(file)
        buffer = bytearray(BLOCK_BYTES)
        with regular.opened(file) as stream:
            start = 8 + int.from_bytes(stream.read(8), "little")
            for name, entry in entries.items():
                if entry["dtype"] in OF_FILES and entry["shape"]:
                    begin, end = (start + offset for offset in entry["data_offsets"])
                    stream.seek(begin)
                    while begin < end:
                        count = stream.readinto(memoryview(buffer)[: min(BLOCK_BYTES, end - begin)])
                        if not count:
                            raise headers.BadHeader("became shorter while it was read")
                        begin += count
                        dtype = getattr(torch, OF_FILES[entry["dtype"]])
                        yield name, torch.frombuffer(buffer, dtype=dtype, count=count // dtype.itemsize)
    except headers.BadHeader as wrong:
        raise ModelError(f"{file} {wrong}", hint="copy it again") from wrong
    except OSError as error:
        raise unreadable(error, file) from error
