"""Whatever PEFT writes beside LoRA: merging and answering give the logits of the model that was saved, or refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from merge import forms
from merge.forms import KINDS, answers
from merge.made import merged, write_lineage
from overlay import overlay
from safetensors.torch import load_file, save_file
from tiny import make_llama
from transformers import AutoModelForCausalLM

from loradock.errors import ModelError
from loradock.model import load
from loradock.use.inference.opener import find, with_adapter
from loradock.use.merge import plan
from loradock.use.merge.job import Asked, prepared

pytestmark = [
    pytest.mark.thin(1),
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fan_in_fan_out is set to False:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*save_embedding_layers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*ensure_weight_tying.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:Found missing adapter keys:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LoRA tensor.s. have invalid shape"),
    pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed but the targeted layer"),
    pytest.mark.filterwarnings("ignore:.*target_parameters.*"),
]
WEIGHTS = "adapter_model.safetensors"
TOLERANCE = 2e-5
BASES = {"tied": {}, "untied": {"tie_word_embeddings": False}, "biases": {"attention_bias": True}}
NOT_MERGED = {"lora-bias": "biases of its own", "parameters": "LoRA of kind ParamWrapper"}
ALWAYS_LOST = ("save-head-that-has-lora",)
LOST_WHERE_UNTIED = (
    *("head", "head-by-pattern", "head-tied", "rslora-on-head", "dora-on-head"),
    *("embedding", "embedding-tied", "dora-on-embedding", "tokens-and-head"),
)
LOST_BY_PEFT = {"untied": (*ALWAYS_LOST, *LOST_WHERE_UNTIED), "tied": ALWAYS_LOST, "biases": ALWAYS_LOST}
"""Kinds of which PEFT saves one of embedding and head alone, so that the other's new rows are nowhere."""
NO_ROW_IS_SAVED = "tokens-and-head"
"""Of a tied base, where LoRA on the head lies around trained rows: PEFT saves neither of the two that grew."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for name, shape in BASES.items():
        make_llama(folder / name, **shape)
    return folder


def logits_of_merged(adapter: Path, output: Path) -> torch.Tensor:
    """Of the merged model, loaded by plain transformers."""
    merged(adapter, output)
    return answers(AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32))


def logits_of_opened(adapter: Path, output: Path) -> torch.Tensor:
    """Of base and adapter, as `generate`, `chat`, `evaluate` and the export to sentence-transformers load them."""
    origin = find(adapter)
    model = load.load_whole(origin.base, origin.asked, dtype=torch.float32, device="cpu")
    return answers(with_adapter(model, adapter))


def hold(adapter: Path, kind: str, base: Path, output: Path, *, is_resized: bool) -> None:
    """Merged and opened, the adapter answers as the model that was saved, or is refused for the reason that it has."""
    write_lineage(adapter, base=base, quantization="none")
    wanted = torch.load(adapter / "logits.pt")
    for way in (logits_of_merged, logits_of_opened):
        if is_resized and kind == NO_ROW_IS_SAVED and base.name != "untied":
            with pytest.raises(ModelError, match=r"does not (fit|load)"):
                way(adapter, output)
        elif is_resized and kind in LOST_BY_PEFT.get(base.name, ()):
            with pytest.raises(ModelError, match="whose new rows are lost"):
                way(adapter, output)
        elif kind in NOT_MERGED and way is logits_of_merged:
            with pytest.raises(ModelError, match=NOT_MERGED[kind]):
                way(adapter, output)
        else:
            torch.testing.assert_close(way(adapter, output), wanted, atol=TOLERANCE, rtol=0, msg=f"{adapter} {way}")


@pytest.mark.thin(8)
@pytest.mark.parametrize("is_resized", [False, True], ids=["", "resized"])
@pytest.mark.parametrize("base", ["tied", "untied"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("bias")])
def test_what_peft_saves_by_default_is_merged_and_answers_as_it_did_in_memory(
    tmp_path: Path, bases: Path, kind: str, base: str, is_resized: bool
) -> None:
    adapter = tmp_path / "adapter"
    forms.write(kind, adapter, base=bases / base, is_resized=is_resized)
    hold(adapter, kind, bases / base, tmp_path / "out", is_resized=is_resized)


@pytest.mark.parametrize("kind", ["bias-all", "bias-of-lora", "lora-bias"])
def test_biases_that_were_trained_are_merged_or_refused(tmp_path: Path, bases: Path, kind: str) -> None:
    adapter = tmp_path / "adapter"
    forms.write(kind, adapter, base=bases / "biases", is_resized=False)
    hold(adapter, kind, bases / "biases", tmp_path / "out", is_resized=False)


def test_a_change_that_no_step_writes_is_refused(tmp_path: Path, bases: Path) -> None:
    adapter = tmp_path / "adapter"
    forms.write("head", adapter, base=bases / "tied", is_resized=False)
    write_lineage(adapter, base=bases / "tied", quantization="none")
    with prepared(adapter, Asked()) as job:
        steps = [step for step in job.plan.steps if step.weight != "lm_head.weight"]
        assert len(steps) == len(job.plan.steps) - 1
        with pytest.raises(ModelError, match=r"1 weights that .* would stay as they are, first lm_head\.weight"):
            plan.refuse_unused(adapter, steps, job.plan.adapted)


def spoil(adapter: Path, **changes: torch.Tensor | None) -> None:
    """Put tensors into the adapter's file, or take them out (None)."""
    found = {**load_file(adapter / WEIGHTS), **changes}
    save_file({key: each for key, each in found.items() if each is not None}, adapter / WEIGHTS)


