"""The default command on the shapes of published models, as a user types it: nothing skipped, nothing set.

The default run takes one of the ten models that are used most and one other, chosen by the commit; --full takes all.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import transformers
from published.shapes import FIRST_MARK, MARK, TOWERS, VOCABULARY, Published, chosen, make, published

if TYPE_CHECKING:
    from faults.forking import Forking


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shape" in metafunc.fixturenames:
        shapes = published() if metafunc.config.getoption("--full") else chosen(commit())
        metafunc.parametrize("shape", shapes, ids=lambda shape: shape.model)


def commit() -> str:
    """What models are chosen by: two runs on a commit try the same. Empty outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that the installed files are hashed by the first run alone."""
    return tmp_path_factory.mktemp("cache")


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


def test_a_commit_decides_which_models_are_tried() -> None:
    tried = [[each.model for each in chosen(key)] for key in ("a", "a", "b")]
    assert tried[0] == tried[1] != tried[2]
    assert [len(each) for each in tried] == [2, 2, 2]


def test_a_published_shape_is_trained_or_refused_as_the_table_says(
    shape: Published, forking: Forking, rows: Path, tmp_path: Path, cache: Path
) -> None:
    model = make(tmp_path / "model", shape)
    arguments = ("--model", str(model), "--data", str(rows), "--max-steps", "2", "--output", "run")
    command = forking.start(tmp_path, "train", *arguments, LORADOCK_CACHE=str(cache))
    code, text = command.finish(), command.text()
    shutil.rmtree(model)
    if words := shape.expected.get("words"):
        assert (code, words in text) == (shape.expected["exit_code"], True), text
        return
    assert code == 0, text
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    decided = {each["name"]: each["value"] for each in record["plan"]["decisions"]}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert decided["engine"] == shape.expected["engine"], text
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
