"""P9, one level below the process: what makes a run another one is a named difference, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from faults.conftest import Trial
from pydantic import ValidationError
from tiny import make_llama, write_rows
from transformers import LlamaForCausalLM

from loradock.catalog.objectives import owners
from loradock.config.fields import annotation_at, keys
from loradock.config.schema import RunConfig
from loradock.data.corpus import Corpus, prepare_corpus
from loradock.errors import NoCheckpoint, UsageError
from loradock.facts import Facts
from loradock.machine import Host, probe
from loradock.model import adapters, content, source, tokenizer
from loradock.training.run_dir import fingerprint
from loradock.training.run_dir import identity as run_identity

pytestmark = pytest.mark.thin(2)

MOVED = "a path: its content is a field"
JUDGED = "a field where evaluations decide something"
FREE = {
    "name": "a name for people",
    "output": "the directory itself says which run it is",
    "checkpoints.keep": "old checkpoints only",
    "data.max_dropped": "which rows are left is a field",
    "data.cache": "the content of what is cached is a field",
    "data.workers": "any number prepares the same rows",
    "train.threads": "how many add up",
    "train.workers": "any number loads the same steps",
    "logging.every": "nothing reads it back",
    "logging.trackers": "nothing reads them back",
    "logging.project": "nothing reads it back",
    "logging.monitor_seconds": "nothing reads the samples back",
    "limits.setup_seconds": "how long a hang may last",
    "limits.step_seconds": "how long a hang may last",
    "limits.save_seconds": "how long a hang may last",
    "limits.peer_seconds": "how long another process may be silent",
    "model.cache_weights": "the same bits: tests/training/backends/fast/test_equality.py",
    "after.merge": "made of the finished run",
    "evaluation.tasks": "asked of the finished run",
    "evaluation.every": JUDGED,
    "checkpoints.every": JUDGED,
    "checkpoints.metric": JUDGED,
    "data.text": "a field where a text file is named; of other rows it says nothing",
    "embedding.passes": "the same bits: tests/training/objectives/test_recorded_values.py",
    "preference.keep_reference": "the same values: tests/training/objectives/test_kept_reference.py",
    "train.memory_fraction": "how much memory is planned with",
    "model.name": MOVED,
    "data.sources.N.path": MOVED,
}
"""Keys that a resumed run may change without a word, each with its reason. A new key is none of them."""

OTHER: dict[str, Any] = {
    "name": "other", "output": "elsewhere", "model.name": "/srv/other",
    "model.revision": "0000000000000000000000000000000000000000", "model.trust_remote_code": "/srv/base",
    "evaluation.tasks": ["boolq=boolq.json"], "model.cache_weights": 1, "train.cuda_graphs": True,
    "data.sources.N.path": "/srv/moved.jsonl", "data.sources.N.fields": {"text": "body"},
    "data.sources.N.revision": "abc", "data.sources.N.configuration": "small", "data.sources.N.split": "test",
    "data.template": "chatml", "data.max_length": 512, "data.sources.N.ignore": ["id"], "data.workers": 2,
    "data.cache": "elsewhere", "data.date": "2024-02-29", "lora.adapter": "runs/sft", "preference.loss": "ipo",
    "preference.likelihood_weight": 0.5, "lora.targets": ["q_proj"], "lora.modules_to_save": ["lm_head"],
    "train.micro_batch": 2, "train.packing": False, "train.max_steps": 9, "train.checkpointing": True,
    "train.cpu_offload": False, "train.deepspeed": "/srv/zero.json", "train.tf32": False, "train.workers": 2,
    "train.threads": 3, "train.early_stopping": 3, "evaluation.every": 7, "checkpoints.every": 7,
    "checkpoints.keep_best": True, "logging.every": 3, "logging.trackers": ["tensorboard"],
    "logging.project": "other", "train.betas": [0.9, 0.95], "data.template_arguments": {"a": 1},
    "tokenizer.add_tokens": ("<go>",), "lora.rank_pattern": {"q_proj": 8}, "lora.alpha_pattern": {"q_proj": 8},
    "train.memory_fraction": 0.5, "embedding.template": "plain", "data.special_tokens": "as_control",
}  # fmt: skip
"""Another value of each key whose default is no number, truth value or one of several words."""
KEYS = {key.name: key for key in keys() if key.name != "data.sources"}


def config(changes: dict[str, Any] | None = None) -> RunConfig:
    """A configuration with one source; `changes` are dotted keys, N the position of that source."""
    tree: dict[str, Any] = {"model": {"name": "/srv/base"}, "data": {"sources": [{"path": "/srv/rows.jsonl"}]}}
    for key, value in (changes or {}).items():
        *sections, last = key.replace(".N.", ".0.").split(".")
        here: Any = tree
        for part in sections:
            here = here[int(part)] if part.isdecimal() else here.setdefault(part, {})
        here[last] = value
    return RunConfig.model_validate(tree)


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [problem.what.split(" ")[0] for problem in run_identity.differences(before, now)]


def other_value(key: str) -> Any:
    """Another value than the default: of OTHER, a near number, the other truth value or another word."""
    if key in OTHER:
        return OTHER[key]
    default = KEYS[key].default
    tried: list[Any] = [not default] if isinstance(default, bool) else []
    if isinstance(default, (int, float)):
        tried += [default + 1, default + 0.25, default - 0.25]
    path = tuple(0 if part == "N" else part for part in key.split("."))
    tried += [word for word in get_args(annotation_at(path)) if isinstance(word, str) and word not in ("auto", default)]
    for value in tried:
        with contextlib.suppress(ValidationError):
            config({key: value})
            return value
    raise AssertionError(f"{key} is new: give a value that differs from its default in OTHER")


@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_the_configuration_is_a_named_difference_or_free_with_a_reason(key: str, trial: Trial) -> None:
    chosen = {"objective": owners(key)[-1].name} if owners(key) else {}
    before, now = (fingerprint.of_config(config(chosen | each)) for each in ({}, {key: other_value(key)}))
    found = changed(before, now)
    if key in FREE:
        assert found == []
    else:
        name = key.replace(".N.", ".0.")
        trial("P9", any(f"{each}.".startswith(f"{name}.") for each in found), field=key)


def test_every_free_key_is_one_and_the_code_gives_a_reason_too() -> None:
    assert set(FREE) <= set(KEYS)
    assert all(fingerprint.FREE_KEYS.values())
    for free in fingerprint.FREE_KEYS:
        assert any(key == free or (free.endswith(".") and key.startswith(free)) for key in KEYS), free


@pytest.mark.parametrize("judge", [{"train.early_stopping": 2}, {"checkpoints.keep_best": True}])
@pytest.mark.parametrize("key", fingerprint.JUDGED_KEYS)
def test_when_evaluations_decide_their_cadence_is_a_field(judge: dict[str, Any], key: str) -> None:
    before, now = config(judge), config({**judge, key: other_value(key)})
    assert changed(fingerprint.of_config(before), fingerprint.of_config(now)) == [key]


def test_a_hub_id_is_kept_and_a_number_is_the_same_however_it_is_written() -> None:
    hub = {"model.name": "owner/name", "data.sources.N.path": "hub:owner/data"}
    fields = fingerprint.of_config(config(hub))
    assert (fields["model.name"], fields["data.sources.0.path"]) == ("owner/name", "hub:owner/data")
    assert changed(fields, fingerprint.of_config(config())) == ["data.sources.0.path", "model.name"]
    written = config({"lora.alpha": 32.0, "train.epochs": 1})
    assert fingerprint.of_config(written) == fingerprint.of_config(config())


def test_a_text_is_not_taken_for_the_word_that_it_spells() -> None:
    texts = [fingerprint.of_config(config({"data.sources.N.split": each})) for each in ("null", "true", "1", "train")]
    assert [each["data.sources.0.split"] for each in texts] == ['"null"', '"true"', '"1"', "train"]


def deepspeed_of(file: Path, text: str) -> dict[str, str]:
    file.write_text(text, encoding="utf-8")
    asked = config({"train.deepspeed": str(file), "train.parallel": "zero2"})
    return fingerprint.of_config(asked) | fingerprint.of_deepspeed(asked)


def test_each_key_of_a_deepspeed_file_is_a_field_and_neither_its_place_nor_how_it_is_written(tmp_path: Path) -> None:
    before = deepspeed_of(tmp_path / "zero.json", '{"zero_optimization": {"overlap_comm": true, "round_robin": 1}}')
    same = """{"zero_optimization": {"round_robin": 1.0, "stage": "auto",
               "overlap_comm": true}, "aio": {"block_size": "auto"}, "steps_per_print": 5}"""
    assert deepspeed_of(tmp_path / "moved.json", same) == before
    other = deepspeed_of(tmp_path / "zero.json", '{"zero_optimization": {"overlap_comm": false}}')
    assert changed(before, other) == [
        "train.deepspeed.zero_optimization.overlap_comm",
        "train.deepspeed.zero_optimization.round_robin",
    ]
    assert changed(fingerprint.of_config(config()), before)[0] == "train.deepspeed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base and two files of rows."""
    place = tmp_path_factory.mktemp("fingerprint")
    make_llama(place / "base")
    write_rows(place / "rows.jsonl")
    write_rows(place / "held_out.jsonl", rows=8, seed=1)
    return place


