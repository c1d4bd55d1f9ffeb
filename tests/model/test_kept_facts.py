"""A base's facts are taken from what was kept, until something changes that they depend on."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from families import make_model
from tiny import BASE

from loradock.config.schema import RunConfig
from loradock.errors import ModelError
from loradock.machine import marks
from loradock.model import kept_facts, shape
from loradock.model.description import describe

pytestmark = pytest.mark.thin(1)

RUNS: tuple[dict[str, Any], ...] = (
    {},
    {"objective": "reward", "engine": "peft"},
    {"objective": "embedding"},
    {"tokenizer": {"add_tokens": ["<|go|>"]}},
    {"model": {"rope_scaling": "linear", "rope_factor": 2}},
    {"model": {"quantization": "none"}, "lora": {"modules_to_save": ["lm_head"], "rank_pattern": {"q_proj": 4}}},
)


def run_of(directory: Path, settings: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(settings | {"model": {"name": str(directory)} | settings.get("model", {})})


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small base, whose files count as left alone."""
    monkeypatch.setenv("LORADOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(marks, "SETTLED_NS", 0)
    monkeypatch.setattr(kept_facts.description, "without_torch", lambda: None)  # the tests beside these have torch
    return Path(shutil.copytree(BASE, tmp_path / "base"))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Each time that facts are computed, the configuration."""
    seen: list[RunConfig] = []
    real = shape.inspect

    def inspect(base: Any, config: RunConfig) -> Any:
        seen.append(config)
        return real(base, config)

    monkeypatch.setattr(shape, "inspect", inspect)
    return seen


@pytest.mark.thin(6)
@pytest.mark.parametrize("settings", RUNS)
def test_what_was_kept_is_what_is_computed(base: Path, computed: list[RunConfig], settings: dict[str, Any]) -> None:
    config = run_of(base, settings)
    (_, first), (described, second) = kept_facts.inspect(config), kept_facts.inspect(config)
    assert len(computed) == 1
    assert second == first == shape.inspect(describe(config.model), config)
    assert described.directory == base


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3_text", "qwen3_next"])
def test_facts_of_mixtures_and_of_recurrent_layers_are_kept_whole(
    base: Path, computed: list[RunConfig], family: str, tmp_path: Path
) -> None:
    config = run_of(make_model(tmp_path / family, family), {"model": {"quantization": "none"}})
    assert kept_facts.inspect(config)[1] == kept_facts.inspect(config)[1]
    assert len(computed) == 1


def edited(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


CHANGES: dict[str, Callable[[Path], object]] = {
    "config.json": lambda base: edited(base / "config.json", rope_theta=5.0),
    "tokenizer": lambda base: (base / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes() + b"\n"),
    "weights": lambda base: os.utime(base / "model.safetensors"),
    "a new file": lambda base: (base / "new.json").write_text("{}"),
}


@pytest.mark.thin(6)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_base_is_computed_again(base: Path, computed: list[RunConfig], change: str) -> None:
    config = run_of(base, {})
    kept_facts.inspect(config)
    CHANGES[change](base)
    kept_facts.inspect(config)
    assert len(computed) == 2


def test_a_base_that_is_changed_while_it_is_looked_at_is_not_kept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shape.inspect

    def inspect(described: Any, config: RunConfig) -> Any:
        facts = real(described, config)
        edited(base / "config.json", max_position_embeddings=64)
        return facts

    monkeypatch.setattr(shape, "inspect", inspect)
    _, stale = kept_facts.inspect(run_of(base, {}))
    monkeypatch.setattr(shape, "inspect", real)
    _, current = kept_facts.inspect(run_of(base, {}))
    assert (stale.context_length == 64, current.context_length) == (False, 64)


@pytest.mark.thin(6)
@pytest.mark.parametrize("settings", RUNS[1:])
def test_other_settings_are_computed(base: Path, computed: list[RunConfig], settings: dict[str, Any]) -> None:
    kept_facts.inspect(run_of(base, {}))
    kept_facts.inspect(run_of(base, settings))
    assert len(computed) == 2


def test_another_state_of_the_libraries_is_computed(
    base: Path, computed: list[RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_facts.inspect(run_of(base, {}))
    monkeypatch.setattr(kept_facts, "library", lambda name: "another" if name == "transformers" else None)
    kept_facts.inspect(run_of(base, {}))
    assert len(computed) == 2


class Observed:
    """A configuration that remembers which of its sections are read."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.read = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.config, name)


@pytest.mark.parametrize("settings", RUNS)
def test_facts_depend_on_no_section_that_the_key_leaves_out(base: Path, settings: dict[str, Any]) -> None:
    config = run_of(base, settings)
    observed = Observed(config)
    shape.inspect(describe(config.model), cast("RunConfig", observed))
    assert observed.read <= kept_facts.SECTIONS | {"objective_spec"}


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_text("[]"),
        lambda file: file.chmod(0o666),
        lambda file: file.write_text(file.read_text().replace('"layers":', '"storeys":')),
        lambda file: file.write_text(file.read_text().replace(kept_facts.FORMAT, "another/1")),
    ],
    ids=["cut", "another kind", "open to others", "a fact gone", "another format"],
)
def test_a_damaged_file_counts_as_none(base: Path, computed: list[RunConfig], damage: Callable[[Path], None]) -> None:
    config = run_of(base, {})
    kept_facts.inspect(config)
    damage(base.parent / "cache" / kept_facts.NAME)
    _, facts = kept_facts.inspect(config)
    assert len(computed) == 2
    assert facts == shape.inspect(describe(config.model), config)


def test_a_week_later_it_is_computed_again(
    base: Path, computed: list[RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_facts.inspect(run_of(base, {}))
    later = time.time_ns() + marks.TRUSTED_NS
    monkeypatch.setattr(marks.time, "time_ns", lambda: later)
    kept_facts.inspect(run_of(base, {}))
    assert len(computed) == 2


def test_what_is_refused_is_refused_again(base: Path) -> None:
    for _ in range(2):
        with pytest.raises(ModelError, match="nowhere"):
            kept_facts.inspect(run_of(base, {"lora": {"targets": ["nowhere"]}}))


def test_a_folder_that_cannot_be_written_costs_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base.parent / "file").write_text("")
    monkeypatch.setenv("LORADOCK_CACHE", str(base.parent / "file" / "below"))
    assert kept_facts.inspect(run_of(base, {}))[1].layers
