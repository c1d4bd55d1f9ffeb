"""NaN and infinity are found in the files of a base and of an adapter, by whoever opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from merge.made import make_adapter, merged
from safetensors.torch import load_file, save_file
from tiny import copy_tree
from whole_runs import train

from loradock.errors import LoradockError, ModelError
from loradock.model import finite
from loradock.use.gguf.export import export
from loradock.use.inference.opener import find, open_model

pytestmark = pytest.mark.thin(1)

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
VALUES = {"NaN": float("nan"), "infinity": float("inf"), "minus infinity": float("-inf")}


def spoil(file: Path, name: str, value: float) -> Path:
    """Put a value into the middle of one tensor of a file."""
    tensors = load_file(file)
    key = next(each for each in tensors if name in each)
    tensors[key].view(-1)[tensors[key].numel() // 2] = value
    save_file(tensors, file, metadata={"format": "pt"})
    return file


def nothing(*_: object) -> None:
    """A progress that shows nothing."""


OPENED: dict[str, Callable[[Path, Path], object]] = {
    "generate, chat, evaluate": lambda adapter, _: open_model(adapter, device="cpu"),
    "unquantised": lambda adapter, _: open_model(adapter, device="cpu", quantization="none"),
    "merge": lambda adapter, place: merged(adapter, place / "out"),
    "merge onto the original": lambda adapter, place: merged(adapter, place / "out", onto="original"),
}
OF_BASE: dict[str, Callable[[Path, Path], object]] = {
    "of the base alone": lambda base, _: open_model(base, device="cpu"),
    "of the base alone, nf4": lambda base, _: open_model(base, device="cpu", quantization="nf4"),
    "export gguf": lambda base, place: export(find(base), place / "a.gguf", type_name="bf16", progress=nothing),
}


@pytest.mark.parametrize(
    ("verb", "name", "value"),
    [*((verb, "lora_A", "NaN") for verb in OPENED), *(("merge", "lora_B", value) for value in VALUES)],
)
def test_an_adapter_that_is_not_finite_is_neither_merged_nor_answered_from(
    tmp_path: Path, llama: Path, verb: str, name: str, value: str
) -> None:
    adapter = make_adapter(tmp_path / "adapter", base=llama)
    spoil(adapter / ADAPTER, name, VALUES[value])
    with pytest.raises(ModelError, match=f"1 tensors in {adapter} are not finite") as refused:
        OPENED[verb](adapter, tmp_path)
    (problem,) = refused.value.problems
    assert name in problem.what
    assert problem.what.endswith("holds NaN" if value == "NaN" else "holds infinity")
    assert problem.file == str(adapter / ADAPTER)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("verb", "name"),
    [*((verb, "q_proj") for verb in (*OF_BASE, *OPENED)), ("merge", "norm"), ("merge", "embed_tokens")],
)
def test_a_base_that_is_not_finite_is_not_handed_on(tmp_path: Path, llama: Path, verb: str, name: str) -> None:
    base = copy_tree(llama, tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", base=base)
    spoil(base / WEIGHTS, name, float("nan"))
    with pytest.raises(ModelError, match=f"1 tensors in {base} are not finite"):
        OF_BASE[verb](base, tmp_path) if verb in OF_BASE else OPENED[verb](adapter, tmp_path)


def test_a_base_that_is_not_finite_is_not_trained_though_nf4_would_hide_it(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    base = copy_tree(llama, tmp_path / "base")
    spoil(base / WEIGHTS, "down_proj", float("nan"))
    with pytest.raises(LoradockError, match="are not finite") as refused:
        train(tmp_path / "run", "train.max_steps=1", "train.global_batch=8", model=base, data=rows)
    assert refused.value.exit_code == 78


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_each_floating_dtype_is_looked_at_wherever_the_number_stands(dtype: torch.dtype, tmp_path: Path) -> None:
    for place in (0, 777, 4_095):
        for value, word in ((float("nan"), "NaN"), (float("-inf"), "infinity")):
            tensor = torch.randn(64, 64).to(dtype)
            assert finite.problem(tensor) is None
            tensor.view(-1)[place] = value
            assert finite.problem(tensor) == word
            torch.save({"w": tensor}, tmp_path / "pytorch_model.bin")
            with pytest.raises(ModelError, match="are not finite"):
                finite.check([tmp_path / "pytorch_model.bin"])


def test_what_is_no_weight_is_left_alone(tmp_path: Path) -> None:
    """The -inf of a mask that is kept as a scalar, counts, truths and empty tensors."""
    tensors = {
        "masked_bias": torch.tensor(float("-inf")),
        "counts": torch.ones(3, dtype=torch.int64),
        "mask": torch.ones(3, 3, dtype=torch.bool),
        "empty": torch.empty(0, 4),
    }
    save_file(tensors, tmp_path / WEIGHTS)
    finite.check([tmp_path / WEIGHTS])
