"""What training did not change is handed on as the base has it: adapter and merged model open where the base did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from merge.made import merged
from overlay import overlay
from real import opened_by_4
from real.conftest import Real
from real.opened_by_4 import told
from tiny import BASE, write_rows
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from whole_runs import train

from loradock.model.tokenizer_copy import files_of

NAMES = ("smollm2", "qwen3", "llama3.1", "gemma3", "gpt-oss", "deepseek-v3", "mistral-v1", "mistral-v3")
STEPS = ("train.max_steps=1", "train.global_batch=2", "lora.rank=2", "model.quantization=none")
ANEW = ("demo", "llama3.1", "mistral-v3")
"""A template in a file, one in tokenizer_config.json, and none: another one takes its place."""
QUICK = ("qwen3", "mistral-v3")


def make_base(folder: Path, tokenizer: Path) -> Path:
    """A random Llama of one small layer with somebody's tokenizer, whose files are copied as they are."""
    folder.mkdir()
    for file in files_of(tokenizer):
        shutil.copyfile(file, folder / file.name)
    words = AutoTokenizer.from_pretrained(folder)
    shape: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=4096, tie_word_embeddings=True, **shape)
    config.eos_token_id, config.bos_token_id, config.pad_token_id = words.eos_token_id, words.bos_token_id, None
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": words.eos_token_id, "top_k": 7}))
    return folder


def handed_on(tmp_path: Path, tokenizer: Path, *settings: str) -> tuple[Path, Path, Path]:
    """Base, adapter of a run of one step on it, and merged model."""
    base = make_base(tmp_path / "base", tokenizer)
    rows = write_rows(tmp_path / "rows.jsonl", rows=4)
    adapter = train(tmp_path / "run", *STEPS, *settings, model=base, data=rows).adapter
    merged(tmp_path / "run", tmp_path / "merged")
    return base, adapter, tmp_path / "merged"


def settings_of(folder: Path, name: str = "tokenizer_config.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in NAMES])
def test_adapter_and_merged_model_have_the_tokenizer_files_of_the_base(tmp_path: Path, real: Real, name: str) -> None:
    source = real(name)
    template = settings_of(source).get("chat_template") or (source / "chat_template.jinja").exists()
    base, adapter, whole = handed_on(tmp_path, source)
    for folder in (adapter, whole):
        for file in files_of(base):
            if file.name == "tokenizer_config.json" and name == "smollm2":
                continue  # its package has no tokenizer_config.json: scripts/real-model wrote one by transformers 5
            assert (folder / file.name).read_bytes() == file.read_bytes(), file.name
        assert (folder / "tokenizer.json").is_file()
        assert (folder / "chat_template.jinja").is_file() is (not template or name == "smollm2")
    if name != "gpt-oss":
        assert (whole / "generation_config.json").read_bytes() == (base / "generation_config.json").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "template"),
    [
        *((name, "auto") for name in ("demo", *NAMES)),
        *((name, "chatml") for name in ANEW),
    ],
)
def test_transformers_4_opens_adapter_and_merged_model_and_makes_the_same_tokens(
    tmp_path: Path, real: Real, name: str, template: str
) -> None:
    """Those of training, or what it makes of the base's own files, where the two libraries differ about them."""
    base, adapter, whole = handed_on(tmp_path, BASE if name == "demo" else real(name), f"data.template={template}")
    # The package of smollm2 has no tokenizer_config.json: scripts/real-model wrote one that transformers 4 cannot open.
    of_base = {} if name == "smollm2" else by_4(base)
    as_base = {key: of_base[key] for key in ("ids", "eos", "special") if key in of_base}
    for folder in (adapter, whole):
        theirs, ours = by_4(folder, *["--model"] * (folder == whole)), told(folder, is_model=folder == whole)
        assert theirs.pop("version").startswith("4.57")
        assert ours.pop("version").startswith("5.")
        assert theirs in (ours, ours | as_base)


def by_4(folder: Path, *options: str) -> dict[str, Any]:
    """What `told` says in a process with transformers 4.57."""
    command = [sys.executable, "-W", "ignore", opened_by_4.__file__, folder, *options]
    paths = {"PYTHONPATH": str(overlay("transformers-4.57"))}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
