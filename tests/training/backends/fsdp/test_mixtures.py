"""Two processes (gloo on the CPU) share a mixture whose experts are in NF4, with adapters on the experts, by FSDP2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import mixtures
import pytest
import torch
from faults.forking import Forking
from safetensors.torch import load
from training.backends.fsdp.conftest import STEPS, Group, Start
from training.backends.fsdp.test_preference import FEW, check_continued, check_equal

from loradock.config.load import load as load_config
from loradock.model import load as loading
from loradock.model import source
from loradock.model.experts import layout
from loradock.model.experts.column import Column

EXPERTS = ("lora.targets=[all-linear,experts]", "lora.dropout=0", "model.compute_dtype=float32", "train.eps=1e-6")
SHARDED = (*EXPERTS, "train.parallel=fsdp", "train.packing=true", "train.checkpointing=1")
OTHERS = ("mixtral", "glm4_moe", "deepseek_v2", "llama4_text")
COUNTED = """
import json, os
from loradock.training.backends.fsdp import sharding
real = sharding.check
def check(model):
    share = real(model)
    locals = {name: each.to_local() for name, each in model.named_parameters() if ".experts." in name}
    held = {name: part.numel() * part.element_size() for name, part in locals.items() if "lora" not in name}
    with open(f"experts-{os.environ['RANK']}.json", "w") as file:
        json.dump(held, file)
    return share
sharding.check = check
"""
"""Each process writes down how many bytes of experts it holds."""
EXCHANGED = """
from loradock.training.backends.fsdp import sharding
real = sharding.put_parts
def exchanged(model, parts):
    import torch.distributed
    for name, part in parts.items():
        if name.endswith("layers.1.mlp.experts.base_layer.base_layer.down_proj"):
            torch.distributed.all_gather(both := [torch.empty_like(part) for _ in range(2)], part)
            part.copy_(both[1 - torch.distributed.get_rank()])
    return real(model, parts)
sharding.put_parts = exchanged
"""
"""The parts of one matrix of experts have changed places."""
OTHER_SCALES = """
from loradock.model.experts import column
real = column.Column.weights
def weights(self, whole):
    found = real(self, whole)
    found.scales = found.scales.clone()
    found.scales[0] = found.scales[-1]
    return found
column.Column.weights = weights
"""
"""An expert has the scales of one that lies with the other process."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place = tmp_path_factory.mktemp("mixtures")
    return lambda kind: place / kind if (place / kind).exists() else mixtures.make(place / kind, kind)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, start: Start, made: Callable[[str], Path]) -> Group:
    group = start(tmp_path_factory.mktemp("pair"), *SHARDED, model=made("qwen3_moe"), code=COUNTED)
    assert group.finish() == [0, 0], group.text()
    return group


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, start: Start, made: Callable[[str], Path]) -> Group:
    """The same global batch in one process, by an engine that shares no code with the sharded one."""
    group = start(tmp_path_factory.mktemp("single"), *EXPERTS, "engine=fast", model=made("qwen3_moe"), count=1)
    assert group.finish() == [0], group.text()
    return group


def assert_equal(pair: Group, single: Group) -> None:
    assert len(single.losses()) == STEPS
    assert pair.losses() == pytest.approx(single.losses(), rel=1e-5)
    assert pair.losses("eval") == pytest.approx(single.losses("eval"), rel=1e-5)
    one, two = single.adapter(), pair.adapter()
    assert one.keys() == two.keys()
    assert any(".experts." in name for name in one)
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_they_train_what_one_process_trains(pair: Group, single: Group) -> None:
    assert_equal(pair, single)


def test_each_holds_half_of_the_experts_packed_weights_and_scales(pair: Group, made: Callable[[str], Path]) -> None:
    config = load_config(None, overrides=(), shortcuts={"--model": str(made("qwen3_moe"))}, needs_inputs=False).config
    base = source.find(config.model)
    whole = loading.load_whole(base, config.model, dtype=torch.float32, device="cpu", attention="eager")
    weights = [Column.of(each.parameter, storage=torch.uint8) for each in layout.matrices(whole)]  # pyright: ignore[reportArgumentType]
    stored = sum(span.size_bytes for each in weights for span in each.spans.values())
    held = [json.loads((pair.folder / f"experts-{rank}.json").read_text()) for rank in range(2)]
    assert held[0].keys() == held[1].keys()
    assert len(held[0]) == 4
    assert [sum(each.values()) / stored for each in held] == pytest.approx([0.5, 0.5], rel=0.02)


