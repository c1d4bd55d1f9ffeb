"""Bases whose weights are made dense while transformers reads their files, one tensor at a time, as if they were so.

What comes out of `reading` is what transformers would read of the same weights in 16 bit: all that is done to those,
quantising and stacking of experts among it, is done to these, and gives equal bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from loradock.errors import ModelError
from loradock.files.foreign import unreadable
from loradock.model import headers
from loradock.model.prequantised import ORIGINAL, settings
from loradock.model.stored import FORMATS, Contents, Format, Header
from loradock.model.stored.base import first_names

if TYPE_CHECKING:
    import torch

NONE = Contents(weights={})
DTYPE_KEYS = ("dtype", "torch_dtype")
FP8 = "float8"
"""How torch's names of its dtypes in FP8 begin."""


def format_of(config: Any) -> Format | None:
    """How a base is stored, by a transformers config or a parsed config.json, where that is made dense; else None."""
    return FORMATS.get(str(settings(config).get("quant_method")))


def contents_of(config: Any, files: Iterable[Path]) -> Contents:
    """What a base's files hold quantised, to be made dense. ModelError where parts do not belong together."""
    form = format_of(config)
    if form is None:
        return NONE
    files, tensors = tuple(files), dict[str, Header]()
    for file in files:
        if file.suffix != ".safetensors":
            what = f"{file} is not a safetensors file, and {form.title} is read of such alone"
            raise ModelError(what, hint=ORIGINAL)
        try:
            for name, entry in headers.header(file).items():
                tensors[name] = Header(dtype=entry["dtype"], shape=tuple(entry["shape"]))
        except headers.BadHeader as wrong:
            raise ModelError(f"{file} {wrong}", hint="copy it again") from wrong
        except OSError as error:
            raise unreadable(error, file) from error
    if reason := form.refusal(settings(config)):
        raise ModelError(f"the base {reason}", hint=ORIGINAL)
    contents = form.find(tensors, settings(config), dtype=dtype_of(config))
    if tensors and not contents.weights:
        what = f"{next(iter(files)).parent} has no weights in {form.title}, and its config.json says so"
        raise ModelError(what, hint=ORIGINAL)
    return contents


def dtype_of(config: Any) -> str:
    """Torch's name of the dtype that weights have once they are dense: the model's own."""
    dtype = config.get("dtype", config.get("torch_dtype")) if isinstance(config, dict) else config.dtype
    name = str(dtype).removeprefix("torch.")
    return name if name in ("float16", "float32") else "bfloat16"


def described(config: Any) -> Any:
    """A transformers config, with the dtypes of the dense model in the place of FP8, in which none can be built."""
    if format_of(config) is not None:
        import torch  # for these bases alone: `data show` does without

        parts: list[Any] = [getattr(config, key, None) for key in config.sub_configs]
        fp8 = [part for part in parts if str(getattr(part, "dtype", None)).startswith(f"torch.{FP8}")]
        for part in (config, *fp8):
            part.dtype = getattr(torch, dtype_of(part))
    return config


def unquantise(content: dict[str, Any]) -> None:
    """Make a parsed config.json that of the dense model: no quantisation, and no dtype in FP8."""
    content.pop("quantization_config", None)
    for part in (content, *(part for part in content.values() if isinstance(part, dict))):
        for key in [key for key in DTYPE_KEYS if str(part.get(key)).startswith(FP8)]:
            part[key] = dtype_of(part)


def dense_shapes(shapes: Mapping[str, tuple[int, ...]], contents: Contents) -> dict[str, tuple[int, ...]]:
    """Tensors by name as a model has them."""
    dense = {name: weight.shape for name, weight in contents.weights.items()}
    return {name: shape for name, shape in shapes.items() if name not in contents.part_names} | dense


class Slice:
    """What transformers takes for a tensor of a file that is not read yet."""

    def __init__(self, name: str, files: DenseFiles) -> None:
        self.name, self.files = name, files

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.files.tensor(self.name)[index]

    def get_shape(self) -> list[int]:
        """Of the dense weight."""
        return list(self.files.contents.weights[self.name].shape)

    def get_dtype(self) -> str:
        """Of the dense weight, by safetensors' name."""
        return {"float16": "F16", "float32": "F32"}.get(self.files.contents.weights[self.name].dtype, "BF16")


class DenseFiles:
    """Weights of a base that are made dense; `file_of`: where each tensor of its files lies."""

    def __init__(self, config: Any, files: Iterable[Path]) -> None:
        files = tuple(files)
        self.contents = contents_of(config, files)
        self.file_of = {name: file for file in files for name in headers.shapes([file])}
        self.open_names: set[str] = set()

    def tensor(self, name: str) -> torch.Tensor:
        """A weight, made dense now."""
        from safetensors import safe_open

        weight = self.contents.weights[name]
        parts: list[torch.Tensor] = []
        for part in weight.parts:
            with safe_open(self.file_of[part], framework="pt", device="cpu") as file:
                parts.append(file.get_tensor(part))
        return weight.dense(*parts)

    def names_in(self, file: str) -> list[str]:
        """The dense weights that stand in a file, by its name, each in the place of its first part."""
        return [name for name, weight in self.contents.weights.items() if self.file_of[weight.parts[0]].name == file]

    @property
    def unopened(self) -> set[str]:
        """Names of files that transformers has not opened."""
        return {file.name for file in self.file_of.values()} - self.open_names


@contextmanager
def reading(config: Any, files: tuple[Path, ...]) -> Iterator[None]:
    """Inside, transformers reads the base's files as if their weights were dense. One base at a time in a process."""
    if format_of(config) is None:
        yield
        return
    from transformers import modeling_utils

    dense = DenseFiles(config, files)
    safe_open: Any = modeling_utils.safe_open

    class Opened:
        """safetensors' handle of a file, with dense weights in the place of what holds them."""

        def __init__(self, file: Any, *arguments: Any, **options: Any) -> None:
            self.handle = safe_open(file, *arguments, **options)
            self.dense = dict.fromkeys(dense.names_in(Path(file).name))
            dense.open_names.add(Path(file).name)

        def __enter__(self) -> Self:
            self.handle.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self.handle.__exit__(*(error or (None, None, None)))

        def keys(self) -> list[str]:
            """Names of tensors."""
            names = set(self.handle.keys()) - dense.contents.part_names - self.dense.keys()
            return [*names, *self.dense]

        def get_slice(self, name: str) -> Any:
            """A tensor that is not read yet."""
            return Slice(name, dense) if name in self.dense else self.handle.get_slice(name)

    modeling_utils.safe_open = Opened  # pyright: ignore[reportAttributeAccessIssue]  of the same interface
    try:
        yield
    finally:
        modeling_utils.safe_open = safe_open
    if dense.unopened:  # on some file systems transformers reads whole files, and numbers would lack their scales
        what = f"{files[0].parent} was not read one tensor at a time ({first_names(dense.unopened)})"
        raise ModelError(what, hint="copy it to a local disk")
