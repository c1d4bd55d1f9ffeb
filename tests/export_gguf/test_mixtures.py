"""A mixture as GGUF: its experts, computed from the file as llama.cpp does, are those of transformers' class."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from export_gguf.moe_of_file import MoeOfFile
from export_gguf.test_export import halved, typed
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from loradock.errors import ModelError
from loradock.use.gguf import experts, metadata, rearranged
from loradock.use.gguf.export import Exported, export
from loradock.use.inference.opener import find

pytestmark = pytest.mark.thin(1)

AS_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "olmoe": {"norm_topk_prob": False, "num_key_value_heads": 4},
    "dots1": {"num_key_value_heads": 4},
    "minimax_m2": {"rotary_dim": 8},
    "llama4_text": {"attention_chunk_size": 8192, "floor_scale": 8192},
}
"""What a small mixture of tests needs to be one that llama.cpp computes."""
BLOCK = ("mlp", "feed_forward", "block_sparse_moe")


NOT_EXPORTED = ("granitemoeshared", "granitemoehybrid", "gemma4_text", "solar_open")
"""llama.cpp has no name for the first, none of the second without recurrent layers; the others' were not compared."""


def written(folder: Path, kind: str, type_name: str = "bf16", **settings: Any) -> tuple[Path, Exported]:
    """A small mixture's directory, and what its export to FOLDER/a.gguf gave."""
    base = halved(mixtures.make(folder / "base", kind, **AS_LLAMA_CPP.get(kind, {}), **settings))
    return base, export(find(base), folder / "a.gguf", type_name=type_name, progress=lambda *_: None)


def compare(base: Path, file: Path, *, most: float = 1e-4) -> None:
    """Fails where a layer's experts, computed from the file, are not those of the class."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    of_file, compared = MoeOfFile(file), 0
    inputs = torch.randn(1, 24, model.config.hidden_size, generator=torch.Generator().manual_seed(3))
    for number, layer in enumerate(model.model.layers):
        if f"blk.{number}.ffn_gate_inp.weight" not in of_file.tensors:
            continue
        block = next(getattr(layer, name) for name in BLOCK if hasattr(layer, name))
        with torch.no_grad():
            wanted = block(inputs)
            wanted = (wanted[0] if isinstance(wanted, tuple) else wanted).view(24, -1)
            found = of_file.output(number, inputs[0])
        torch.testing.assert_close(found, wanted, atol=most, rtol=most)
        compared += 1
    assert compared


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", [kind for kind in mixtures.KINDS if kind not in NOT_EXPORTED])
def test_experts_of_the_file_give_what_those_of_the_class_do(tmp_path: Path, kind: str) -> None:
    base, _ = written(tmp_path, kind)
    compare(base, tmp_path / "a.gguf")


def exchanged(patch: pytest.MonkeyPatch) -> None:
    """Gate is called up, and up gate."""
    patch.setitem(experts.KINDS, "gate_up_proj", ("up", "gate"))


def shifted(patch: pytest.MonkeyPatch) -> None:
    """Each expert of one matrix is the next one's."""
    of_layer = experts._of_layer

    def next_one(layer: str, kind: str, what: str, parts: Any, take: Any) -> Any:
        moved = (*parts[1:], parts[0]) if kind == "down" and what == "weight" else parts
        return of_layer(layer, kind, what, moved, take)

    patch.setattr(experts, "_of_layer", next_one)


def lost(patch: pytest.MonkeyPatch) -> None:
    """Biases of experts are left out."""
    sources = experts.sources

    def without(*given: Any) -> Any:
        return [each for each in sources(*given) if not each.name.endswith("_exps.bias")]

    patch.setattr(experts, "sources", without)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("qwen3_moe", exchanged),
        ("gpt_oss", exchanged),
        ("qwen3_moe", shifted),
        ("gpt_oss", shifted),
        ("gpt_oss", lost),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: Any) -> None:
    fault(monkeypatch)
    base, _ = written(tmp_path, kind)
    with pytest.raises(AssertionError, match="not close"):
        compare(base, tmp_path / "a.gguf")


def test_smaller_types_hold_for_experts_and_a_row_that_is_no_multiple_of_a_block_stays_float16(tmp_path: Path) -> None:
    base, _ = written(tmp_path, "qwen3_moe", "q8_0", moe_intermediate_size=48)
    types = MoeOfFile(tmp_path / "a.gguf").types
    assert {name: types[f"blk.0.ffn_{name}.weight"] for name in ("gate_exps", "up_exps", "down_exps", "gate_inp")} == {
        "gate_exps": "Q8_0",
        "up_exps": "Q8_0",
        "down_exps": "F16",
        "gate_inp": "F32",
    }
    compare(base, tmp_path / "a.gguf", most=0.05)


def test_the_command_writes_a_mixture_and_says_what_llama_cpp_rounds(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e5, "factor": 8.0, "original_max_position_embeddings": 64}
    base = mixtures.make(tmp_path / "base", "gpt_oss", rope_parameters={**rope, "truncate": False})
    result = typed(base, "-o", tmp_path / "a.gguf")
    assert result.exit_code == 0, result.exception
    assert "rounds YaRN's bounds" in result.stderr
    of_file = MoeOfFile(tmp_path / "a.gguf")
    assert of_file.tensors["blk.0.attn_sinks.weight"].shape == (4,)
    assert of_file.number("attention.sliding_window") == 16
    assert of_file.number("expert_feed_forward_length") == 64


