"""The base and its tokenizer: each fault of their files, made and named with its remedy."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults

from loradock import demo

pytestmark = pytest.mark.thin(3)

BASE = Path(demo.__file__).parent / "base"
ROWS = BASE.parent / "train.jsonl"
QUICK = ("--level", "quick", "--only")
Write = Callable[..., str]


def edit(file: Path, **changes: object) -> None:
    """Change keys of a JSON file; None removes one."""
    content = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), encoding="utf-8")


def test_a_complete_model_with_its_data_is_well_whatever_the_hub_is(
    examined: Examine, written: Write, cache: dict[str, str | None]
) -> None:
    seen = examined(*QUICK, "model", "--config", written(), env={**cache, "HF_HUB_OFFLINE": "1", "HF_TOKEN": "x"})
    assert {finding["severity"] for finding in seen.content["findings"]} == {"ok"}, seen.content["findings"]
    assert len(seen.content["findings"]) == 8
    assert seen.exit_code == 0
    text = json.dumps([finding["what"] for finding in seen.content["findings"]])
    assert "HF_" not in text
    assert seen.one("embedding")["what"] == "878 ids, 878 embeddings"


def test_a_model_directory_that_is_not_there_is_named_with_its_neighbour(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    seen = examined(*QUICK, "model", "--config", written(model={"name": str(model.with_name("tiny-bass"))}))
    faults.seen("model directory missing", made="real", finding=seen.one("base"), check="base", exit_code=66)
    assert seen.one("base")["remedy"] == f"loradock train --set model.name={model} ..."
    others = [finding for finding in seen.content["findings"] if finding["check"] != "base"]
    assert {finding["severity"] for finding in others} == {"ok"}, others


def test_a_shard_that_the_index_names_is_missing(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    seen = examined(*QUICK, "base", "--config", written(model={"name": str(model)}))
    faults.seen("shard missing", made="real", finding=seen.one("base", containing="00002"), check="base", exit_code=78)


def test_weights_that_were_cut_short_and_a_tokenizer_that_is_no_json_are_two_findings(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-4096])
    (model / "tokenizer.json").write_text('{"model":', encoding="utf-8")
    seen = examined(*QUICK, "base,tokenizer", "--config", written(model={"name": str(model)}))
    faults.seen("weights truncated", made="real", finding=seen.one("base"), check="base", exit_code=78)
    faults.seen("tokenizer.json truncated", made="real", finding=seen.one("tokenizer"), check="tokenizer", exit_code=78)


def test_a_model_that_lacks_a_tensor_is_named_before_a_weight_is_read(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    from safetensors.torch import load_file, save_file

    file = model / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    seen = examined("--only", "model-weights", "--config", written(model={"name": str(model)}))
    found = seen.one("model-weights")
    faults.seen("a tensor missing", made="real", finding=found, check="model-weights", exit_code=78)
    assert "model.layers.1.mlp.up_proj.weight" in found["what"]


def test_weights_that_are_quantised_already_are_refused(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    seen = examined(*QUICK, "base", "--config", written(model={"name": str(model)}))
    faults.seen("weights already quantised", made="real", finding=seen.one("base"), check="base", exit_code=78)


def test_a_tokenizer_without_an_end_token_is_mended_by_the_remedy(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "tokenizer_config.json", eos_token=None)
    config = written(model={"name": str(model)})
    seen = examined(*QUICK, "tokenizer", "--config", config).one("tokenizer")
    faults.seen("no end-of-sequence token", made="real", finding=seen, check="tokenizer", exit_code=78)
    subprocess.run(["sh", "-c", seen["remedy"]], check=True)
    assert json.loads((model / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"] == "</s>"
    mended = examined(*QUICK, "tokenizer", "--config", config).one("tokenizer")
    assert mended["severity"] == "ok", mended


def test_a_pad_token_that_no_vocabulary_holds_makes_the_tokenizer_longer_than_the_embedding(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "tokenizer_config.json", pad_token="[PAD]")
    seen = examined(*QUICK, "embedding", "--config", written(model={"name": str(model)})).one("embedding")
    faults.seen("tokenizer longer than embedding", made="real", finding=seen, check="embedding", exit_code=78)
    assert "879 ids ([PAD] would be added), the model has 878" in seen["what"]


def test_a_configuration_of_another_model_does_not_fit_the_weights(
    examined: Examine, written: Write, model: Path, faults: Faults
) -> None:
    edit(model / "config.json", vocab_size=1000)
    seen = examined(*QUICK, "embedding", "--config", written(model={"name": str(model)})).one("embedding")
    faults.seen("vocab_size of another model", made="real", finding=seen, check="embedding", exit_code=78)
