"""The default command on the shapes of published models, as a user types it: nothing skipped, nothing set.

The default run takes one: the commit chooses whether it is of the ten models that are used most, of this year's or of
the others, and which; --full takes all.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from commit import commit
from proven import knowing
from published.shapes import FIRST_MARK, MARK, TOWERS, VOCABULARY, Published, chosen, make, published
from safetensors.torch import load_file

from loradock.use.inference.opener import open_model

if TYPE_CHECKING:
    from faults.forking import Forking


STEPS = 20
"""Of a model of this year, at a high rate: enough that its adapter changes what it answers."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shape" in metafunc.fixturenames:
        shapes = published() if metafunc.config.getoption("--full") else [chosen(commit())]
        metafunc.parametrize("shape", shapes, ids=lambda shape: shape.model)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that the installed files are hashed by none of them."""
    return knowing(tmp_path_factory.mktemp("published") / "cache")


def test_the_table_holds_each_model_once_and_what_is_expected_of_it() -> None:
    models = published()
    assert len(models) == len({each.model for each in models}) >= 60
    assert sum(each.often for each in models) == 10
    assert all(set(each.expected) in ({"engine"}, {"exit_code", "words"}) for each in models)


def test_the_table_holds_a_years_models_as_their_publishers_save_them_towers_included() -> None:
    models = [each for each in published() if each.year == 2026]
    wrappers = [each for each in models if "ConditionalGeneration" in each.config["architectures"][0]]
    assert len(models) >= 40
    assert len(wrappers) >= 25
    assert all(each.source and hasattr(transformers, each.config["architectures"][0]) for each in models)
    assert all(each.config.get("vision_config") for each in wrappers)


def test_a_wrapper_is_made_small_in_all_its_parts() -> None:
    small = {each.model: each.made_small() for each in published() if each.year}
    gemma = small["google/gemma-4-E2B-it"]
    text = gemma["text_config"]
    assert (text["vocab_size"], text["vocab_size_per_layer_input"]) == (VOCABULARY, VOCABULARY)
    assert [gemma[tower]["num_hidden_layers"] for tower in TOWERS] == [1, 1]
    assert len({value for key, value in gemma.items() if MARK.fullmatch(key)} & set(range(FIRST_MARK, VOCABULARY))) == 8
    assert small["Qwen/Qwen3.5-27B"]["text_config"]["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]


def test_a_commit_decides_which_model_is_tried_and_each_sort_has_its_turn() -> None:
    assert chosen("a") == chosen("a")
    tried = [chosen(str(key)) for key in range(40)]
    assert {(each.often, each.year) for each in tried} == {(each.often, each.year) for each in published()}
    assert len({each.model for each in tried}) > 20


@pytest.mark.thin(1)
def test_a_published_shape_is_trained_or_refused_and_what_comes_out_works_on_its_class(
    shape: Published, forking: Forking, rows: Path, tmp_path: Path, cache: Path
) -> None:
    model = make(tmp_path / "model", shape)
    steps = STEPS if shape.year else 2
    at_a_high_rate = ("--lr", "0.01", "--batch-size", "2") if shape.year else ()
    arguments = ("--model", str(model), "--data", str(rows), "--output", "run", "--max-steps", str(steps))
    command = forking.start(tmp_path, "train", *arguments, *at_a_high_rate, LORADOCK_CACHE=str(cache))
    code, text = command.finish(), command.text()
    if words := shape.expected.get("words"):
        assert (code, words in text) == (shape.expected["exit_code"], True), text
        return
    assert code == 0, text
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    decided = {each["name"]: each["value"] for each in record["plan"]["decisions"]}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert decided["engine"] == shape.expected["engine"], text
    assert len(losses) == steps
    assert all(math.isfinite(loss) for loss in losses)
    if shape.year and shape.config.get("quantization_config"):  # transformers reads no block that a matrix cuts off
        command = forking.start(tmp_path, "merge", "run", "merged", "--verify", "full", "--dtype", "f32")
        assert command.finish() == 0, command.text()
    elif shape.year:
        check_served(tmp_path, model)
        check_merged(tmp_path, model, forking)
    shutil.rmtree(model)


def check_served(place: Path, model: Path) -> None:
    """The adapter in plain peft on the published class, in a process of its own: all of it, there, and nowhere else."""
    ids = torch.randint(3, 800, (2, 24), generator=torch.Generator().manual_seed(0))
    torch.save(ids, place / "ids.pt")
    program = [sys.executable, str(Path(__file__).with_name("served.py")), str(model)]
    files = [str(place / name) for name in ("run/adapter", "ids.pt", "out.pt")]
    done = subprocess.run([*program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["lost"], found["outside"]) == ([], [])
    assert found["tensors"] == 2 * found["layers"] > 0
    opened = open_model(place / "run", quantization="none", dtype="float32", device="cpu")
    with torch.no_grad():
        ours = opened.model.float()(input_ids=ids).logits
        with opened.without_adapter():
            base = opened.model(input_ids=ids).logits
    torch.testing.assert_close(torch.load(place / "out.pt"), ours, atol=1e-3, rtol=1e-3)
    assert (ours - base).abs().max() > 1e-2


def check_merged(place: Path, model: Path, forking: Forking) -> None:
    """The merged model answers as base and adapter do, as the command proves; towers keep their values."""
    command = forking.start(place, "merge", "run", "merged", "--verify", "full", "--dtype", "f32")
    assert command.finish() == 0, command.text()
    before, after = weights(model), weights(place / "merged")
    changed = [name for name in before if not torch.equal(before[name].float(), after[name].float())]
    assert before.keys() == after.keys()
    assert changed
    assert not [name for name in changed if any(tower in name for tower in ("vision", "visual", "audio", "projector"))]
    shutil.rmtree(place / "merged")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model directory."""
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}
