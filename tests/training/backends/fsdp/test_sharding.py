"""The parts that a process reads, and the proof that a model is sharded: in a process group of one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of
from safetensors.torch import load_file, save, save_file
from torch.distributed.tensor import DTensor

from loradock.config.load import load
from loradock.errors import EnvironmentUnfit, ModelError
from loradock.model import load as loading
from loradock.model import source, spread
from loradock.model.adapters import attach, restore, state, trainable
from loradock.model.experts import layout
from loradock.training.backends.fsdp import adapters, sharding
from loradock.training.backends.fsdp.optimizer import ShardedAdamW

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.thin(1)]


def spread_out(model: Path, *settings: str, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    config = load(None, overrides=settings, shortcuts={"--model": str(model)}, needs_inputs=False).config
    base = source.find(config.model)
    given: Any = {"dtype": dtype, "storage": dtype, "attention": attention, "device": "cpu"}
    return spread.read(base, config.model, **given, kept_on="cpu")


def adapted(model: Path) -> Any:
    config = load(None, overrides=["lora.rank=3"], shortcuts={"--model": str(model)}, needs_inputs=False).config
    return attach(spread_out(model), config, base=source.find(config.model))


def own_parts(model: Any) -> list[tuple[str, Any, str, Any]]:
    return [each for each in spread.own_parameters(model) if hasattr(each[3], layout.PART)]


@pytest.mark.parametrize("double_quant", ["true", "false"])
def test_what_is_read_part_by_part_is_what_the_library_loads(
    double_quant: str, tmp_path: Path, untied: Path, rows: Path
) -> None:
    """The same bytes of weights and scales, the same buffers."""
    asked = f"model.double_quant={double_quant}"
    job = job_of(tmp_path, asked, model=untied, data=rows)
    expected, covered = loading.load(source.find(job.config.model), job.config.model, plan=job.plan, local_rank=0)
    wanted = dict(expected.named_parameters())
    found = spread_out(untied, asked)
    for name, _, _, parameter in spread.own_parameters(found):
        part = getattr(parameter, layout.PART)
        assert torch.equal(part.view(torch.uint8).flatten(), wanted[name].detach().view(torch.uint8).flatten()), name
        if (state := getattr(parameter, "quant_state", None)) is not None:
            assert torch.equal(state.absmax, wanted[name].quant_state.absmax), name
    buffers = dict(expected.named_buffers())
    assert buffers.keys() == dict(found.named_buffers()).keys()
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in found.named_buffers())
    assert loading.coverage(found) == covered


def test_parts_of_all_processes_are_the_whole_in_any_number_of_them() -> None:
    value = torch.arange(35.0).reshape(7, 5)
    for count in (1, 2, 3, 4, 5, 7, 9):
        parts = [spread.part_of(value, count=count, rank=rank) for rank in range(count)]
        assert torch.equal(torch.cat(parts), value)
        assert max(map(len, parts)) == -(-7 // count)


def test_weights_that_are_not_there_yet_cannot_be_used(llama: Path) -> None:
    model = spread_out(llama)
    with pytest.raises(EnvironmentUnfit, match="the weights are sharded over the ranks"):
        model(input_ids=torch.zeros((1, 2), dtype=torch.long))


def test_files_that_name_weights_otherwise_or_hold_others_are_refused(tmp_path: Path, llama: Path) -> None:
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({key.replace("up_proj", "upward"): value for key, value in tensors.items()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"has no tensor model\.layers\.0\.mlp\.up_proj"):
        spread_out(model)
    save_file({**tensors, name: tensors[name][:-1].clone()}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"up_proj.weight is \[127, 64\], and the model wants \[128, 64\]"):
        spread_out(model)


@pytest.mark.parametrize("kind", ["llama", "untied"])
def test_a_sharded_model_has_a_group_a_layer_and_dtensors_only(kind: str, request: pytest.FixtureRequest) -> None:
    """Tied embedding and head are the root's, else a group each; what was read is not copied."""
    model = adapted(request.getfixturevalue(kind))
    read = {name: getattr(each, layout.PART).data_ptr() for name, _, _, each in own_parts(model)}
    share = sharding.shard(model, cpu_offload=False)
    parameters: list[Any] = list(spread.own_parameters(model))
    assert {name: each.to_local().data_ptr() for name, _, _, each in parameters if name in read} == read
    assert share.groups == {"llama": 2 + 1, "untied": 3 + 3}[kind]
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    assert share.local_bytes == share.whole_bytes
    assert model(input_ids=torch.zeros((1, 2), dtype=torch.long)).logits.isfinite().all()