def test_their_checkpoint_is_one_adapter_and_one_state(pair: Group, single: Group) -> None:
    one, two = (load((each.checkpoint() / "adapter_model.safetensors").read_bytes()) for each in (single, pair))
    assert {name: tensor.shape for name, tensor in one.items()} == {name: tensor.shape for name, tensor in two.items()}
    assert all(torch.equal(tensor, two[name]) for name, tensor in pair.adapter().items())
    first, second = single.training_state()["optimizer"]["state"], pair.training_state()["optimizer"]["state"]
    assert first.keys() == second.keys()
    for index, entry in first.items():
        torch.testing.assert_close(second[index]["exp_avg"], entry["exp_avg"], rtol=1e-3, atol=1e-6)


@pytest.mark.thin(4)
def test_a_run_that_is_cut_off_continues_with_the_same_bits(
    pair: Group, start: Start, made: Callable[[str], Path], rows: Path
) -> None:
    check_continued(pair, *SHARDED, start=start, model=made("qwen3_moe"), data=rows, after=2)


@pytest.mark.thin(4)
def test_their_adapter_is_merged_into_the_experts(pair: Group, made: Callable[[str], Path], forking: Forking) -> None:
    merged = forking.start(pair.folder, "merge", "out/adapter", "merged", "--verify", "full")
    assert merged.finish() == 0, merged.text()


@pytest.mark.thin(4)
@pytest.mark.parametrize("fault", [EXCHANGED, OTHER_SCALES], ids=["parts exchanged", "scales of another's expert"])
def test_parts_of_the_other_process_in_the_wrong_place_are_seen_in_the_first_loss(
    fault: str, tmp_path: Path, start: Start, made: Callable[[str], Path], single: Group
) -> None:
    """By the comparison above."""
    first = ("train.max_steps=1", "data.validation=6")
    group = start(tmp_path, *SHARDED, *first, model=made("qwen3_moe"), code=fault)
    assert group.finish() == [0, 0], group.text()
    assert group.losses()[0] != pytest.approx(single.losses()[0], rel=1e-4)


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "kind",
    ["gpt_oss", *(pytest.param(kind, marks=pytest.mark.full) for kind in OTHERS)],
)
def test_other_layouts_of_experts_train_alike(
    kind: str, tmp_path: Path, start: Start, made: Callable[[str], Path]
) -> None:
    """Transposed with biases; routers that are corrected by a buffer; inputs that are scaled."""
    settings = (*EXPERTS, "model.double_quant=false", "train.packing=false")
    single = start(tmp_path / "single", *settings, "engine=peft", model=made(kind), count=1)
    pair = start(tmp_path / "pair", *settings, "train.parallel=fsdp", model=made(kind))
    assert single.finish() == [0], single.text()
    assert pair.finish() == [0, 0], pair.text()
    assert_equal(pair, single)


@pytest.mark.full
def test_experts_in_16_bit_are_cut_alike(tmp_path: Path, start: Start, made: Callable[[str], Path]) -> None:
    settings = (*EXPERTS, "model.quantization=none", "train.packing=false")
    single = start(tmp_path / "single", *settings, "engine=peft", model=made("qwen3_moe"), count=1)
    pair = start(tmp_path / "pair", *settings, "train.parallel=fsdp", model=made("qwen3_moe"))
    assert single.finish() == [0], single.text()
    assert pair.finish() == [0, 0], pair.text()
    assert_equal(pair, single)


@pytest.mark.thin(4)
def test_preferences_are_those_of_one_process(
    tmp_path: Path, start: Start, made: Callable[[str], Path], answers: Path
) -> None:
    settings = (*FEW, *EXPERTS, "objective=preference", "train.learning_rate=1e-3")
    one = start(tmp_path / "one", *settings, "engine=peft", model=made("qwen3_moe"), data=answers, count=1)
    two = start(tmp_path / "two", *settings, "train.parallel=fsdp", model=made("qwen3_moe"), data=answers)
    check_equal(two, one)
