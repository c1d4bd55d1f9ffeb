"""A run with objective embedding or gritlm, from its rows to vectors: what it leaves says how it embeds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from embedding.made import TASK, TEXTS
from sentence_transformers import SentenceTransformer
from tiny import WORDS, copy_tree, make_llama, write_rows
from whole_runs import losses, train

from loradock.config.schema import RunConfig
from loradock.errors import ModelError
from loradock.training.checkpoint.export import export_checkpoint
from loradock.training.checkpoint.store import newest_good
from loradock.training.recipe import Recipe
from loradock.training.run import Result
from loradock.use.embedding.opener import open_embedder

if TYPE_CHECKING:
    from faults.forking import Forking

pytestmark = pytest.mark.thin(2)

SETTINGS = (
    *("model.quantization=none", "train.max_steps=3", "train.workers=0", "data.validation=8", "lora.rank=4"),
    *("checkpoints.every=1", "train.learning_rate=0.01", "train.warmup=0"),
    *("embedding.global_batch=8", "embedding.query_length=48", "embedding.passage_length=64"),
)
TEMPLATE = "{{ prefix }}[{{ instruction }}]\n{{ text }}"


def write_pairs(file: Path) -> Path:
    """Words, and the same backwards."""
    draw = random.Random(0)
    rows = []
    for _ in range(40):
        words = draw.sample(WORDS, 5)
        other = " ".join(draw.sample(WORDS, 5))
        rows.append({"query": [TASK, " ".join(words)], "pos": [["", " ".join(words[::-1])]], "neg": [["", other]]})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    place = tmp_path_factory.mktemp("run")
    template = place / "own.jinja"
    template.write_text(TEMPLATE)
    settings = ("objective=embedding", f"embedding.template={template}", "embedding.attention=causal", *SETTINGS)
    found = train(place / "out", *settings, model=make_llama(place / "base"), data=write_pairs(place / "pairs.jsonl"))
    template.unlink()
    return found


def test_the_adapter_says_how_it_embeds_and_is_opened_by_its_run(result: Result) -> None:
    recipe = Recipe.read(result.adapter)
    assert (recipe.attention, recipe.pooling, recipe.query_length, recipe.passage_length) == ("causal", "mean", 48, 64)
    assert recipe.template.source == TEMPLATE
    assert recipe.base.name == str(result.directory.parent / "base")
    embedder = open_embedder(result.directory)
    assert embedder.embed(TEXTS, instruction=TASK, kind="query").shape == (len(TEXTS), 64)
    assert len(losses(result)) == 3


def test_another_base_of_the_same_shape_is_refused(result: Result, tmp_path: Path) -> None:
    adapter = copy_tree(result.adapter, tmp_path / "adapter")
    other = make_llama(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match="is not the base that the adapter was trained on"):
        open_embedder(adapter, base=str(other))


def test_a_checkpoints_export_says_the_same(result: Result, tmp_path: Path) -> None:
    chosen, _ = newest_good(result.directory / "checkpoints", run_id=result.record["run_id"], is_read_only=True)
    assert chosen
    config = RunConfig.model_validate(result.record["config"])
    export_checkpoint(chosen, tmp_path / "adapter", record=result.record, config=config)
    assert Recipe.read(tmp_path / "adapter") == Recipe.read(result.adapter)
    exported = open_embedder(tmp_path / "adapter").embed(TEXTS)
    np.testing.assert_array_equal(exported, open_embedder(result.directory).embed(TEXTS))


@pytest.mark.parametrize("step", [None, "2"])
def test_a_run_is_exported_for_sentence_transformers_finished_or_at_a_step(
    result: Result, forking: Forking, tmp_path: Path, step: str | None
) -> None:
    export = ("checkpoint", "export", str(result.directory))
    chosen = ("--step", step) if step else ()
    for words in (("-o", "model", "--as", "sentence-transformers", "--merge"), ("-o", "adapter")):
        command = forking.start(tmp_path, *export, *words, *chosen)
        assert command.finish() == 0, command.text()
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, open_embedder(tmp_path / "adapter").embed(TEXTS), atol=1e-6)
    is_last = np.abs(theirs - open_embedder(result.directory).embed(TEXTS)).max() < 1e-6
    assert is_last == (step is None)


def test_stretched_positions_are_those_of_its_vectors_and_of_its_export(tmp_path: Path, forking: Forking) -> None:
    stretched = ("objective=embedding", "model.rope_scaling=yarn", "model.rope_factor=4", *SETTINGS)
    base = make_llama(tmp_path / "base")
    made = train(tmp_path / "run", *stretched, model=base, data=write_pairs(tmp_path / "pairs.jsonl"))
    ours = open_embedder(made.directory).embed(TEXTS)
    words = ("checkpoint", "export", "run", "-o", "model", "--as", "sentence-transformers", "--merge")
    command = forking.start(tmp_path, *words)
    assert command.finish() == 0, command.text()
    theirs: Any = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert theirs[0].auto_model.config.rope_parameters["rope_type"] == "yarn"
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-6)
    without = json.loads((made.adapter / "training.json").read_text()) | {"rope_scaling": "off"}
    (made.adapter / "training.json").write_text(json.dumps(without))
    assert np.abs(open_embedder(made.directory).embed(TEXTS) - ours).max() > 1e-4


def test_the_model_card_says_how_to_embed(result: Result) -> None:
    card = (result.adapter / "README.md").read_text("utf-8")
    assert "pipeline_tag: feature-extraction" in card
    assert "loradock embed . --input passages.txt -o passages.npy" in card
    assert "loradock checkpoint export . -o model --as sentence-transformers --merge" in card
    assert "| pairs a step | 8, with up to 1 hard negatives each |" in card
    assert "| step | evaluation loss | in-batch accuracy |" in card
    assert "model.generate" not in card


def test_a_joint_run_says_how_to_ask_and_how_to_embed(tmp_path: Path, llama: Path) -> None:
    pairs, rows = write_pairs(tmp_path / "pairs.jsonl"), write_rows(tmp_path / "rows.jsonl")
    settings = ("objective=gritlm", f"data.sources=[{pairs},{rows}]", "train.global_batch=4", "data.validation=0.2")
    settings += SETTINGS
    found = train(tmp_path / "out", *settings, model=llama, data=pairs)
    card = (found.adapter / "README.md").read_text("utf-8")
    assert "loradock embed ." in card
    assert "model.generate" in card
    assert "| step | evaluation loss | contrastive loss | generative loss | perplexity | in-batch accuracy |" in card
    assert open_embedder(found.adapter).recipe.attention == "bidirectional"


def test_a_supervised_run_writes_no_embedding_json(tmp_path: Path, llama: Path) -> None:
    found = train(tmp_path / "out", "train.max_steps=1", model=llama, data=write_rows(tmp_path / "rows.jsonl"))
    assert not (found.adapter / "embedding.json").exists()
    assert "loradock embed" not in (found.adapter / "README.md").read_text("utf-8")
