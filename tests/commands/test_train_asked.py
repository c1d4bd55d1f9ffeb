"""What `loradock train --resume` is asked for: the record's configuration, and what the command line lays over it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loradock.commands.run_options import Ask
from loradock.commands.train import asked, wanted
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, NoCheckpoint, UsageError
from loradock.training.run_dir import resume as resuming

BEGUN = {
    "train.learning_rate": "1e-05",
    "train.max_steps": "6",
    "data.validation": "{a: 'x: y.jsonl', b: \"é\\u2028.jsonl\"}",
}


def begun(place: Path) -> tuple[Path, RunConfig]:
    """A run directory whose record holds a configuration, and that configuration."""
    given = [f"{key}={value}" for key, value in BEGUN.items()]
    config = load(
        None, overrides=given, shortcuts={"--model": "./m", "--data": ["rows.jsonl"], "--output": "old"}
    ).config
    (place / "run.json").write_text(json.dumps({"config": config.model_dump(mode="json")}), encoding="utf-8")
    (place / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n', encoding="utf-8")
    return place, config


def test_resume_with_only_output_takes_the_record_as_it_is(tmp_path: Path) -> None:
    place, before = begun(tmp_path)
    loaded = asked(Ask(shortcuts={"--output": str(place)}), resume=True)
    assert loaded.config == before.model_copy(update={"output": str(place)})
    assert (loaded.origins["train.learning_rate"], loaded.warnings) == (str(place / "run.json"), ())


def test_resume_lays_what_else_is_given_over_the_record(tmp_path: Path) -> None:
    place, before = begun(tmp_path)
    ask = Ask(overrides=("train.workers=0",), shortcuts={"--output": str(place), "--max-steps": 3})
    loaded = asked(ask, resume=True)
    train = before.train.model_copy(update={"workers": 0, "max_steps": 3})
    assert loaded.config == before.model_copy(update={"output": str(place), "train": train})
    assert {loaded.origins[key] for key in ("train.workers", "train.max_steps", "output")} == {
        "--set",
        "--max-steps",
        "--output",
    }


def test_a_wrong_override_of_a_resumed_run_is_told_by_its_option(tmp_path: Path) -> None:
    place, _ = begun(tmp_path)
    with pytest.raises(ConfigError) as caught:
        asked(Ask(overrides=("train.epoch=2",), shortcuts={"--output": str(place)}), resume=True)
    assert [problem.place for problem in caught.value.problems] == ["--set"]


def test_a_full_command_with_resume_is_read_without_the_record(tmp_path: Path) -> None:
    place, _ = begun(tmp_path)
    given = {"--output": str(place), "--model": "./m", "--data": ["rows.jsonl"]}
    assert asked(Ask(shortcuts=given), resume=True).config.train.max_steps is None


@pytest.mark.parametrize("ask", [Ask(), Ask(overrides=("train.workers=0",)), Ask(shortcuts={"--output": ""})])
def test_resume_without_a_directory_asks_for_it(ask: Ask) -> None:
    with pytest.raises(UsageError) as caught:
        asked(ask, resume=True)
    assert caught.value.hint == "loradock train --resume --output DIRECTORY"


@pytest.mark.parametrize("ask", [Ask(shortcuts={"--output": ""}), Ask(overrides=('output=""',))])
def test_an_empty_output_is_refused_and_not_taken_for_none(ask: Ask) -> None:
    given = {"--model": "./m", "--data": ["rows.jsonl"], **ask.shortcuts}
    with pytest.raises(ConfigError) as caught:
        asked(Ask(overrides=ask.overrides, shortcuts=given), resume=False)
    (problem,) = caught.value.problems
    assert problem.what == 'output must be a text that is not empty and that can be a path, or null, not ""'
    assert problem.hint == "leave it out to take its default"


def test_fresh_and_allow_change_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        wanted(Ask(), demo=False, resume=False, fresh=True, allowed=("train.learning_rate",))
    assert "--allow-change has no effect with --fresh" in caught.value.what
    assert caught.value.hint == "leave one of them out"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ("train.learning_rate=2e-3",),
            "--max-steps N --allow-change train.max_steps --allow-change train.learning_rate",
        ),
        (
            ("train.learning_rate=2e-3", "train.max_steps=9"),
            "--allow-change train.learning_rate --allow-change train.max",
        ),
        (("train.max_steps=4",), "--max-steps N --allow-change train.max_steps continues"),
    ],
)
def test_a_finished_run_with_a_change_is_told_at_once_that_it_needs_more_steps(
    tmp_path: Path, changes: tuple[str, ...], words: str
) -> None:
    place, _ = begun(tmp_path)
    (place / "adapter").mkdir()
    record = json.loads((place / "run.json").read_text(encoding="utf-8"))
    for status in ("finished", "stopped"):
        more = {"status": status, "outcome": {"steps": 6, "ended": "planned end"}}
        (place / "run.json").write_text(json.dumps(record | more), encoding="utf-8")
        loaded = asked(Ask(overrides=changes, shortcuts={"--output": str(place)}), resume=True)
        with pytest.raises(NoCheckpoint, match="started with other settings") as caught:
            resuming.look(loaded, parent=None, name="x", must_exist=True, allowed=())
        hint = str(caught.value.hint)
        assert (words in hint) == (status == "finished" or len(changes) > 1)
        assert ("all 6 steps are made" in hint) == (status == "finished" and len(changes) == 1)
        assert "--fresh" in hint


@pytest.mark.parametrize("allowed", [(), ("lora",), ("lora.rank", "adapter.layout")])
def test_a_change_of_the_adapters_weights_cannot_be_allowed_and_no_hint_says_so(
    tmp_path: Path, allowed: tuple[str, ...]
) -> None:
    place, _ = begun(tmp_path)
    loaded = asked(Ask(overrides=("lora.rank=3",), shortcuts={"--output": str(place)}), resume=True)
    with pytest.raises(NoCheckpoint, match="has other weights than these settings ask for") as caught:
        resuming.look(loaded, parent=None, name="x", must_exist=True, allowed=allowed)
    assert "--allow-change" not in str(caught.value.hint)
    assert [problem.what.partition(" was ")[0] for problem in caught.value.problems] == ["lora.rank"]


def test_a_run_that_stopped_early_has_steps_left_for_a_change(tmp_path: Path) -> None:
    place, _ = begun(tmp_path)
    (place / "adapter").mkdir()
    record = json.loads((place / "run.json").read_text(encoding="utf-8"))
    ended = {"status": "finished", "outcome": {"steps": 6, "ended": "early stop", "best_step": 2}}
    (place / "run.json").write_text(json.dumps(record | ended), encoding="utf-8")
    loaded = asked(Ask(overrides=("train.seed=3",), shortcuts={"--output": str(place)}), resume=True)
    with pytest.raises(NoCheckpoint) as caught:
        resuming.look(loaded, parent=None, name="x", must_exist=True, allowed=())
    assert str(caught.value.hint).startswith("--allow-change train.seed continues it with these changes")
