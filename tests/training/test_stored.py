"""Bases in FP8 and in compressed-tensors: read as their weights in 16 bit are, trained, continued, merged, refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quantised_files as stored_files
import torch
from bitsandbytes import functional
from safetensors.torch import load_file, save_file
from tiny import copy_tree
from transformers import modeling_utils
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from whole_runs import adapter_bytes, losses, train

from loradock.config.sections.model import ModelConfig
from loradock.errors import LoradockError, ModelError
from loradock.model import load, made_dense, prequantised, source, whole
from loradock.model.experts.storage import NF4Experts
from loradock.model.finite import check as check_finite
from loradock.model.stored import FORMATS, Header, scaled
from loradock.use.inference.opener import open_model
from loradock.use.merge.job import Asked, prepared
from loradock.use.merge.run import run

pytestmark = pytest.mark.thin(1)

RUN = ("train.max_steps=4", "train.global_batch=8", "lora.rank=4", "train.learning_rate=1e-2", "checkpoints.every=2")
MATRIX = "model.layers.0.self_attn.q_proj.weight"
Pair = tuple[Path, Path]
Published = Callable[[str], Pair]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """(quantised files, twin in 16 bit) by name, made once."""
    place = tmp_path_factory.mktemp("stored")
    made: dict[str, Pair] = {}

    def base(kind: str) -> Path:
        return place / kind if (place / kind).exists() else stored_files.base(kind, place / kind)

    def pair(name: str) -> Pair:
        if name not in made:
            kind, _, way = name.partition(" ")
            folder = place / name.replace(" ", "-")
            form, _, strategy = way.partition(" ")
            if not form:
                made[name] = stored_files.fp8(base(kind), folder)
            elif form == "static":
                made[name] = stored_files.fp8(base(kind), folder, block=None)
            else:
                made[name] = stored_files.compressed(base(kind), folder, kind=form, strategy=strategy)
        return made[name]

    return pair


def opened(directory: Path, quantization: str, *, dtype: torch.dtype = torch.float32) -> Any:
    asked = ModelConfig(name=str(directory), quantization=quantization)  # pyright: ignore[reportArgumentType]
    base = source.find(asked)
    whole.check(base)
    return load.load_whole(base, asked, dtype=dtype, device="cpu")


def values(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight as it lies in memory."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, NF4Experts):
            yield from ((f"{name}.{key}", part) for key, part in parameter.parts.items() if part is not None)
            continue
        yield name, parameter.data
        if (state := getattr(parameter, "quant_state", None)) is not None:
            yield f"{name}.dense", functional.dequantize_4bit(parameter.data, state)


def assert_equal(one: Any, other: Any) -> None:
    ours, theirs = dict(values(one)), dict(values(other))
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    "name",
    [
        "qwen3",
        "qwen3 static",
        "mixtral",
        "qwen3_moe",
        "deepseek_v3",
        "qwen3 float-quantized channel",
        "qwen3 float-quantized tensor",
        "qwen3 int-quantized channel",
        "qwen3 pack-quantized group",
        "qwen3 pack-quantized channel",
        "mixtral float-quantized channel",
    ],
)
def test_a_base_is_opened_bit_for_bit_as_its_dense_weights_are(name: str, published: Published) -> None:
    quantised, twin = published(name)
    for quantization in ("nf4", "none"):
        assert_equal(opened(quantised, quantization), opened(twin, quantization))


@pytest.mark.parametrize("fault", ["transposed", "of the neighbour"])
def test_wrong_scales_are_seen(fault: str, published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_scales = scaled.multipliers
    wrong: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "transposed": lambda scales: whole_scales(scales).T,
        "of the neighbour": lambda scales: whole_scales(scales).roll(1, dims=-1),
    }
    monkeypatch.setattr(scaled, "multipliers", wrong[fault])
    quantised, twin = published("qwen3")
    with pytest.raises(AssertionError):
        assert_equal(opened(quantised, "none"), opened(twin, "none"))


def test_values_are_those_of_transformers_where_blocks_fit() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(256, 384, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=generator)
    weight = scaled.Scaled(shape=(256, 384), dtype="bfloat16", parts=("", ""), block=(128, 128))
    theirs = Fp8Dequantize(None)
    assert torch.equal(weight.dense(numbers, scales), theirs._dequantize_one(numbers, scales, torch.bfloat16))
    exponents = torch.randint(120, 130, (2, 3), generator=generator, dtype=torch.uint8)
    assert torch.equal(weight.dense(numbers, exponents), theirs._dequantize_one(numbers, exponents, torch.bfloat16))
    powers = exponents.view(torch.float8_e8m0fnu)
    assert torch.equal(weight.dense(numbers, powers), weight.dense(numbers, exponents))
    with pytest.raises(ValueError, match="not divisible by scale grid"):  # of DeepSeek-V3 one matrix has 576 rows
        theirs._dequantize_one(numbers[:255], scales, torch.bfloat16)


@pytest.mark.thin(4)
@pytest.mark.parametrize(("name", "targets"), [("qwen3", "all-linear"), ("deepseek_v3", "[all-linear,experts]")])
def test_a_run_is_that_of_the_dense_weights_goes_on_and_is_merged(
    name: str, targets: str, published: Published, rows: Path, tmp_path: Path
) -> None:
    quantised, twin = published(name)
    settings = (*RUN, f"lora.targets={targets}")
    result = train(tmp_path / "run", *settings, model=quantised, data=rows)
    of_twin = train(tmp_path / "twin", *settings, model=twin, data=rows)
    assert losses(result) == losses(of_twin)
    assert adapter_bytes(result) == adapter_bytes(of_twin)
    assert losses(result)[-1] < losses(result)[0]
    covered = result.record["coverage"]
    assert covered["stored_as"] == "FP8"
    assert 0.05 < covered["added_error"] < 0.15
    assert (of_twin.record["coverage"]["stored_as"], of_twin.record["coverage"]["added_error"]) == (None, None)
    cut = copy_tree(result.directory, tmp_path / "cut")
    shutil.rmtree(cut / "checkpoints" / "checkpoint-4")
    shutil.rmtree(cut / "adapter")
    resumed = train(cut, *settings, model=quantised, data=rows)
    assert resumed.record["resumed_from"] == "checkpoint-2"
    assert adapter_bytes(resumed) == adapter_bytes(result)
    for run_name in ("run", "twin"):
        with prepared(tmp_path / run_name, Asked()) as job:
            run(job, tmp_path / f"merged-{run_name}", is_full=False)
    ours, theirs = (load_file(tmp_path / f"merged-{each}" / "model.safetensors") for each in ("run", "twin"))
    assert ours.keys() == theirs.keys()
    assert not [key for key in ours if ours[key].dtype != theirs[key].dtype or not torch.equal(ours[key], theirs[key])]
    assert "quantization_config" not in json.loads((tmp_path / "merged-run" / "config.json").read_text())
    ids = torch.arange(5, 25)[None]
    answers = [open_model(tmp_path / each, dtype="float32", device="cpu") for each in ("run", "twin")]
    with torch.no_grad():
        logits = [each.model(input_ids=ids).logits for each in answers]
    assert torch.equal(*logits)


def spoilt(published: Published, name: str, place: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    base = copy_tree(published(name)[0], place)
    tensors = load_file(base / "model.safetensors")
    change(tensors)
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    return base


def test_scales_that_are_missing_or_of_another_shape_are_told(published: Published, tmp_path: Path) -> None:
    gate = "model.layers.0.mlp.gate_proj.weight"

    def lose(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"{MATRIX}_scale_inv"]

    def turn(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{gate}_scale_inv"] = tensors[f"{gate}_scale_inv"].T.contiguous()

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[MATRIX].view(torch.uint8)[1, 1] = 0x7F

    with pytest.raises(ModelError, match=rf"no scales beside them \(_scale_inv\): {MATRIX}"):
        opened(spoilt(published, "qwen3", tmp_path / "lost", lose), "nf4")
    with pytest.raises(ModelError, match=r"gate_proj.weight is \[320, 192\] in blocks of 128 x 128, and has scales"):
        opened(spoilt(published, "qwen3", tmp_path / "turned", turn), "nf4")
    base = spoilt(published, "qwen3", tmp_path / "spoilt", spoil)
    with pytest.raises(ModelError, match="not finite") as caught:
        check_finite(base.glob("*.safetensors"))
    assert f"{MATRIX} holds NaN" in str(caught.value)


def test_a_packed_weight_of_another_shape_than_it_says_is_told(published: Published, tmp_path: Path) -> None:
    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{MATRIX}_shape"] = torch.tensor([192, 190])

    base = spoilt(published, "qwen3 pack-quantized channel", tmp_path / "base", shrink)
    with pytest.raises(LoradockError, match=r"is \[192, 192\], and .* \[192, 190\]"):
        opened(base, "nf4")


COMPRESSED = {
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "channel", "symmetric": True}}},
}


def test_numbers_without_known_scales_are_told() -> None:
    stacked = "model.layers.0.mlp.experts.gate_up_proj"
    headers = {MATRIX: Header("F8_E4M3", (8, 4)), f"{MATRIX}_scale": Header("BF16", (8, 1))}
    headers |= {f"{stacked}_scale": Header("BF16", (2, 8, 1)), "model.k.input_zero_point": Header("I8", (1,))}
    assert set(FORMATS["compressed-tensors"].find(headers, COMPRESSED, dtype="bfloat16").weights) == {MATRIX}
    headers[stacked] = Header("F8_E4M3", (2, 8, 4))
    with pytest.raises(ModelError, match=rf"scales are not known, .* NAME\.weight: {stacked}"):
        FORMATS["compressed-tensors"].find(headers, COMPRESSED, dtype="bfloat16")


@pytest.mark.parametrize(
    ("method", "settings", "scale"),
    [("fp8", {}, "_scale_inv"), ("compressed-tensors", COMPRESSED, "_scale"), ("packed", COMPRESSED, "_scale")],
)
def test_a_quantised_tensor_that_is_no_matrix_is_told(method: str, settings: dict[str, Any], scale: str) -> None:
    held = f"{MATRIX}_packed" if method == "packed" else MATRIX
    headers = {held: Header("I32" if method == "packed" else "F8_E4M3", (8,))}
    headers |= {f"{MATRIX}{scale}": Header("F32", (1,)), f"{MATRIX}_shape": Header("I64", (2,))}
    form = FORMATS["compressed-tensors" if method == "packed" else method]
    with pytest.raises(ModelError, match=rf"{held} is \[8\], and no matrix") as caught:
        form.find(headers, settings, dtype="bfloat16")
    assert caught.value.hint == scaled.AGAIN


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_base_whose_configuration_names_fp8_as_its_dtype_is_opened(
    key: str, published: Published, tmp_path: Path
) -> None:
    quantised, twin = published("qwen3")
    base = copy_tree(quantised, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    del config["dtype"]
    (base / "config.json").write_text(json.dumps({**config, key: "float8_e4m3fn"}))
    assert_equal(opened(base, "none", dtype=torch.bfloat16), opened(twin, "none", dtype=torch.bfloat16))


def test_what_is_written_of_a_base_that_names_fp8_names_the_dtype_of_dense_weights() -> None:
    text, vision = {"dtype": "float16"}, {"dtype": "float8_e4m3fn"}
    config = {"torch_dtype": "float8_e5m2", "text_config": text, "vision_config": vision, "quantization_config": {}}
    made_dense.unquantise(config)
    dense = {"dtype": "bfloat16"}
    assert config == {"torch_dtype": "bfloat16", "text_config": {"dtype": "float16"}, "vision_config": dense}


def test_files_that_are_not_what_the_configuration_says_are_told(published: Published, tmp_path: Path) -> None:
    quantised, twin = published("qwen3")
    base = copy_tree(twin, tmp_path / "base")
    (base / "config.json").write_text((quantised / "config.json").read_text())
    with pytest.raises(ModelError, match=r"has no weights in FP8, and its config\.json says so"):
        opened(base, "nf4")


def test_files_that_are_read_whole_are_refused(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_utils, "_is_on_hf_mount", lambda _: True)
    with pytest.raises(ModelError, match="was not read one tensor at a time"):
        opened(published("qwen3")[0], "none")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, r"is already quantised \(gptq\)"),
        ({"quant_method": "awq", "bits": 4}, r"is already quantised \(awq\)"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "experts in fp4 beside FP8"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "blocks of"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "of format nvfp4-pack-quantized"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "symmetric": False}}},
            },
            "not symmetric around zero",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "int-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "group", "group_size": None}}},
            },
            "scales by 'group', which are not read",
        ),
        ({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": [1]}, "0 kinds of weights"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {f"group_{bits}": {"weights": {"num_bits": bits}} for bits in (4, 8)},
            },
            "2 kinds of weights",
        ),
    ],
)
def test_what_is_not_opened_is_refused_with_the_name_of_the_model_in_16_bit(
    settings: dict[str, Any], words: str, published: Published, tmp_path: Path
) -> None:
    base = copy_tree(published("qwen3")[1], tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    (base / "README.md").write_text("---\nlicense: mit\nbase_model:\n- Qwen/Qwen3-8B\n---\nbase_model: no/one\n")
    with pytest.raises(ModelError, match=words) as caught:
        source.find(ModelConfig(name=str(base)))
    assert caught.value.hint == "give the 16-bit model that it was made from: Qwen/Qwen3-8B"
    (base / "README.md").unlink()
    with pytest.raises(ModelError, match=words) as caught:
        source.find(ModelConfig(name=str(base)))
    assert caught.value.hint == prequantised.ORIGINAL


def test_one_tensor_at_a_time_is_dense_while_a_base_becomes_nf4(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    most = 0
    dense = made_dense.DenseFiles.tensor

    def counted(files: Any, name: str) -> torch.Tensor:
        import weakref

        nonlocal most
        tensor = dense(files, name)
        made.append(weakref.ref(tensor))
        most = max(most, sum(each() is not None for each in made))
        return tensor

    monkeypatch.setattr(made_dense.DenseFiles, "tensor", counted)
    opened(published("qwen3")[0], "nf4", dtype=torch.bfloat16)
    assert len(made) == 14
    assert most <= 2  # one that is being quantised, and the next


@pytest.mark.thin(6)
@pytest.mark.parametrize("block", [[128, 128], [1, 40], [300, 200]])
def test_experts_in_one_tensor_have_their_own_scales(block: list[int]) -> None:
    matrices = torch.randn(3, 300, 200, generator=torch.Generator().manual_seed(0))
    parts = [list(stored_files.fp8_parts("weight", matrix, block=block).values()) for matrix in matrices]
    numbers, scales = (torch.stack(each) for each in zip(*parts, strict=True))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    headers = {name: Header("F8_E4M3", (3, 300, 200)), f"{name}_scale_inv": Header("F32", tuple(scales.shape))}
    headers |= {f"{name}_activation_scale": Header("F32", (3,))}
    contents = FORMATS["fp8"].find(headers, {"weight_block_size": block}, dtype="float32")
    assert set(contents.weights) == {name}
    assert contents.part_names == headers.keys() - {name}
    expected = torch.stack([stored_files.fp8_values(*each, block=block) for each in parts])
    assert torch.equal(contents.weights[name].dense(numbers, scales), expected)
