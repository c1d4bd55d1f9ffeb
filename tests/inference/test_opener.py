"""Runs, adapters, merged models and bases are told apart, and what does not fit is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from merge.made import merged
from safetensors.torch import load_file, save_file
from tiny import make_llama
from whole_runs import train

from loradock.errors import InputMissing, LoradockError, ModelError, NoCheckpoint, UsageError
from loradock.training.lineage import Lineage
from loradock.use.inference.opener import find, open_model

pytestmark = pytest.mark.thin(2)

IDS = torch.tensor([[5, 9, 11, 30]])


@pytest.fixture
def moved(trained: Path, tmp_path: Path) -> Path:
    """The adapter of the run, copied away from it."""
    return Path(shutil.copytree(trained / "adapter", tmp_path / "moved"))


def test_a_run_and_its_adapter_are_the_same_model_wherever_the_adapter_lies(trained: Path, moved: Path) -> None:
    run, adapter, alone = find(trained), find(trained / "adapter"), find(moved)
    assert [each.kind for each in (run, adapter, alone)] == ["run", "adapter", "adapter"]
    assert run.lineage == adapter.lineage == alone.lineage
    assert run.asked.quantization == alone.asked.quantization == "nf4"
    assert run.lineage
    assert run.lineage.base_weights == run.weights
    first, second = open_model(trained), open_model(moved)
    with first.computing():
        assert torch.equal(first.model(IDS).logits, second.model(IDS).logits)


def test_without_its_adapter_the_base_answers(trained: Path, llama: Path) -> None:
    run, base = open_model(trained), open_model(llama, quantization="nf4")
    assert not base.has_adapter
    with run.computing():
        with run.without_adapter():
            assert torch.equal(run.model(IDS).logits, base.model(IDS).logits)
        assert not torch.equal(run.model(IDS).logits, base.model(IDS).logits)


def test_an_adapter_of_somebody_else_has_to_be_given_the_quantisation(moved: Path) -> None:
    (moved / "training.json").unlink()
    with pytest.raises(ModelError, match="nobody recorded how the base") as error:
        find(moved)
    assert "--quantization nf4" in str(error.value.hint)
    assert find(moved, quantization="none").asked.quantization == "none"


def with_base(adapter: Path, *, recorded: str, beside: str) -> None:
    """Name the base in training.json, and in adapter_config.json beside it."""
    lineage = Lineage.read(adapter)
    assert lineage
    lineage.model_copy(update={"base": recorded}).write(adapter)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": beside}))


def test_a_base_that_was_moved_is_given_by_its_place(moved: Path, tmp_path: Path, llama: Path) -> None:
    gone = str(tmp_path / "gone")
    with_base(moved, recorded="models/base", beside=gone)
    with pytest.raises(InputMissing, match=f"looked for {gone} and models/base") as refused:
        find(moved)
    assert refused.value.hint == "--base-model DIR says where it lies"
    assert find(moved, base=str(llama)).base.directory == llama
    with pytest.raises(UsageError, match="is a whole model"):
        find(llama, base=str(llama))
    with pytest.raises(UsageError, match="is an adapter, not a base model"):
        find(moved, base=str(moved))


def test_the_absolute_path_wins_over_a_relative_name_in_the_record_beside_it(
    moved: Path, tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the relative name means something else in the working directory of today."""
    make_llama(tmp_path / "models/base", seed=7)
    monkeypatch.chdir(tmp_path)
    with_base(moved, recorded="models/base", beside=str(llama))
    assert find(moved).base.directory == llama
    with_base(moved, recorded="models/base", beside="models/base")
    assert find(moved).base.directory == Path("models/base")
    with pytest.raises(ModelError, match="is not the base that the adapter was trained on"):
        find(moved).check_base()