@pytest.fixture(scope="module")
def facts() -> Facts:
    return probe.gather(Host())


def base_of(directory: Path) -> dict[str, str]:
    return fingerprint.of_base(source.find(config({"model.name": str(directory)}).model))


def corpus_of(folder: Path, facts: Facts, **changes: Any) -> Corpus:
    dotted = {f"data.{key.replace('__', '.')}": value for key, value in changes.items()}
    settings = {"data.sources.N.path": str(folder / "rows.jsonl"), "data.cache": str(folder / "cache"), **dotted}
    words = tokenizer.open_tokenizer(source.find(config({"model.name": str(folder / "base")}).model))
    return prepare_corpus(config(settings), tokenizer=words, max_length=64, facts=facts)


def data_of(folder: Path, facts: Facts, **changes: Any) -> dict[str, str]:
    return fingerprint.of_data(corpus_of(folder, facts, **changes))


def flip(file: Path, *, at: int) -> None:
    content_bytes = bytearray(file.read_bytes())
    content_bytes[at] ^= 1
    file.write_bytes(content_bytes)


def test_a_base_that_changed_is_named_by_the_part_that_did(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder / "base", tmp_path / "moved"))
    before = base_of(folder / "base")
    assert base_of(moved) == before
    flip(moved / "model.safetensors", at=-1)
    assert changed(before, base_of(moved)) == ["base.weights"]
    settings = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**settings, "rope_theta": 20000.0}))
    assert changed(before, base_of(moved)) == ["base.config", "base.weights"]
    (moved / "chat_template.jinja").write_text("{{ messages }}")
    assert changed(before, base_of(moved)) == ["base.config", "base.tokenizer", "base.weights"]


