"""A mixture whose experts in NF4 are read part by part: in a process group of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from training.backends.fsdp.test_sharding import spread_out

from loradock.config.load import load
from loradock.errors import ModelError
from loradock.model import load as loading
from loradock.model import source, spread
from loradock.model.experts import column, layout
from loradock.model.experts.column import Column
from loradock.model.experts.storage import NF4Experts
from loradock.model.patches import experts
from loradock.training.backends.fsdp import sharding

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.thin(1)]
KINDS = ["qwen3_moe", "mixtral", "gpt_oss", "glm4_moe"]
OTHERS = [kind for kind in mixtures.KINDS if kind not in (*KINDS, "granitemoe")]


def experts_of(*, double_quant: bool) -> NF4Experts:
    draw = torch.Generator().manual_seed(0)
    return NF4Experts.quantised(torch.randn(3, 48, 40, generator=draw), double_quant=double_quant)


def same(one: NF4Experts, two: NF4Experts) -> bool:
    assert one.shape == two.shape
    assert one.dtype == two.dtype
    pairs = [(one.parts[name], two.parts[name]) for name in one.parts]
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("double_quant", [True, False])
@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32, torch.uint8])
def test_a_column_that_is_cut_and_put_together_is_the_experts_and_exchanged_parts_are_not(
    storage: torch.dtype, double_quant: bool
) -> None:
    weights = experts_of(double_quant=double_quant)
    lies = Column.of(weights, storage=storage)
    whole = lies.filled(weights)
    for count in (1, 2, 5):
        parts = [spread.part_of(whole, count=count, rank=rank) for rank in range(count)]
        assert same(lies.weights(torch.cat(parts)), weights)
        assert count == 1 or not same(lies.weights(torch.cat([*parts[1:], parts[0]])[: len(whole)]), weights)
    scales = lies.spans["scales"]
    of_one = scales.size_bytes // len(weights)
    moved = whole.view(torch.uint8).flatten().clone()
    span = slice(scales.first, scales.first + scales.size_bytes)
    moved[span] = moved[span].roll(of_one)
    assert not same(lies.weights(moved.view(storage).unsqueeze(-1)), weights)
    assert lies.weights(whole).packed.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert whole.nbytes < weights.stored_bytes + 4 * column.ALIGNMENT


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.full) for kind in OTHERS)])
def test_what_is_read_part_by_part_is_what_the_library_loads(kind: str, tmp_path: Path) -> None:
    """The same bytes of weights and scales, the same buffers, and in the same dtypes what is kept in 32 bits."""
    model = mixtures.make(tmp_path / "model", kind)
    config = load(None, overrides=(), shortcuts={"--model": str(model)}, needs_inputs=False).config
    base = source.find(config.model)
    expected = loading.load_whole(base, config.model, dtype=torch.bfloat16, device="cpu", attention="eager")
    found = spread_out(model, dtype=torch.bfloat16, attention="eager")
    assert loading.coverage(found) == loading.coverage(expected)
    wanted: dict[str, Any] = dict(expected.named_parameters())
    stand_ins = dict(found.named_parameters())
    assert {name for name, each in stand_ins.items() if isinstance(each, NF4Experts)} == {
        each.name for each in layout.matrices(expected)
    }
    spread.lay_experts_out(found)
    for name, module, key, parameter in spread.own_parameters(found):
        part = getattr(parameter, layout.PART)
        if isinstance(wanted[name], NF4Experts):
            assert same(column.of(module)[key].weights(part), wanted[name]), name
        else:
            assert hasattr(parameter, "quant_state") or part.dtype == wanted[name].dtype, name
            assert torch.equal(part.view(torch.uint8).flatten(), wanted[name].detach().view(torch.uint8).flatten())
    buffers = dict(expected.named_buffers())
    assert buffers.keys() == dict(found.named_buffers()).keys()
    for name, buffer in found.named_buffers():
        assert buffer.dtype == buffers[name].dtype, name
        assert torch.equal(buffer, buffers[name]), name


def test_files_that_lack_an_expert_or_hold_one_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    model = mixtures.make(tmp_path / "model", "qwen3_moe")
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.experts.5.down_proj.weight"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers.1.mlp.experts.down_proj is \[7, 64, 64\], and the model wants \[8, "):
        spread_out(model)
    save_file({**tensors, name: tensors[name][:-1].clone()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"experts.5.down_proj.weight is \[63, 64\], and the model wants \[64, 64\]"):
        spread_out(model)


def test_gathered_experts_are_given_back_between_forward_and_backward_and_have_their_bytes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a product keeps for its gradient is a view of what FSDP gathers, and no copy."""
    model: Any = spread_out(mixtures.make(tmp_path / "model", "qwen3_moe"), attention="eager")
    assert experts.apply(model) == model.config.num_hidden_layers
    embedding, read = model.get_input_embeddings(), Column.weights
    adapted = PeftModel(model, LoraConfig(target_modules=["q_proj"]))
    share = sharding.shard(adapted, cpu_offload=False)
    assert share.groups == model.config.num_hidden_layers + 3
    kept: list[NF4Experts] = []

    def weights(self: Column, column: torch.Tensor) -> NF4Experts:
        kept.append(read(self, column))
        return kept[-1]

    monkeypatch.setattr(Column, "weights", weights)
    embedding.register_forward_hook(lambda *seen: seen[-1].requires_grad_())
    logits = adapted(input_ids=torch.arange(12)[None]).logits
    assert len(kept) == 2 * model.config.num_hidden_layers
    assert {each.packed.untyped_storage().nbytes() for each in kept} == {0}
    logits.sum().backward()
    assert len(kept) == 2 * model.config.num_hidden_layers
