"""What once ended as a bug of ours (70), or with the wrong thing blamed, is told by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import make_llama

from loradock.config.schema import RunConfig
from loradock.config.sections.model import LoraConfig, ModelConfig
from loradock.delivery.image.bundle import manifest
from loradock.errors import DataError, ModelError
from loradock.model import load, shape, source
from loradock.training.lineage import Lineage

PROGRAM = Path(sys.executable).with_name("loradock")
LONG = "a" * 300


def loradock(*arguments: str | Path, typed: bytes = b"", **environment: str) -> tuple[int, str]:
    """The exit code, and what it said on stderr."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([PROGRAM, *arguments], input=typed, env=settings, capture_output=True, timeout=300)
    return done.returncode, done.stderr.decode(errors="replace")


def test_a_config_that_asks_for_answers_of_another_form_gets_those_of_the_callers(tmp_path: Path) -> None:
    model = make_llama(tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"return_dict": False, "output_hidden_states": True}))
    asked = ModelConfig(name=str(model), quantization="none")
    loaded = load.load_whole(source.find(asked), asked, dtype="auto", device="cpu")
    answer = loaded(input_ids=loaded.dummy_inputs["input_ids"])
    assert answer.logits.shape[-1] == settings["vocab_size"]
    assert answer.hidden_states is None


@pytest.mark.parametrize(
    ("module", "targets", "quantization", "said"),
    [
        ("layers", "all-linear", "nf4", r"layers holds linear layers that are quantised \(nf4\)"),
        ("mlp", ("q_proj",), "nf4", "mlp holds linear layers that are quantised"),
        ("layers", "all-linear", "none", "layers holds every layer that lora.targets adapts"),
        ("model", ("q_proj",), "none", "model holds every layer"),
    ],
)
def test_a_module_to_save_that_leaves_nothing_to_adapt_is_refused(
    module: str, targets: str | tuple[str, ...], quantization: str, said: str, llama: Path
) -> None:
    lora = LoraConfig.model_validate({"modules_to_save": (module,), "targets": targets})
    config = RunConfig(lora=lora, model=ModelConfig.model_validate({"name": str(llama), "quantization": quantization}))
    with pytest.raises(ModelError, match=said):
        shape.inspect(source.find(config.model), config)


def test_a_module_to_save_beside_the_targets_is_taken(llama: Path) -> None:
    lora = LoraConfig.model_validate({"modules_to_save": ("mlp", "norm"), "targets": ("q_proj",)})
    config = RunConfig(lora=lora, model=ModelConfig(name=str(llama), quantization="none"))
    assert shape.inspect(source.find(config.model), config).targets


def test_a_bundle_manifest_without_a_bottom_is_damaged() -> None:
    with pytest.raises(DataError, match="nests too deep"):
        manifest.read(b"[" * 200_000, file="run.tar")


def test_a_base_of_ten_thousand_characters_is_wrong_in_its_own_file(tmp_path: Path) -> None:
    known = {"quantization": "nf4", "double_quant": True, "compute_dtype": "auto", "special_tokens": "as_text"}
    (tmp_path / "training.json").write_text(json.dumps({**known, "base": "x" * 10_000, "conversations": True}))
    with pytest.raises(ModelError, match=r"training\.json is wrong") as caught:
        Lineage.read(tmp_path)
    assert "base: " in caught.value.problems[0].what


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ("bundle", "verify", LONG),
        ("bundle", "create", LONG, "--data", __file__),
        ("report", LONG),
        ("render", "pod", "--demo", "-o", LONG),
        ("prune", "--scratch", LONG),
        ("diagnose", LONG),
    ],
)
def test_a_name_that_no_file_can_have_is_told_by_every_verb(arguments: tuple[str, ...], tmp_path: Path) -> None:
    code, said = loradock(*arguments, LORADOCK_CACHE=str(tmp_path))
    assert code in {66, 77}
    assert LONG[:60] in said
    assert "File name too long" in said
    assert "Traceback" not in said


def test_python_without_docstrings_is_named_and_not_a_models_config(llama: Path, rows: Path) -> None:
    code, said = loradock("plan", "--model", llama, "--data", rows, PYTHONOPTIMIZE="2")
    assert code == 71
    assert "PYTHONOPTIMIZE=2" in said.splitlines()[0]
    assert said.splitlines()[1] == "hint: unset PYTHONOPTIMIZE"


def test_a_path_that_the_locale_misreads_is_no_control_character(tmp_path: Path) -> None:
    asked = ("config", "show", "--model", "modÉl", "--data", "x.jsonl")
    code, said = loradock(*asked, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    assert code == 78
    assert "holds UTF-8, which this locale reads as ascii (export LC_ALL=C.UTF-8" in said


@pytest.mark.thin(4)
def test_bytes_that_are_no_text_end_a_chat_that_nobody_types_with_65(llama: Path) -> None:
    code, said = loradock("chat", llama, "--device", "cpu", "--max-new-tokens", "1", typed=b"\xe9t\xe9\n")
    assert code == 65
    assert "what was typed is not text in utf-8" in said
    assert "hint: iconv" in said


def test_a_package_that_cannot_be_imported_is_named_before_the_file_that_it_would_open(
    tmp_path: Path, llama: Path
) -> None:
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "tokenizers" / "__init__.py").write_text("raise ImportError('libfoo.so.3: cannot open')\n")
    file = llama / "tokenizer.json"
    code = f"from pathlib import Path\nfrom loradock.model import trial\ntrial.check(Path({str(file)!r}))"
    program = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert "tokenizers cannot be imported: ImportError: libfoo.so.3: cannot open" in done.stderr