@pytest.mark.parametrize("way", [logits_of_merged, logits_of_opened])
def test_a_tensor_that_nothing_uses_or_that_is_missing_is_refused_by_every_reader(
    tmp_path: Path, bases: Path, way: Callable[[Path, Path], torch.Tensor]
) -> None:
    adapter = tmp_path / "adapter"
    forms.write("plain", adapter, base=bases / "tied", is_resized=False)
    write_lineage(adapter, base=bases / "tied", quantization="none")
    names = list(load_file(adapter / WEIGHTS))
    for extra in ("lm_head.lora_A.weight", "model.norm.lora_B.weight", "lm_head.token_adapter.trainable_tokens_delta"):
        key = f"base_model.model.{extra}"
        spoil(adapter, **{key: torch.zeros(4, 64)})
        with pytest.raises(ModelError, match=rf"1 tensors of .* belong to nothing in .*, first {key}"):
            way(adapter, tmp_path / "out")
        spoil(adapter, **{key: None})
    spoil(adapter, **{names[0]: None})
    with pytest.raises(ModelError, match=rf"1 tensors are missing, first {names[0]}"):
        way(adapter, tmp_path / "out")


def test_what_peft_0_18_writes_otherwise_is_told_with_a_remedy_that_holds(tmp_path: Path, bases: Path) -> None:
    """PEFT 0.18 notes that LoRA is tied and does not tie it; and it drops biases of bias=lora_only when it saves."""
    adapter = tmp_path / "adapter"
    wanted = forms.write("head", adapter, base=bases / "tied", is_resized=False)
    write_lineage(adapter, base=bases / "tied", quantization="none")
    file = adapter / "adapter_config.json"
    settings = json.loads(file.read_text())
    for way in (logits_of_merged, logits_of_opened):
        file.write_text(json.dumps(settings | {"ensure_weight_tying": True}))
        with pytest.raises(ModelError, match="tensors are missing") as caught:
            way(adapter, tmp_path / "out")
        assert 'set "ensure_weight_tying": false in adapter_config.json' in str(caught.value.hint)
        file.write_text(json.dumps(settings | {"ensure_weight_tying": False}))
        torch.testing.assert_close(way(adapter, tmp_path / "out"), wanted, atol=TOLERANCE, rtol=0)
    other = tmp_path / "biases"
    forms.write("bias-of-lora", other, base=bases / "biases", is_resized=False)
    write_lineage(other, base=bases / "biases", quantization="none")
    spoil(other, **{key: None for key in load_file(other / WEIGHTS) if key.endswith(".base_layer.bias")})
    for way in (logits_of_merged, logits_of_opened):
        with pytest.raises(ModelError, match=r"PEFT 0\.18 and older lose the biases"):
            way(other, tmp_path / "biased")


UNLIKE_IN_0_18 = {
    "head-tied": "tensors are missing",
    "head-tied-resized": "tensors are missing",
    "embedding-tied": "tensors are missing",
    "embedding-tied-resized": "tensors are missing",
}
"""Of a tied base: PEFT 0.18 does not tie LoRA."""
BIASED_IN_0_18 = {"bias-of-lora": "lose the biases", "bias-of-lora-resized": "lose the biases"}


@pytest.mark.full
def test_every_file_that_peft_0_18_writes_is_merged_and_answers_as_it_did_in_memory(
    tmp_path: Path, bases: Path
) -> None:
    paths = {"PYTHONPATH": f"{overlay('peft-0.18')}:{Path(__file__).parents[1]}"}
    command = [sys.executable, "-W", "ignore", forms.__file__, bases, tmp_path / "made"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **paths}, check=True)
    unknown = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert unknown == {f"{base} tokens-of-both" for base in ("biases", "tied")}, done.stdout
    made = sorted((tmp_path / "made").glob("*/*/adapter_config.json"))
    assert len(made) == 2 * (3 * len(KINDS) - 2)
    for adapter in (file.parent for file in made):
        base, kind = bases / adapter.parent.name, adapter.name.removesuffix("-resized")
        output = tmp_path / "out" / base.name / adapter.name
        unlike = UNLIKE_IN_0_18 if base.name != "untied" else {}
        unlike = unlike | BIASED_IN_0_18 if base.name == "biases" else unlike
        if refusal := unlike.get(adapter.name):
            write_lineage(adapter, base=base, quantization="none")
            for way in (logits_of_merged, logits_of_opened):
                with pytest.raises(ModelError, match=refusal):
                    way(adapter, output)
        else:
            hold(adapter, kind, base, output, is_resized=kind != adapter.name)