def test_the_code_and_the_commit_of_a_base_are_fields(folder: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder / "base", tmp_path / "moved"))
    (moved / "modeling.py").write_text("one = 1\n")
    base = source.find(config({"model.name": str(moved)}).model)
    trusted = replace(base, trust_remote_code=True)
    assert changed(fingerprint.of_base(base), fingerprint.of_base(trusted)) == ["base.code"]
    before = fingerprint.of_base(trusted)
    (moved / "modeling.py").write_text("one = 2\n")
    assert changed(before, fingerprint.of_base(trusted)) == ["base.code"]
    pinned = replace(trusted, revision="0" * 40)
    assert changed(fingerprint.of_base(trusted), fingerprint.of_base(pinned)) == ["base.revision"]


def test_of_large_weights_another_training_is_seen_and_the_sample_reaches_both_ends(tmp_path: Path) -> None:
    """A sparse file of 20 GiB: only what is read of it counts, so its sample is what takes the time."""
    file, size = tmp_path / "model.safetensors", 20 << 30
    with file.open("wb") as stream:
        stream.truncate(size)
    seen = {content.digest([file])}
    starts = list(content.spread(size))
    assert (len(starts), starts[0], starts[-1]) == (content.BLOCKS + 2, 0, size - content.BLOCK_BYTES)
    for place in (0, starts[30], size - 1):
        with file.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"\1")
        seen.add(content.digest([file]))
    with file.open("r+b") as stream:
        stream.truncate(size + 1)
    seen.add(content.digest([file]))
    assert len(seen) == 5
    assert list(content.spread(10)) == [0]