def test_a_replicated_model_is_refused_by_name(llama: Path, tmp_path: Path, rows: Path) -> None:
    """As accelerate's FSDP gives one on a CPU."""
    model = job_of(tmp_path, model=llama, data=rows).model
    with pytest.raises(EnvironmentUnfit, match="no FSDP modules: every process keeps them whole"):
        sharding.check(model)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point() and parameter.requires_grad)
    replicated = torch.nn.parallel.DistributedDataParallel(model)
    with pytest.raises(EnvironmentUnfit, match="DistributedDataParallel, which keeps the whole model on every process"):
        sharding.check(replicated)


def test_a_parameter_that_is_left_whole_is_refused_by_name(llama: Path) -> None:
    model = adapted(llama)
    sharding.shard(model, cpu_offload=False)
    norm = model.get_base_model().model.layers[1].input_layernorm
    norm._parameters["weight"] = torch.nn.Parameter(torch.ones(64))
    with pytest.raises(EnvironmentUnfit, match=r"1 parameters are no DTensors \(.*layers.1.input_layernorm.weight\)"):
        sharding.check(model)


def test_an_update_of_the_parts_is_adamws_of_the_whole_and_its_state_is_read_by_either(llama: Path) -> None:
    model = adapted(llama)
    whole = [torch.nn.Parameter(each.detach().clone()) for each in trainable(model)]
    plain = torch.optim.AdamW(whole, lr=1e-2, weight_decay=0.1)
    sharding.shard(model, cpu_offload=False)
    optimizer = ShardedAdamW(trainable(model), lr=1e-2, weight_decay=0.1)
    for turn in range(3):
        draw = torch.Generator().manual_seed(turn)
        for each, sharded in zip(whole, optimizer.sharded, strict=True):
            each.grad = torch.randn(each.shape, generator=draw)
            sharded.grad = DTensor.from_local(each.grad.clone(), sharded.device_mesh, sharded.placements)
        norm = optimizer.take_gradients()
        assert float(norm) == pytest.approx(float(torch.nn.utils.clip_grad_norm_(whole, 0.5)), rel=1e-6)
        optimizer.clip(norm, most=0.5)
        plain.step()
        optimizer.step()
        if turn == 1:  # goes on as another one that took up its state
            state = optimizer.whole_state()
            optimizer = ShardedAdamW(trainable(model), lr=1e-2, weight_decay=0.1)
            optimizer.load_state_dict(state)
    with adapters.as_one(model):
        assert all(
            torch.allclose(one, two, rtol=1e-5, atol=1e-7) for one, two in zip(whole, trainable(model), strict=True)
        )
    assert all(isinstance(each, DTensor) for each in trainable(model))


def test_reading_the_adapter_leaves_gathered_what_is_gathered(llama: Path) -> None:
    """One process alone reads it, and all gather the same in the pass that comes next."""
    model = adapted(llama)
    sharding.shard(model, cpu_offload=False)
    with torch.no_grad():
        model(input_ids=torch.zeros((1, 2), dtype=torch.long))
    root = model._get_fsdp_state()._fsdp_param_group
    assert root.is_unsharded, "a forward pass without a backward one leaves the root's parameters whole"
    with adapters.as_one(model):
        assert state(model)
    assert root.is_unsharded


def test_an_adapter_that_was_joined_takes_up_another(llama: Path) -> None:
    """As the best checkpoint's, once the training is over."""
    model = adapted(llama)
    other = {name: torch.full_like(tensor, 0.25) for name, tensor in state(model).items()}
    sharding.shard(model, cpu_offload=False)
    adapters.join(model, everywhere=True)
    restore(model, save(other))
    assert all(torch.equal(tensor, other[name]) for name, tensor in state(model).items())
    assert all(bool((each == 0.25).all()) for each in trainable(model))
