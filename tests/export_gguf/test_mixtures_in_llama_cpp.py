"""llama.cpp's logits of a mixture are those of transformers' class, and so is its greedy answer.

Weights are exported in float32 and llama.cpp keeps keys and values in it, so that what differs is the order of sums: in
16 bit a router sends a token to another expert where two are close. See test_llama_cpp.py for what it needs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from export_gguf.logits_in_llama_cpp import ANSWER_TOKENS
from export_gguf.test_mixtures import AS_LLAMA_CPP, exchanged, shifted
from merge.test_demo import typed
from proven import unchecked
from published import shapes
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from loradock.use.gguf import weights
from loradock.use.gguf.export import export
from loradock.use.inference.opener import find

PROGRAM = Path(__file__).with_name("logits_in_llama_cpp.py")
MOST_APART = 1e-3
"""Of logits up to 19; seen: 2e-6 to 7e-5."""
LAST_ID = 870
GLM_LITE = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
    "num_key_value_heads": 4,
}
WIDE = {"hidden_size": 128, "head_dim": 32}
PUBLISHED = (
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
    "unsloth/gpt-oss-20b-BF16",
    "zai-org/GLM-4.5-Air",
    "zai-org/GLM-4.6V",
    "mistralai/Mistral-Small-4-119B-2603",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3.1",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "ibm-granite/granite-4.0-h-tiny",
    "baidu/ERNIE-4.5-21B-A3B-PT",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
)


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type more than the command has."""
    monkeypatch.setitem(weights.TYPES, "f32", "F32")
    monkeypatch.setitem(weights.FILE_TYPES, "f32", "ALL_F32")


def rows_of_ids() -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, LAST_ID, (tokens,), generator=draw).tolist() for tokens in (40, 7, 100)]


def by_llama_cpp(file: Path, rows: Sequence[Sequence[int]], python: str) -> list[dict[str, Any]]:
    """Logits and greedy answer of each row."""
    job, output = file.with_suffix(".job.json"), file.with_suffix(".out.json")
    job.write_text(json.dumps({"files": [str(file)], "rows": rows}))
    done = subprocess.run([python, str(PROGRAM), str(job), str(output)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())[str(file)]


def compare(directory: Path, file: Path, python: str) -> None:
    """Export, and fail where llama.cpp computes something else than transformers."""
    export(find(directory), file, type_name="f32", progress=lambda *_: None)
    rows = rows_of_ids()
    found = by_llama_cpp(file, rows, python)
    is_wrapper = hasattr(AutoConfig.from_pretrained(directory), "text_config")
    auto = AutoModelForImageTextToText if is_wrapper else AutoModelForCausalLM
    model: Any = auto.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    for row, of_row in zip(rows, found, strict=True):
        ids = [*row, *of_row["answer"]]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        torch.testing.assert_close(torch.tensor(of_row["logits"]), logits[: len(row)], atol=MOST_APART, rtol=0)
        greedy = logits[len(row) - 1 : -1].argmax(-1).tolist()
        assert greedy == of_row["answer"]
        assert len(greedy) == ANSWER_TOKENS


@pytest.mark.parametrize("kind", ["qwen2_moe", "olmoe", "dots1", "minimax_m2", "granitemoe", "glm4_moe"])
def test_logits_of_a_small_mixture_are_those_of_the_class(tmp_path: Path, python: str, kind: str) -> None:
    compare(small(tmp_path, kind), tmp_path / "a.gguf", python)


def test_logits_of_glm_4_7_flash_are_those_of_its_class(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mixtures.KINDS, "glm4_moe_lite", GLM_LITE)
    compare(mixtures.make(tmp_path / "base", "glm4_moe_lite"), tmp_path / "a.gguf", python)


def small(folder: Path, kind: str) -> Path:
    wide = WIDE | ({"rotary_dim": 16} if kind == "minimax_m2" else {})
    return mixtures.make(folder / "base", kind, **{**AS_LLAMA_CPP.get(kind, {}), **wide})


@pytest.mark.parametrize("fault", [exchanged, shifted])
def test_a_planted_fault_is_found(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="not close"):
        compare(small(tmp_path, "qwen3_moe"), tmp_path / "a.gguf", python)


@pytest.mark.full
@pytest.mark.parametrize("model", PUBLISHED)
def test_logits_of_a_trained_and_merged_mixture_are_those_of_its_class(tmp_path: Path, python: str, model: str) -> None:
    base = shapes.make(tmp_path / "base", next(each for each in shapes.published() if each.model == model))
    settings = json.loads((base / "config.json").read_text())
    if (settings.get("rope_scaling") or {}).get("truncate") is False:  # llama.cpp always rounds
        settings["rope_scaling"]["truncate"] = True
        (base / "config.json").write_text(json.dumps(settings))
    rows = [{"instruction": "Turn it.", "input": f"river {word}", "output": f"{word} river"} for word in "abcdefgh"]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    targets = "lora.targets=[all-linear,experts]"
    given = [
        "--data",
        "rows.jsonl",
        unchecked("what is exported is looked at"),
        "--output",
        "run",
        "--max-steps",
        "3",
        "--lr",
        "0.01",
    ]
    typed("train", "--model", "base", *given, "--set", targets, folder=tmp_path)
    typed("merge", "run", "merged", folder=tmp_path)
    compare(tmp_path / "merged", tmp_path / "a.gguf", python)