def test_a_run_that_was_begun_with_a_relative_name_is_opened_from_elsewhere(
    tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(llama, tmp_path / "here/base")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(Path("run"), "train.max_steps=1", "train.global_batch=8", model=Path("base"), data=rows)
    monkeypatch.chdir(tmp_path / "there")
    for given in ("../here/run", "../here/run/adapter"):
        assert find(Path(given)).base.directory == tmp_path / "here/base"
    record = json.loads(Path("../here/run/run.json").read_text())
    record["base"]["path"] = "base"  # as versions before wrote it
    Path("../here/run/run.json").write_text(json.dumps(record))
    assert find(Path("../here/run")).base.directory == tmp_path / "here/base"


@pytest.mark.parametrize("left", [(), ("tokenizer_config.json", "chat_template.jinja")])
def test_an_adapter_without_a_vocabulary_is_read_with_the_bases_tokenizer(
    trained: Path, moved: Path, llama: Path, left: tuple[str, ...], tmp_path: Path
) -> None:
    for file in filter(Path.is_file, moved.iterdir()):
        if not file.name.startswith(("adapter_", "training.json")) and file.name not in left:
            file.unlink()
    first, second = open_model(trained), open_model(moved)
    text = "Write the words backwards. river"
    assert second.tokenizer(text)["input_ids"] == first.tokenizer(text)["input_ids"]
    with first.computing():
        assert torch.equal(first.model(IDS).logits, second.model(IDS).logits)
    merged(moved, tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (llama / "tokenizer.json").read_bytes()


def test_a_base_of_the_same_shape_with_other_weights_is_refused_by_run_and_adapter(
    trained: Path, moved: Path, llama: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(llama, tmp_path / "other"))
    file = other / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] += 1
    save_file(weights, file, metadata={"format": "pt"})
    for given in (trained, trained / "adapter", moved):
        assert open_model(given, base=str(llama)).origin.base.directory == llama
        with pytest.raises(ModelError, match="other is not the base that the adapter was trained on") as error:
            open_model(given, base=str(other))
        assert error.value.exit_code == 78


def cut(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def of_another_architecture(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({name: torch.zeros(3, 3) for name in load_file(file)}, file)


def of_another_base(folder: Path, **recorded: None) -> None:
    other = make_llama(folder.parent / "other", hidden_size=32, num_attention_heads=2)
    lineage = Lineage.read(folder)
    assert lineage
    lineage.model_copy(update={"base": str(other), **recorded}).write(folder)


def of_an_unrecorded_base(folder: Path) -> None:
    of_another_base(folder, base_weights=None)


def with_wrong_lineage(folder: Path) -> None:
    (folder / "training.json").write_text(json.dumps({"base": "x", "quantization": "fp3"}))


def without_json(folder: Path) -> None:
    (folder / "training.json").write_text("{")


def empty(folder: Path) -> None:
    for file in filter(Path.is_file, folder.iterdir()):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "kind", "what"),
    [
        (cut, ModelError, "is truncated"),
        (of_another_architecture, ModelError, "are not those of its weights"),
        (of_another_base, ModelError, "is not the base that the adapter was trained on"),
        (of_an_unrecorded_base, ModelError, "does not load"),
        (with_wrong_lineage, ModelError, "training.json is wrong"),
        (without_json, ModelError, "training.json is not JSON"),
        (empty, InputMissing, "holds neither a run, nor an adapter, nor a model"),
    ],
)
def test_what_is_wrong_with_a_directory_is_named(
    moved: Path, spoil: object, kind: type[LoradockError], what: str
) -> None:
    assert callable(spoil)
    spoil(moved)
    with pytest.raises(kind, match=what):
        open_model(moved)


def test_a_run_that_is_not_finished_names_the_command_that_exports_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for hint in (f"train --resume --output {tmp_path}", f"checkpoint export {tmp_path} -o ADAPTER"):
        with pytest.raises(NoCheckpoint, match="has no adapter yet") as caught:
            find(tmp_path)
        assert caught.value.hint == f"loradock {hint}"
        (tmp_path / "checkpoints" / "checkpoint-2").mkdir(parents=True, exist_ok=True)


def test_an_adapters_own_file_cannot_ask_for_code_to_be_run(moved: Path) -> None:
    content = json.loads((moved / "training.json").read_text())
    (moved / "training.json").write_text(json.dumps({**content, "trust_remote_code": content["base"]}))
    with pytest.raises(ModelError, match=r"training\.json is wrong"):
        find(moved)


def test_the_digest_changes_with_adapter_and_quantisation(trained: Path, moved: Path) -> None:
    assert find(trained).digest == find(moved).digest
    assert find(moved, quantization="none").digest != find(moved).digest
    file = moved / "adapter_model.safetensors"
    save_file({name: each + 1 for name, each in load_file(file).items()}, file)
    assert find(trained).digest != find(moved).digest