def test_data_that_were_moved_are_the_same_and_data_that_changed_are_not(
    folder: Path, facts: Facts, tmp_path: Path
) -> None:
    before = data_of(folder, facts)
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_bytes((folder / "rows.jsonl").read_bytes())
    assert data_of(folder, facts, sources__N__path=str(moved), cache=str(tmp_path / "cache")) == before
    moved.write_text(moved.read_text().replace("river", "rivers", 1))
    found = changed(before, data_of(folder, facts, sources__N__path=str(moved)))
    assert {"data.train.content", "data.train.tokens"} <= set(found)


def test_the_template_the_split_and_the_validation_part_are_fields(folder: Path, facts: Facts, tmp_path: Path) -> None:
    before = data_of(folder, facts, validation=8)
    assert changed(before, data_of(folder, facts, validation=8, seed=1)) == ["data.train.rows", "data.validation.rows"]
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}")
    one = data_of(folder, facts, template=str(template))
    template.write_text("{% for m in messages %}{{ m['content'] }} {{ eos_token }}{% endfor %}")
    assert "data.template.content" in changed(one, data_of(folder, facts, template=str(template)))
    held_out = data_of(folder, facts, validation=str(folder / "held_out.jsonl"))
    other = write_rows(tmp_path / "held_out.jsonl", rows=8, seed=2)
    found = changed(held_out, data_of(folder, facts, validation=str(other)))
    assert {"data.validation.content", "data.validation.tokens"} <= set(found)
    assert not any("train" in key for key in found)


def adapter_of(folder: Path, **lora: Any) -> dict[str, str]:
    asked = config({"model.name": str(folder / "base"), **{f"lora.{key}": value for key, value in lora.items()}})
    whole = LlamaForCausalLM.from_pretrained(folder / "base")
    return fingerprint.of_adapter(adapters.attach(whole, asked, base=source.find(asked.model)))


def test_the_layout_of_the_adapter_is_a_field_and_its_first_values_where_they_changed_the_base(folder: Path) -> None:
    before = adapter_of(folder)
    assert before == adapter_of(folder)
    assert before["adapter.layout"].startswith("28 tensors, ")
    assert changed(before, adapter_of(folder, rank=4)) == ["adapter.layout"]
    assert changed(before, adapter_of(folder, init="gaussian")) == []
    pissa = adapter_of(folder, init="pissa", targets=["q_proj"])
    assert set(pissa) == {"adapter.layout", "adapter.initial"}
    assert pissa == adapter_of(folder, init="pissa", targets=["q_proj"])


def test_versions_are_read_without_importing_and_each_change_is_named(trial: Trial) -> None:
    versions = fingerprint.of_versions()
    assert versions["versions.torch"].startswith(torch.__version__.split("+")[0])
    for name in versions:
        trial("P9", changed(versions, {**versions, name: "0"}) == [name], field=name)
        assert changed(versions, {key: value for key, value in versions.items() if key != name}) == [name]


BEFORE = {"train.learning_rate": "0.0002", "train.seed": "0", "base.weights": "a" * 64, "versions.torch": "2.9.0"}
NOW = {"train.learning_rate": "0.001", "train.seed": "0", "base.weights": "b" * 64, "versions.torch": "2.10.0"}