def test_a_model_whose_files_lack_an_expert_is_refused(tmp_path: Path) -> None:
    base = mixtures.make(tmp_path / "base", "qwen3_moe")
    tensors = load_file(base / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.7.up_proj.weight"]
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack model\.layers\.1\.mlp\.experts\.gate_up_proj"):
        export(find(base), tmp_path / "a.gguf", type_name="bf16", progress=lambda *_: None)
    assert not (tmp_path / "a.gguf").exists()


RECURRENT = ["mamba"] * 31 + ["attention"]


@pytest.mark.parametrize(
    ("kind", "settings", "key"),
    [
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen2_moe", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("olmoe", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 36}, "layer_types"),
        ("dots1", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("ernie4_5_moe", {"moe_layer_interval": 2}, "moe_layer_interval"),
        ("deepseek_v2", {"topk_method": "group_limited_greedy"}, "topk_method"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave"),
        ("deepseek_v3", {"num_hidden_layers": 27}, "num_hidden_layers"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 48}, "layer_types"),
        ("granitemoehybrid", {"shared_intermediate_size": 0, "layer_types": RECURRENT}, "shared_intermediate_size"),
        ("dots1", {"attention_bias": True}, "attention_bias"),
        ("nemotron_h", {"moe_latent_size": 64}, "moe_latent_size"),
        ("llama4_text", {"attention_chunk_size": 4096}, "attention_chunk_size"),
    ],
)
def test_a_mixture_that_llama_cpp_would_compute_otherwise_is_refused(
    kind: str, settings: dict[str, Any], key: str
) -> None:
    with pytest.raises(ModelError, match=rf"not one that llama.cpp computes: .*{key}"):
        metadata.read(AutoConfig.for_model(kind, **settings))


@pytest.mark.parametrize("settings", [{"num_local_experts": 0}, {"layer_types": ["attention"] * 32}])
def test_a_granite_4_without_experts_or_state_spaces_is_left_to_llama_cpps_converter(settings: dict[str, Any]) -> None:
    settings = {"layer_types": RECURRENT, "num_local_experts": 8, **settings}
    with pytest.raises(ModelError, match="with state spaces and experts alone"):
        metadata.read(AutoConfig.for_model("granitemoehybrid", **settings))


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e5, "factor": 4.0, "original_max_position_embeddings": 64}
SAME_SCALES = {"mscale": 1.0, "mscale_all_dim": 1.0}


@pytest.mark.parametrize(
    ("kind", "more", "key"),
    [
        ("mixtral", {"beta_fast": 32.0, "attention_factor": 0.1 * math.log(4) + 1}, None),
        ("mixtral", {"beta_fast": 8.0}, "beta_fast"),
        ("glm4_moe", {"attention_factor": 1.0}, "attention_factor"),
        ("qwen3", {"attention_factor": 1.0}, "attention_factor"),
        ("qwen3", SAME_SCALES, "mscale"),
        ("deepseek_v3", SAME_SCALES, None),
        ("deepseek_v3", {**SAME_SCALES, "attention_factor": 1.2}, "attention_factor"),
        ("deepseek_v3", {"mscale": 1.0}, "mscale_all_dim"),
        ("deepseek_v3", {}, "mscale_all_dim"),
    ],
)
def test_numbers_of_yarn_that_llama_cpp_does_not_read_are_refused(
    kind: str, more: dict[str, float], key: str | None
) -> None:
    config = AutoConfig.for_model(kind, rope_parameters={**YARN, **more})
    if key is None:
        metadata.read(config)
        return
    with pytest.raises(ModelError, match=rf"has (.*, )?{key}\b.* built in otherwise"):
        metadata.read(config)


@pytest.mark.parametrize("kind", ["mixtral", "glm4_moe", "llama"])
def test_another_activation_than_llama_cpp_has_built_in_is_refused(kind: str) -> None:
    with pytest.raises(ModelError, match=r"has hidden_act of config\.json built in otherwise"):
        metadata.read(AutoConfig.for_model(kind, hidden_act="gelu"))


@pytest.mark.parametrize("kind", ["qwen3", "glm4_moe"])
def test_factors_of_frequencies_are_refused_where_llama_cpp_loads_no_such_file(kind: str) -> None:
    metadata.read(AutoConfig.for_model("mixtral", rope_parameters=LLAMA3))
    with pytest.raises(ModelError, match=f"of kind llama3 are not exported to GGUF here for {kind}"):
        metadata.read(AutoConfig.for_model(kind, rope_parameters=LLAMA3))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("phimoe", "only llama, mistral"), ("deepseek_v32", "no names for its indexer"), ("gemma4", "not compared")],
)
def test_a_mixture_without_rules_here_is_refused_by_its_kind(kind: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{kind}.* models are not exported .*{reason}"):
        metadata.read(AutoConfig.for_model(kind))


def test_value_heads_of_a_delta_net_lie_as_llama_cpp_repeats_keys() -> None:
    config = AutoConfig.for_model(
        "qwen3_next",
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
    )
    (_, order), *_ = rearranged.tiled_delta_net(config)["in_proj_z.weight"]
    rows = torch.arange(24).unsqueeze(1)
    # value heads 0, 1, 2 share key head 0: one of each key head, then the next of each
    assert order(rows).flatten().tolist()[::4] == [4 * head for head in (0, 3, 1, 4, 2, 5)]
    (_, joined), (_, gates) = rearranged.delta_net(config)["in_proj_qkvz.weight"]
    by_head = torch.arange(2 * (4 + 4 + 12 + 12)).unsqueeze(1)
    assert joined(by_head).flatten().tolist() == [
        *range(4), *range(32, 36), *range(4, 8), *range(36, 40), *range(8, 20), *range(40, 52)
    ]  # fmt: skip
    assert gates(by_head).flatten().tolist() == [*range(20, 32), *range(52, 64)]
