"""Tensors in safetensors files, read and written one at a time: what is in memory is one tensor, never a file.

Files are read by offset and not mapped: mapped pages count as memory of the process, up to the size of the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loradock.errors import ModelError
from loradock.files import regular
from loradock.model import made_dense, prequantised
from loradock.model.stored import Contents, Weight

if TYPE_CHECKING:
    import torch

    from loradock.model.source import BaseModel

BLOCK_BYTES = 1 << 22
ALIGNMENT = 8
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
CODES = {name: code for code, name in DTYPES.items()}
FLOATING = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor of a file: `dtype` as safetensors writes it, `begin` its first byte in the file.

    `parts`: of a weight that lies quantised there, the tensors of the files; in NF4 by what follows its name in theirs
    ("" for the packed numbers), else, where `stored` makes it dense, by their names. Then `dtype` and `shape` are those
    of the dense weight.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int
    parts: Mapping[str, Entry] = field(default_factory=dict, hash=False)
    stored: Weight | None = None

    @property
    def count(self) -> int:
        """How many numbers it has."""
        total = 1
        for size in self.shape:
            total *= size
        return total


def entries(file: Path) -> tuple[Entry, ...]:
    """The tensors of a safetensors file in their order in it. ModelError for another kind of file."""
    if file.suffix != ".safetensors":
        raise ModelError(
            f"{file.name} is not a safetensors file, and merging reads single tensors",
            hint="convert it: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)",
        )
    with regular.opened(file) as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    tensor_entries = [
        Entry(
            name=name,
            file=file,
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            begin=8 + length + entry["data_offsets"][0],
            size=entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in header.items()
    ]
    return tuple(sorted(tensor_entries, key=lambda entry: (entry.begin, entry.name)))


def of_base(base: BaseModel) -> dict[str, tuple[Entry, ...]]:
    """The tensors of a base's files by file; a weight that is there in NF4 is one, in the dtype that it came from."""
    files = {file.name: entries(file) for file in base.weight_files}
    if made_dense.format_of(base.config):
        return _made_dense(files, made_dense.contents_of(base.config, base.weight_files))
    if not prequantised.is_nf4(base.config):
        return files
    packed = prequantised.packed(base.weight_files)
    entry_of = {entry.name: entry for of_file in files.values() for entry in of_file}
    belonging = {f"{name}{part}": (name, part) for name in packed for part in prequantised.PARTS}
    parts: dict[str, dict[str, Entry]] = {name: {"": entry_of[name]} for name in packed}
    for whole_name, (name, part) in belonging.items():
        if whole_name in entry_of:
            parts[name][part] = entry_of[whole_name]
    return {
        file: tuple(
            replace(
                entry,
                dtype=CODES[packed[entry.name].dtype],
                shape=packed[entry.name].shape,
                parts=parts[entry.name],
            )
            if entry.name in packed
            else entry
            for entry in of_file
            if entry.name not in belonging
        )
        for file, of_file in files.items()
    }


def _made_dense(files: Mapping[str, tuple[Entry, ...]], contents: Contents) -> dict[str, tuple[Entry, ...]]:
    """Tensors by file, where each weight that is made dense is one, in the place of its first part."""
    entry_of = {entry.name: entry for of_file in files.values() for entry in of_file}
    name_of = {weight.parts[0]: name for name, weight in contents.weights.items()}

    def dense(entry: Entry) -> Entry:
        if entry.name not in name_of:
            return entry
        weight = contents.weights[name_of[entry.name]]
        parts = {part: entry_of[part] for part in weight.parts}
        code = CODES[weight.dtype]
        return replace(entry, name=name_of[entry.name], dtype=code, shape=weight.shape, parts=parts, stored=weight)

    return {
        file: tuple(dense(entry) for entry in of_file if entry.name in name_of or entry.name not in contents.part_names)
        for file, of_file in files.items()
    }


def blocks(entry: Entry) -> Iterator[bytes]:
    """The tensor's bytes, in blocks. ModelError where the file ends before."""
    with regular.opened(entry.file) as stream:
        stream.seek(entry.begin)
        remaining = entry.size
        while remaining:
            block = stream.read(min(remaining, BLOCK_BYTES))
            if not block:
                raise truncated(entry)
            remaining -= len(block)
            yield block


def digest(entry: Entry) -> str:
    """The sha256 of the tensor's bytes."""
    digest_so_far = hashlib.sha256()
    for block in blocks(entry):
        digest_so_far.update(block)
    return digest_so_far.hexdigest()


def read(entry: Entry) -> torch.Tensor:
    """The tensor, on the CPU, in memory of its own; made dense where it is `stored` otherwise."""
    import torch

    if entry.stored:
        return entry.stored.dense(*(read(entry.parts[part]) for part in entry.stored.parts))
    content = bytearray(entry.size)
    with regular.opened(entry.file) as stream:
        stream.seek(entry.begin)
        view, count_read = memoryview(content), 0
        while count_read < entry.size:
            count = stream.readinto(view[count_read:])
            if not count:
                raise truncated(entry)
            count_read += count
    if not content:
        return torch.empty(entry.shape, dtype=dtype_of(entry.dtype))
    return torch.frombuffer(content, dtype=dtype_of(entry.dtype)).reshape(entry.shape)


def truncated(entry: Entry) -> ModelError:
    """What to raise where a file is shorter than its header says."""
    return ModelError(f"{entry.file} ends within {entry.name}", hint="copy the file again")


def dtype_of(code: str) -> torch.dtype:
    """The torch dtype of safetensors' name of it. ModelError for one that is not known."""
    import torch

    if code not in DTYPES:
        raise ModelError(f"tensors of dtype {code} cannot be merged", hint="convert the base to bfloat16")
    return getattr(torch, DTYPES[code])


def width(code: str) -> int:
    """Bytes of one number."""
    return dtype_of(code).itemsize


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a tensor will lie in a new file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class Shard:
    """A new safetensors file, a context manager: its header at once, then its tensors in their order.

    Slots are laid out widest dtype first, as safetensors does, so that each begins aligned. On a clean exit the file
    is complete and flushed to the disk, and `digest` its sha256. OSErrors come out as they are.
    """

    def __init__(self, file: Path, slots: Sequence[Slot]) -> None:
        self.file = file
        self.slots = tuple(sorted(slots, key=lambda slot: -width(slot.dtype)))
        self.digest = ""
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        self._stream = self.file.open("xb", buffering=0)
        self._put(header(self.slots))
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                os.fsync(self._stream.fileno())
                self.digest = self._hash.hexdigest()
        finally:
            self._stream.close()

    def put(self, tensor: torch.Tensor) -> None:
        """Write the next slot's tensor, of its dtype."""
        import torch

        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(flat), BLOCK_BYTES):
            self._put(flat[start : start + BLOCK_BYTES].data)

    def copy(self, entry: Entry) -> None:
        """Write the next slot's bytes as they are in another file."""
        for block in blocks(entry):
            self._put(block)

    def _put(self, content: bytes | memoryview) -> None:
        remaining = memoryview(content)
        self._hash.update(remaining)
        while remaining:
            remaining = remaining[self._stream.write(remaining) :]


def header(slots: Sequence[Slot]) -> bytes:
    """The first bytes of a safetensors file that holds these tensors in this order."""
    content: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for slot in slots:
        offsets = [begin, begin + slot.size]
        content[slot.name] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": offsets}
        begin += slot.size
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def sha256(file: Path) -> str:
    """The sha256 of a file."""
    with regular.opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
