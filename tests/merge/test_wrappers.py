"""A base that also sees is merged whole: its towers as they are, its answers those of base and adapter."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from merge.made import merged, reference, write_lineage
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoTokenizer
from wrappers import KINDS, ONE_KIND, make_wrapper

from loradock.errors import ModelError
from loradock.model.tokenizer_copy import as_both_read, copy_tokenizer
from loradock.use.merge import plan
from loradock.use.merge.job import Asked, prepared
from loradock.use.merge.proof import kl

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*tie_word_embeddings.*:UserWarning"),
    pytest.mark.usefixtures("forked_proof"),
]
IN_FLOAT32 = 1e-8
LANGUAGE = r".*\blanguage_model\..*_proj"
ROUTERS = {"llama4": ["router"]}
"""Of a kind: layers that answer with a pair, on which PEFT's layer fails; PEFT warns where nothing is excluded."""
OF_PROCESSORS = {
    "preprocessor_config.json": '{"image_processor_type": "SiglipImageProcessor"}',
    "video_preprocessor_config.json": '{"video_processor_type": "Qwen3VLVideoProcessor"}',
    "processor_config.json": '{"processor_class": "Gemma3Processor", "image_seq_length": 4}',
}
IDS = torch.randint(800, (4, 48), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for kind in KINDS:
        make_wrapper(folder / kind, kind)
        for name, text in OF_PROCESSORS.items():
            (folder / kind / name).write_text(text)
    return folder


def make_adapter(folder: Path, base: Path, *, quantization: str = "none", tower: float = 0.0, **lora: Any) -> Any:
    """An adapter that plain PEFT makes on the published class; the model that was saved. `tower`: LoRA's B there."""
    torch.manual_seed(1)
    model: Any = getattr(transformers, KINDS[base.name][0]).from_pretrained(base, dtype=torch.float32)
    settings = {"task_type": "CAUSAL_LM", "r": 4, "target_modules": LANGUAGE, **lora}
    adapted = get_peft_model(model, LoraConfig(**settings))
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            is_tower = "language_model" not in name and "lm_head" not in name
            parameter.data.normal_(std=tower if is_tower and "lora_B" in name else 0.05)
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    copy_tokenizer(base, folder)  # as a run does; saved by its class, Qwen 3.5's would be another tokenizer
    write_lineage(folder, base=base, quantization=quantization)
    return adapted.eval()


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def published(folder: Path, kind: str) -> Any:
    """The model of a directory by the class that its publisher gave it."""
    return getattr(transformers, KINDS[kind][0]).from_pretrained(folder, dtype=torch.float32)


def of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits.log_softmax(dim=-1)


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("kind", "quantization"),
    [(kind, "none") for kind in KINDS]
    + [pytest.param(kind, "nf4", marks=[pytest.mark.full] * (kind != "qwen3_5")) for kind in KINDS],
)
def test_the_published_class_answers_as_base_and_adapter_do(
    tmp_path: Path, bases: Path, kind: str, quantization: str
) -> None:
    saved = make_adapter(tmp_path / "adapter", bases / kind, quantization=quantization)
    merged(tmp_path / "adapter", tmp_path / "out", dtype="f32", is_full=True)  # which another process answers
    assert json.loads((tmp_path / "out" / "merge.json").read_text())["verified"]["kl_mean"] <= IN_FLOAT32
    found = of(published(tmp_path / "out", kind))
    assert float(kl(of(reference(tmp_path / "adapter", quantization=quantization)), found).mean()) <= IN_FLOAT32
    if quantization == "none":
        assert float(kl(of(saved), found).mean()) <= IN_FLOAT32
        assert float(kl(of(published(bases / kind, kind)), found).mean()) > 100 * IN_FLOAT32
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    own = json.loads((bases / kind / "config.json").read_text())
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    assert {part["dtype"] for part in parts if "dtype" in part} == {"float32"}
    for part in (*parts, own, *(part for part in own.values() if isinstance(part, dict))):
        part.pop("dtype", None)
    assert config == own


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", KINDS)
def test_towers_are_the_bases_to_the_byte_and_every_file_is_there(tmp_path: Path, bases: Path, kind: str) -> None:
    """Of a base in many files, too."""
    many, words = tmp_path / "base" / kind, AutoTokenizer.from_pretrained(bases / kind)
    model: Any = getattr(transformers, KINDS[kind][0]).from_pretrained(bases / kind)
    model.save_pretrained(many, max_shard_size="100KB")
    words.save_pretrained(many)
    assert len(list(many.glob("*.safetensors"))) > 2
    for name, base in (("one", bases / kind), ("many", many)):
        make_adapter(tmp_path / f"adapter-{name}", base)
        merged(tmp_path / f"adapter-{name}", tmp_path / name)
        own, found = tensors(base), tensors(tmp_path / name)
        assert found.keys() == own.keys()
        beside = [name for name in own if "language_model" not in name and "lm_head" not in name]
        assert len(beside) > 5
        assert all(torch.equal(found[name].view(torch.uint8), own[name].view(torch.uint8)) for name in beside)
        assert sum(not torch.equal(found[name], own[name]) for name in own) >= 8
        kept = [file.name for file in base.iterdir() if file.suffix != ".safetensors"]
        written = {file.name for file in (tmp_path / name).iterdir()}
        assert written - {file.name for file in base.iterdir()} == {"merge.json", "training.json"}
        for file in kept:
            assert json_of(tmp_path / name / file) == json_of(base / file), file
        assert AutoTokenizer.from_pretrained(tmp_path / name)("a b") == AutoTokenizer.from_pretrained(base)("a b")
    assert all(torch.equal(each, tensors(tmp_path / "one")[name]) for name, each in tensors(tmp_path / "many").items())


