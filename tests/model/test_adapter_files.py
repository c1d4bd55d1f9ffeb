"""adapter_config.json from outside: what would take all time or memory is refused soon, with its field."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from merge.made import make_adapter, merged
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.errors import ModelError
from loradock.model import patterns
from loradock.model.adapter_files import check
from loradock.use.inference.opener import open_model

pytestmark = pytest.mark.thin(1)

SLOW = "(?:(?:[a-z_.0-9]+)+)+!"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "100,000 targets": ({"target_modules": [f"m{i}" for i in range(100_000)]}, "at most 10000 items"),
    "100,000 exclusions": ({"exclude_modules": [f"m{i}" for i in range(100_000)]}, "at most 10000 items"),
    "100,000 parameters": ({"target_parameters": [f"m{i}" for i in range(100_000)]}, "at most 10000 items"),
    "100,000 ranks": ({"rank_pattern": {f"m{i}": 4 for i in range(100_000)}}, "at most 1000 items"),
    "100,000 alphas": ({"alpha_pattern": {f"m{i}": 4 for i in range(100_000)}}, "at most 1000 items"),
    "100,000 whole modules": ({"modules_to_save": [f"m{i}" for i in range(100_000)]}, "at most 100 items"),
    "100,000 kinds of layer": ({"layers_pattern": [f"m{i}" for i in range(100_000)]}, "at most 100 items"),
    "100,000 layers": ({"layers_to_transform": list(range(100_000))}, "at most 1000 items"),
    "thousands of replicated layers": ({"layer_replication": [[0, 2]] * 999}, "makes 1,998 layers"),
    "a replication of 9,999 layers": ({"layer_replication": [[0, 9_999]]}, "makes 9,999 layers"),
    "a replication of one number": ({"layer_replication": [[2]]}, "at least 2 items"),
    "iterations of PiSSA": ({"init_lora_weights": "pissa_niter_99999999"}, "init_lora_weights"),
    "iterations of LoftQ": ({"loftq_config": {"loftq_iter": 10**9}}, "loftq_config.loftq_iter"),
    "a module to import": ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron_config"),
}
PATTERNS: dict[str, dict[str, Any]] = {
    "target_modules": {"target_modules": SLOW},
    "exclude_modules": {"exclude_modules": SLOW},
    "rank_pattern": {"rank_pattern": {SLOW: 4}},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 8, SLOW: 4}},
    "modules_to_save": {"modules_to_save": [SLOW]},
    "layers_pattern": {"layers_pattern": [SLOW], "layers_to_transform": [1]},
}


@pytest.fixture
def adapter(tmp_path: Path, llama: Path) -> Path:
    return make_adapter(tmp_path / "adapter", base=llama)


def edit(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_beyond_its_range_is_refused_by_its_field(adapter: Path, case: str) -> None:
    changes, words = REFUSED[case]
    edit(adapter, **changes)
    before = time.process_time()
    with pytest.raises(ModelError) as refused:
        check(adapter)
    assert time.process_time() - before < 2
    assert any(words in problem.what for problem in refused.value.problems), refused.value.problems
    assert all(problem.file == str(adapter / "adapter_config.json") for problem in refused.value.problems)
    assert refused.value.exit_code == 78


def test_settings_of_megabytes_are_refused_unread(adapter: Path) -> None:
    edit(adapter, extra="x" * (5 << 20))
    with pytest.raises(ModelError, match="where 4,194,304 are the most"):
        check(adapter)


@pytest.mark.thin(6)
@pytest.mark.parametrize("setting", PATTERNS)
def test_a_pattern_that_does_not_end_is_given_up_and_told(adapter: Path, setting: str) -> None:
    edit(adapter, **PATTERNS[setting])
    before = time.monotonic()
    with pytest.raises(ModelError) as refused:
        patterns.check(adapter, check(adapter), ["model.layers.1.self_attn.q_proj"], seconds=1)
    assert time.monotonic() - before < 20
    (problem,) = refused.value.problems
    assert problem.what.startswith(f"{setting}: '(?:(?:[a-z_.0-9]+)+)+!' does not end within 1 s")


@pytest.mark.parametrize("verb", ["open", "merge"])
def test_what_is_no_pattern_is_told_with_what_is_wrong_in_it(adapter: Path, tmp_path: Path, verb: str) -> None:
    edit(adapter, target_modules="(q_proj+")
    with pytest.raises(ModelError) as refused:
        open_model(adapter) if verb == "open" else merged(adapter, tmp_path / "out")
    (problem,) = refused.value.problems
    assert problem.what == (
        "target_modules: '(q_proj+' is not a pattern: re.error: missing ), unterminated subpattern at position 0"
    )


def test_the_patterns_that_people_write_are_taken(tmp_path: Path, llama: Path) -> None:
    """Of PEFT's documentation and of published adapters."""
    adapter = make_adapter(
        tmp_path / "adapter",
        base=llama,
        target_modules=r"(?i).*\.(self_attn\.(q|k|v|o)_proj|mlp\.down_proj)",
        exclude_modules=r"model\.layers\.0\..*",
        rank_pattern={r"layers\.1\.self_attn\.q_proj": 2, "^model.*v_proj": 3},
        alpha_pattern={r"layers\.\d+\.mlp\..*": 8},
    )
    assert open_model(adapter).has_adapter
    merged(adapter, tmp_path / "out")


def test_replicated_layers_are_answered_from_and_merging_them_is_refused_with_the_reason(
    tmp_path: Path, llama: Path
) -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        target_modules=["q_proj"],
        layer_replication=[(0, 2), (0, 2)],
        init_lora_weights=False,
    )
    get_peft_model(base, settings).save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=False)
    AutoTokenizer.from_pretrained(llama).save_pretrained(tmp_path / "adapter")
    opened = open_model(tmp_path / "adapter", quantization="none", base=str(llama))
    assert len(opened.model.get_base_model().model.layers) == 4
    with pytest.raises(ModelError, match=r"an adapter of replicated layers \(layer_replication\), which is not merged"):
        merged(tmp_path / "adapter", tmp_path / "out", quantization="none", base=str(llama))
