"""The embedder: the vectors of training, whatever stands beside a text, of a run, an adapter or a merged model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from embedding.made import TASK, TEXTS, make_adapter, write_recipe
from peft import LoraConfig, get_peft_model
from tiny import make_llama
from training.objectives.reference import MODEL, NEEDS_REFERENCE, ROWS, SHARED, recorded, set_values
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.errors import DataError, InputMissing, LoradockError, ModelError, NoCheckpoint
from loradock.use.embedding.embedder import Embedder
from loradock.use.embedding.opener import open_embedder

pytestmark = pytest.mark.thin(1)

CASES = {
    "mean/bbcc/g2": ("mean", "bidirectional"),
    "mean/cccc/g2": ("mean", "causal"),
    "weightedmean/bbcc/g2": ("weightedmean", "bidirectional"),
    "lasttoken/bbcc/g2": ("lasttoken", "bidirectional"),
    "cls/bbcc/g2": ("cls", "bidirectional"),
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base=llama)


@pytest.fixture(scope="module")
def embedder(adapter: Path) -> Embedder:
    return open_embedder(adapter)


@NEEDS_REFERENCE
@pytest.mark.parametrize("case", CASES)
def test_vectors_give_the_loss_that_the_reference_recorded(tmp_path: Path, case: str) -> None:
    pooling, attention = CASES[case]
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(MODEL),
        LoraConfig(r=4, lora_alpha=8, target_modules=LINEARS, task_type="CAUSAL_LM"),
    )
    set_values(adapted)
    adapted.save_pretrained(str(tmp_path))
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(tmp_path)
    lengths = ("embedding.passage_length=256", f"embedding.pooling={pooling}", f"embedding.attention={attention}")
    write_recipe(tmp_path, *lengths, base=MODEL)
    embedder = open_embedder(tmp_path)
    lines = (SHARED / "toy_data_embedding.jsonl").read_text("utf-8").splitlines()[:ROWS]
    rows = [json.loads(line) for line in lines]
    queries = [embedder.embed([row["query"][1]], instruction=row["query"][0], kind="query")[0] for row in rows]
    sides = [side for row in rows for side in (row["pos"][0], row["neg"][0])]
    passages = [embedder.embed([text], instruction=instruction)[0] for instruction, text in sides]
    scores = np.stack(queries).astype(np.float64) @ np.stack(passages).T / 0.02
    likelihoods = [scores[i, 2 * i] - np.logaddexp.reduce(scores[i]) for i in range(ROWS)]
    assert -np.mean(likelihoods) == pytest.approx(recorded()[case]["loss_emb"], rel=1e-5)


@pytest.mark.thin(4)
@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_what_stands_in_a_batch_with_a_text_does_not_change_its_vector(adapter: Path, batch_tokens: int) -> None:
    together = open_embedder(adapter, batch_tokens=batch_tokens).embed(TEXTS, instruction=TASK)
    alone = np.concatenate([open_embedder(adapter).embed([text], instruction=TASK) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=5e-7)


def test_vectors_have_length_one_or_what_the_model_gives(embedder: Embedder) -> None:
    unit = embedder.embed(TEXTS)
    raw = embedder.vectors([embedder.document(text) for text in TEXTS], is_unit=False)
    assert unit.dtype == raw.dtype == np.float32
    assert unit.shape == (len(TEXTS), 64)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-2)
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), unit, atol=1e-6)


def test_the_instruction_is_attended_to_and_the_kind_chooses_the_length(tmp_path: Path, llama: Path) -> None:
    made = make_adapter(tmp_path / "a", "embedding.query_length=12", "embedding.passage_length=24", base=llama)
    embedder = open_embedder(made)
    assert len(embedder.document(TEXTS[-1], kind="query").ids) == 12
    assert len(embedder.document(TEXTS[-1]).ids) == 24
    assert not np.allclose(embedder.embed(TEXTS[:2]), embedder.embed(TEXTS[:2], instruction="x"), atol=1e-3)


def test_an_instruction_that_fills_the_length_is_refused(embedder: Embedder) -> None:
    with pytest.raises(DataError, match="the instruction alone has"):
        embedder.embed(["a lamp " * 200], instruction="find " * 300, kind="query")


def test_without_its_adapter_the_base_embeds(embedder: Embedder, adapter: Path, tmp_path: Path, llama: Path) -> None:
    merged = shutil.copytree(llama, tmp_path / "model")
    shutil.copy(adapter / "embedding.json", merged)
    base = open_embedder(merged).embed(TEXTS)
    with embedder.without_adapter():
        np.testing.assert_allclose(embedder.embed(TEXTS), base, atol=1e-6)
    assert not np.allclose(embedder.embed(TEXTS), base, atol=1e-3)


def test_the_base_is_quantised_as_it_was_trained_unless_asked_otherwise(tmp_path: Path, llama: Path) -> None:
    made = make_adapter(tmp_path, "model.quantization=nf4", base=llama)
    trained, whole = open_embedder(made).embed(TEXTS), open_embedder(made, quantization="none").embed(TEXTS)
    assert 1e-4 < np.abs(trained - whole).max() < 0.5


def test_half_precision_is_near_float32(adapter: Path, embedder: Embedder) -> None:
    half = open_embedder(adapter, dtype="bfloat16").embed(TEXTS)
    assert half.dtype == np.float32
    assert 1e-6 < np.abs(half - embedder.embed(TEXTS)).max() < 0.05


def test_a_runs_directory_stands_for_its_adapter(tmp_path: Path, adapter: Path, embedder: Embedder) -> None:
    shutil.copytree(adapter, tmp_path / "adapter")
    (tmp_path / "run.json").write_text("{}")
    np.testing.assert_array_equal(open_embedder(tmp_path).embed(TEXTS), embedder.embed(TEXTS))


@pytest.mark.parametrize(
    ("has_checkpoint", "command"),
    [(True, "checkpoint export {} -o ADAPTER"), (False, "train --resume --output {}")],
)
def test_a_run_that_is_not_finished_names_the_command_that_leads_to_an_adapter(
    tmp_path: Path, has_checkpoint: bool, command: str
) -> None:
    (tmp_path / "run.json").write_text("{}")
    if has_checkpoint:
        (tmp_path / "checkpoints/checkpoint-2").mkdir(parents=True)
    with pytest.raises(NoCheckpoint, match="has no adapter yet") as error:
        open_embedder(tmp_path)
    assert error.value.hint == f"loradock {command.format(tmp_path)}"


def without_recipe(folder: Path) -> None:
    (folder / "embedding.json").unlink()


def wrong_pooling(folder: Path) -> None:
    file = folder / "embedding.json"
    file.write_text(file.read_text().replace('"mean"', '"max"'))


def name_too_long_for_a_path(folder: Path) -> None:
    file = folder / "embedding.json"
    held = json.loads(file.read_text())
    file.write_text(json.dumps({**held, "base": {**held["base"], "name": "model" * 1000}}))


def length_below_a_token(folder: Path) -> None:
    file = folder / "embedding.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "query_length": -1}))


def cut_short(folder: Path) -> None:
    (folder / "embedding.json").write_text("{")


def without_base(folder: Path) -> None:
    shutil.rmtree(folder.parent / "base")


def of_another_base(folder: Path) -> None:
    shutil.rmtree(folder.parent / "base")
    make_llama(folder.parent / "base", hidden_size=32, num_attention_heads=2)


def nothing(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "kind", "what"),
    [
        (without_recipe, ModelError, "does not say how it embeds: embedding.json is missing"),
        (wrong_pooling, ModelError, "embedding.json is wrong"),
        (name_too_long_for_a_path, ModelError, "embedding.json is wrong"),
        (length_below_a_token, ModelError, "embedding.json is wrong"),
        (cut_short, ModelError, "embedding.json is not JSON"),
        (without_base, LoradockError, "is not on this machine: looked for"),
        (of_another_base, ModelError, "does not load"),
        (nothing, InputMissing, "holds neither a run, nor an adapter, nor a model"),
    ],
)
def test_what_is_wrong_with_a_directory_is_named(tmp_path: Path, spoil: object, kind: type, what: str) -> None:
    base = make_llama(tmp_path / "base")
    folder = make_adapter(tmp_path / "adapter", base=base)
    spoil(folder)  # pyright: ignore[reportCallIssue]
    with pytest.raises(kind, match=what) as error:
        open_embedder(folder)
    assert error.value.hint