def test_a_changed_run_is_refused_with_every_difference_and_what_would_accept_it(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint) as caught:
        run_identity.check(BEFORE, NOW, allowed=("versions",), directory=tmp_path)
    assert caught.value.exit_code == 83
    assert [problem.what for problem in caught.value.problems] == [
        "base.weights was aaaaaaaaaaaa, now bbbbbbbbbbbb",
        "train.learning_rate was 0.0002, now 0.001",
    ]
    accept = "--allow-change versions --allow-change base.weights --allow-change train.learning_rate"
    assert str(caught.value.hint).startswith(accept)


@pytest.mark.parametrize(
    "allowed", [("base", "train.", "versions.torch"), ("base.weights", "train.learning_rate", "versions")]
)
def test_changes_that_are_named_are_accepted_and_returned_for_the_record(
    allowed: tuple[str, ...], tmp_path: Path
) -> None:
    taken = run_identity.check(BEFORE, NOW, allowed=allowed, directory=tmp_path)
    assert taken["train.learning_rate"] == {"was": "0.0002", "now": "0.001"}
    assert set(taken) == {"base.weights", "train.learning_rate", "versions.torch"}
    assert run_identity.check(BEFORE, BEFORE, allowed=allowed, directory=tmp_path) == {}
    assert run_identity.check({}, {"new": "1"}, allowed=("new",), directory=tmp_path) == {
        "new": {"was": "absent", "now": "1"}
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train.learning_rat", "did you mean --allow-change train.learning_rate?"),
        ("lr", "did you mean --allow-change train.learning_rate?"),
        ("logging.every", "leave out --allow-change logging.every"),
        ("limits", "leave out --allow-change limits"),
        ("checkpoints.keep", "leave out --allow-change checkpoints.keep"),
        ("nonsense", "loradock config show lists the keys"),
        ("", "loradock config show lists the keys"),
    ],
)
def test_an_allowed_name_that_is_no_field_is_refused_with_the_nearest_one(
    name: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        run_identity.check(BEFORE, BEFORE, allowed=(name,), directory=tmp_path)
    assert caught.value.hint == words


def test_keys_of_embedding_are_no_fields_of_a_run_that_embeds_nothing() -> None:
    """So a run that began before these keys continues."""
    fields = fingerprint.of_config(config())
    new = {"objective", "train.generative_loss", "embedding.pooling"}
    assert not (new | fingerprint.LATER_KEYS.keys()) & set(fields)
    assert {"objective", "embedding.pooling"} <= set(fingerprint.of_config(config({"objective": "embedding"})))


def test_a_run_that_began_when_as_text_was_the_default_continues_under_auto() -> None:
    """Rows that auto takes otherwise are another field: their tokens."""
    before, now = (fingerprint.of_config(config({"data.special_tokens": value})) for value in ("as_text", "auto"))
    assert changed(before, now) == []
    assert now["data.special_tokens"] == "as_text"


@pytest.mark.parametrize(
    ("engine", "share", "is_field"), [("fast", 0.05, True), ("fast", 0.0, False), ("peft", 0.05, False)]
)
def test_a_run_whose_masks_of_dropout_were_drawn_in_another_way_is_refused_by_name(
    engine: str, share: float, is_field: bool, tmp_path: Path
) -> None:
    plan = SimpleNamespace(engine=SimpleNamespace(value=engine))
    now = BEFORE | fingerprint.of_dropout(plan, share=share)  # pyright: ignore[reportArgumentType]
    if not is_field:
        assert run_identity.check(BEFORE, now, allowed=(), directory=tmp_path) == {}
        return
    with pytest.raises(NoCheckpoint) as refused:
        run_identity.check(BEFORE, now, allowed=(), directory=tmp_path)
    assert "plan.dropout_masks was absent, now" in str(refused.value)
    assert "--allow-change plan.dropout_masks" in str(refused.value.hint)
    assert run_identity.check(BEFORE, now, allowed=("plan.dropout_masks",), directory=tmp_path)