def json_of(file: Path) -> Any:
    """What a file says; of the index where tensors lie, of a tokenizer's settings what transformers 4 reads, too."""
    if file.suffix != ".json":
        return file.read_bytes()
    content = json.loads(file.read_text())
    if file.name == "tokenizer_config.json":
        return as_both_read(content)
    return content.get("weight_map", content)


def test_the_template_in_the_processors_file_is_kept_where_it_was_trained_and_gives_way_to_another(
    tmp_path: Path, bases: Path
) -> None:
    make_adapter(tmp_path / "adapter", bases / "gemma3")
    template = (tmp_path / "adapter" / "chat_template.jinja").read_text()
    (bases / "gemma3" / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    merged(tmp_path / "adapter", tmp_path / "same")
    assert json.loads((tmp_path / "same" / "chat_template.json").read_text()) == {"chat_template": template}
    (tmp_path / "adapter" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    merged(tmp_path / "adapter", tmp_path / "other")
    (bases / "gemma3" / "chat_template.json").unlink()
    assert not (tmp_path / "other" / "chat_template.json").exists()
    assert AutoTokenizer.from_pretrained(tmp_path / "other").chat_template == "{{ messages[0].content }}"


@pytest.mark.thin(6)
@pytest.mark.parametrize("lora", [{"target_modules": rf"{LANGUAGE}|lm_head"}, {"modules_to_save": ["lm_head"]}])
def test_a_head_that_was_trained_apart_from_the_embedding_unties_the_language_model(
    tmp_path: Path, bases: Path, lora: dict[str, Any]
) -> None:
    saved = make_adapter(tmp_path / "adapter", bases / "gemma3", **lora)
    merged(tmp_path / "adapter", tmp_path / "out", dtype="f32", is_full=True)
    assert float(kl(of(saved), of(published(tmp_path / "out", "gemma3"))).mean()) <= IN_FLOAT32


@pytest.mark.thin(6)
@pytest.mark.parametrize("lost", ["vision_tower.head.probe", "multi_modal_projector.mm_soft_emb_norm.weight"])
def test_a_tensor_of_a_tower_that_a_merge_loses_is_missed(
    tmp_path: Path, bases: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    make_adapter(tmp_path / "adapter", bases / "gemma3")
    steps = plan._steps

    def without(entry: Any, *given: Any, **named: Any) -> Any:
        return [] if entry.name == lost else steps(entry, *given, **named)

    monkeypatch.setattr(plan, "_steps", without)
    with pytest.raises(ModelError, match=rf"has not the tensors of its base: 1 .* first {lost}"):
        merged(tmp_path / "adapter", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", KINDS)
def test_lora_on_a_tower_that_was_never_trained_is_passed_over(tmp_path: Path, bases: Path, kind: str) -> None:
    saved = make_adapter(
        tmp_path / "adapter", bases / kind, target_modules="all-linear", exclude_modules=ROUTERS.get(kind)
    )
    with prepared(tmp_path / "adapter", Asked()) as job:
        assert len(job.plan.adapted.beside) >= 16
    merged(tmp_path / "adapter", tmp_path / "out", dtype="f32")
    assert float(kl(of(saved), of(published(tmp_path / "out", kind))).mean()) <= IN_FLOAT32
    own, found = tensors(bases / kind), tensors(tmp_path / "out")
    beside = [name for name in own if "language_model" not in name and "lm_head" not in name]
    assert all(torch.equal(found[name], own[name].float()) for name in beside)


@pytest.mark.thin(6)
@pytest.mark.parametrize("kind", ONE_KIND)
def test_a_tower_that_was_trained_is_refused_and_the_hint_merges_it(tmp_path: Path, bases: Path, kind: str) -> None:
    saved = make_adapter(
        tmp_path / "adapter", bases / kind, target_modules="all-linear", exclude_modules=ROUTERS.get(kind), tower=0.05
    )
    with pytest.raises(ModelError, match="changes parts of the base that read no text") as caught:
        merged(tmp_path / "adapter", tmp_path / "out")
    typed = shlex.split(str(caught.value.hint).partition(": ")[2])
    assert typed[0] == "python"
    subprocess.run([sys.executable, *typed[1:]], cwd=tmp_path, check=True, capture_output=True)
    own, found = tensors(bases / kind), tensors(tmp_path / "merged")
    beside = [name for name in own if "language_model" not in name and "lm_head" not in name]
    assert any(not torch.equal(found[name], own[name].to(found[name].dtype)) for name in beside)
    assert float(kl(of(saved), of(published(tmp_path / "merged", kind))).mean()) <= 1e-4
