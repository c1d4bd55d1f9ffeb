"""The safetensors files of a base, read tensor by tensor under the names of the model's weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from loradock.errors import ModelError
from loradock.model import finite, names

if TYPE_CHECKING:
    import torch

    from loradock.model.source import BaseModel


class WeightFiles:
    """The safetensors files of a base, by the names of the model's weights; a context manager."""

    def __init__(self, base: BaseModel, model: Any) -> None:
        self.base, self.model = base, model
        self.name_of: dict[str, str] = {}
        self.pieces: dict[str, dict[tuple[int, int], str]] = {}
        self.opened = ExitStack()
        self.holder: dict[str, Any] = {}

    def __enter__(self) -> Self:
        from safetensors import safe_open

        for file in self.base.weight_files:
            if file.suffix != ".safetensors":
                raise ModelError(
                    f"{file.name} is not a safetensors file; sharded loading reads single tensors",
                    hint="save the model as safetensors (save_pretrained), or --set train.parallel=ddp",
                )
            handle = self.opened.enter_context(safe_open(file, framework="pt", device="cpu"))
            self.holder |= dict.fromkeys(handle.keys(), handle)
        self.name_of = {weight: name for name, weight in names.in_model(self.model, self.holder).items()}
        for file, piece in names.of_experts(self.model, self.holder).items():
            self.pieces.setdefault(piece.weight, {})[piece.expert, piece.part] = file
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.close()
        self.holder.clear()

    def has(self, name: str) -> bool:
        """Whether a file holds the tensor of this name as it lies in the model."""
        return name in self.name_of

    def read(self, name: str, *, shape: torch.Size) -> torch.Tensor:
        """The tensor of this name. ModelError where there is none, or one of another shape."""
        import torch

        if name in self.pieces:
            return torch.stack(list(self.experts(name, shape)))
        file = self.file_of(name)
        return self.checked(file, self.holder[file].get_tensor(file), shape)

    def experts(self, name: str, shape: torch.Size) -> Iterator[torch.Tensor]:
        """The experts of a matrix [experts, rows, columns], one at a time. ModelError as `read`."""
        import torch

        pieces = self.pieces.get(name)
        if pieces is None:
            file = self.file_of(name)
            view = self.holder[file].get_slice(file)
            if tuple(view.get_shape()) != tuple(shape):
                raise self.misshapen(file, view.get_shape(), shape)
            for expert in range(shape[0]):
                yield self.checked(file, view[expert], shape[1:])
            return
        parts = 1 + max(part for _, part in pieces)
        if len(pieces) != shape[0] * parts:
            raise self.misshapen(name, (len(pieces) // parts, *shape[1:]), shape)
        for expert in range(shape[0]):
            files = [pieces[expert, part] for part in range(parts)]
            matrix = torch.cat([self.holder[file].get_tensor(file) for file in files])
            yield self.checked(files[0], matrix, shape[1:])

    def file_of(self, name: str) -> str:
        """What files call the weight of this name. ModelError where they do not hold it as it is in the model."""
        file = self.name_of.get(name)
        if file is None:
            raise ModelError(
                f"{self.base.directory} has no tensor {name}: its files name weights differently from the model",
                hint="--set train.parallel=ddp, where the whole model fits a GPU",
            )
        return file

    def checked(self, file: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """What was read. ModelError where it is of another shape, or not finite."""
        if value.shape != shape:
            raise self.misshapen(file, value.shape, shape)
        if what := finite.problem(value):
            raise ModelError(f"{self.base.directory}: {file} holds {what}", hint=finite.HINT)
        return value

    def misshapen(self, file: str, found: Sequence[int], shape: Sequence[int]) -> ModelError:
        """The error of a tensor of another shape."""
        return ModelError(
            f"{self.base.directory}: {file} is {list(found)}, and the model wants {list(shape)}",
            hint="do the weights belong to config.json?",
        )
