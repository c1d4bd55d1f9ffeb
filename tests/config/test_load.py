"""Loading: the order of the layers, where each value came from, what is read as meant, and the warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from loradock.config.annotated_yaml import annotated_yaml
from loradock.config.load import Loaded, leaves, load
from loradock.config.presets import preset_names
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError

INPUTS: dict[str, object] = {"--model": "./model", "--data": ["rows.json"]}


def loaded(text: str, tmp_path: Path, *overrides: str, preset: str | None = None, **shortcuts: object) -> Loaded:
    """A configuration of this YAML text, with a model and data unless the text or the options give them."""
    file = _file(text, tmp_path)
    own = {flag: value for flag, value in INPUTS.items() if {"--model": "model:", "--data": "data:"}[flag] not in text}
    given = {f"--{name.replace('_', '-')}": value for name, value in shortcuts.items()}
    return load(file, preset=preset, overrides=overrides, shortcuts=own | given)


def _file(text: str, tmp_path: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    assert RunConfig().train.learning_rate == 2e-4
    text = "train:\n  learning_rate: 1e-3\n"
    assert loaded("name: x\n", tmp_path, preset="commonsense-adapters").config.train.learning_rate == 3e-4
    assert loaded(text, tmp_path, preset="commonsense-adapters").config.train.learning_rate == 1e-3
    with_set = loaded(text, tmp_path, "train.learning_rate=1e-2")
    assert with_set.config.train.learning_rate == 1e-2
    with_both = loaded(text, tmp_path, "train.learning_rate=1e-2", lr=0.1)
    assert with_both.config.train.learning_rate == 1e-2
    assert with_both.warnings == ("--lr has no effect: --set train.learning_rate decides",)
    twice = loaded(text, tmp_path, "train.learning_rate=1e-2", "train.learning_rate=1e-5")
    assert twice.config.train.learning_rate == 1e-5


def test_a_layer_changes_its_own_keys_and_no_others(tmp_path: Path) -> None:
    config = loaded("train:\n  epochs: 5\n", tmp_path, "lora.alpha=7", preset="mistral-a10").config
    assert (config.train.epochs, config.lora.alpha) == (5, 7)
    assert (config.train.micro_batch, config.lora.rank, config.lora.dropout) == (8, 16, 0.05)
    assert config.lora.targets == ("q_proj", "k_proj", "v_proj", "o_proj")


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    text = "train:\n  epochs: 5\nlora:\n  targets: [a,\n    b]\n"
    result = loaded(text, tmp_path, "lora.alpha=7", preset="mistral-a10", lr=1e-4)
    file = tmp_path / "run.yaml"
    assert result.origins["train.epochs"] == f"{file}:2"
    assert result.origins["lora.targets"] == f"{file}:4"
    assert result.origins["lora.dropout"] == "preset mistral-a10"
    assert result.origins["lora.alpha"] == "--set"
    assert result.origins["train.learning_rate"] == "--lr"
    assert result.origins["data.sources.0.path"] == "--data"
    assert result.origins["data.sources.0.weight"] == "default"
    assert result.origins["train.seed"] == "default"
    assert set(result.origins) == set(leaves(result.config))


def test_a_list_that_is_replaced_leaves_no_origin_behind(tmp_path: Path) -> None:
    text = "data:\n  sources:\n    - path: a.json\n      weight: 2\n"
    result = load(_file(text, tmp_path), shortcuts=INPUTS)
    assert result.config.data.sources[0].weight == 1
    assert result.origins["data.sources.0.weight"] == "default"


def test_sources_may_be_a_path_a_list_of_paths_or_entries(tmp_path: Path) -> None:
    one = loaded("data:\n  sources: a.json\n", tmp_path)
    assert [source.path for source in one.config.data.sources] == ["a.json"]
    mixed = loaded("data:\n  sources:\n    - a.json\n    - path: b.json\n      weight: 2\n", tmp_path)
    assert [(source.path, source.weight) for source in mixed.config.data.sources] == [("a.json", 1), ("b.json", 2)]
    assert mixed.origins["data.sources.0.path"] == f"{tmp_path / 'run.yaml'}:3"
    assert mixed.origins["data.sources.1.weight"] == f"{tmp_path / 'run.yaml'}:5"


def test_set_reaches_into_the_list_of_sources(tmp_path: Path) -> None:
    text = "data:\n  sources: [a.json, b.json]\n"
    overrides = ("data.sources.1.weight=0.5", "data.sources.2=c.json", "data.sources.0.fields.output=answer")
    sources = loaded(text, tmp_path, *overrides).config.data.sources
    assert [(source.path, source.weight) for source in sources] == [("a.json", 1), ("b.json", 0.5), ("c.json", 1)]
    assert sources[0].fields == {"output": "answer"}
    with pytest.raises(ConfigError, match=r"data\.sources\.7\.weight cannot be set"):
        loaded(text, tmp_path, "data.sources.7.weight=1")


def test_set_takes_lists_mappings_and_texts_with_odd_signs(tmp_path: Path) -> None:
    overrides = ("lora.targets=[q_proj, v_proj]", "train={epochs: 2, seed: 5}", "output=runs/a=b: c #1", 'name="7"')
    config = loaded("device: cpu\n", tmp_path, *overrides).config
    assert config.lora.targets == ("q_proj", "v_proj")
    assert (config.train.epochs, config.train.seed) == (2, 5)
    assert (config.output, config.name) == ("runs/a=b: c #1", "7")


def test_numbers_are_read_as_meant(tmp_path: Path) -> None:
    text = (
        "train:\n  learning_rate: 1e-4\n  max_steps: 1e3\n  weight_decay: 1\ndata:\n  sources: a\n  validation: 100\n"
    )
    config = loaded(text, tmp_path).config
    assert config.train.learning_rate == 1e-4
    assert (config.train.max_steps, type(config.train.max_steps)) == (1000, int)
    assert (config.train.weight_decay, type(config.train.weight_decay)) == (1.0, float)
    assert (config.data.validation, type(config.data.validation)) == (100.0, float)


def test_an_empty_section_takes_its_defaults(tmp_path: Path) -> None:
    assert loaded("train:\nlora:\n", tmp_path).config.lora == RunConfig().lora


def test_paths_of_short_forms_stay_texts(tmp_path: Path) -> None:
    result = load(None, shortcuts={"--model": "123", "--data": ["1e5", Path("no")], "--output": tmp_path})
    assert (result.config.model.name, result.config.output) == ("123", str(tmp_path))
    assert [source.path for source in result.config.data.sources] == ["1e5", "no"]


def test_what_is_shown_reads_back_to_the_same_configuration(tmp_path: Path) -> None:
    text = (
        "name: 'no'\noutput: \"a: b # c\"\nmodel:\n  name: ./m\n  revision: '0123'\n"
        "data:\n  sources:\n    - {path: 'été 😀.json', fields: {output: '1', input: 'a b'}}\n    - '{x}'\n"
        "lora:\n  targets: [q_proj, '12', 'null', '- x', '<<']\n  alpha: 1e-7\n"
    )
    first = loaded(text, tmp_path)
    again = loaded(annotated_yaml(first), tmp_path)
    assert again.config == first.config


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_validates_and_says_where_it_comes_from_and_what_changed(name: str) -> None:
    result = load(None, preset=name, shortcuts=INPUTS)
    assert result.warnings == ()
    folder = Path(__file__).parents[2] / "src" / "loradock" / "config" / "presets"
    text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
    for part in ("# Source: ", "# Kept: ", "# Changed:", "--model DIR"):
        assert part in text
    assert result.config.model.name == "./model"


def test_the_presets_hold_the_figures_of_their_sources() -> None:
    configs = {name: load(None, preset=name, shortcuts=INPUTS).config for name in preset_names()}
    phi3 = configs["phi3-commonsense"]
    assert (phi3.train.global_batch, phi3.train.learning_rate, phi3.train.optimizer) == (64, 2e-4, "adamw_fused")
    assert (phi3.data.max_length, phi3.train.workers, phi3.train.checkpointing) == (2048, 4, True)
    tiny = configs["tinyllama-2080ti"]
    assert (tiny.train.micro_batch, tiny.train.global_batch, tiny.train.epochs) == (4, 8, 4)
    assert (tiny.evaluation.every, tiny.checkpoints.every, tiny.logging.every, tiny.checkpoints.keep) == (20, 100, 5, 1)
    assert tiny.model.compute_dtype == "float16"
    mistral = configs["mistral-a10"]
    assert (mistral.lora.rank, mistral.lora.alpha, mistral.lora.dropout) == (16, 32, 0.05)
    assert (mistral.data.max_length, mistral.train.micro_batch, mistral.train.optimizer) == (512, 8, "auto")
    adapters = configs["commonsense-adapters"]
    assert (adapters.train.global_batch, adapters.train.micro_batch, adapters.train.epochs) == (16, 4, 3)
    assert (adapters.train.learning_rate, adapters.data.max_length, adapters.data.validation) == (3e-4, 256, 120)
    assert (adapters.lora.rank, adapters.lora.alpha) == (32, 64)
    assert adapters.lora.targets == ("q_proj", "k_proj", "v_proj", "up_proj", "down_proj")


WARNED = {
    "train.epochs": "train: {epochs: 3, max_steps: 10}",
    "model.double_quant": "model: {name: ./m, quantization: int8, double_quant: true}",
    "evaluation.every": "evaluation: {every: 10}",
    "data.seed": "data: {sources: a.json, seed: 3}",
    "logging.project": "logging: {project: mine}",
    "deterministic": "device: cpu\ndeterministic: true",
    "model.kernels": "engine: peft\nmodel: {name: ./m, kernels: torch}",
    "train.tf32": "device: cpu\ntrain: {tf32: true}",
    "model.revision": "model: {name: ./m, revision: '0123456789abcdef'}",
    "data.sources.0.revision": "data: {sources: [{path: a.json, revision: 0123456789abcdef}]}",
    "data.sources.0.fields": "data: {sources: [{path: a.json, fields: {output: output}}]}",
    "train.schedule": "train: {schedule: cosine, warmup: 100, max_steps: 50}",
    "train.early_stopping": "train: {early_stopping: 5, max_steps: 50}\nevaluation: {every: 10}\n"
    "data: {sources: a.json, validation: 0.1}",
}


@pytest.mark.parametrize("key", WARNED)
def test_a_key_without_effect_warns_with_its_line(key: str, tmp_path: Path) -> None:
    warnings = loaded(WARNED[key] + "\n", tmp_path).warnings
    file = tmp_path / "run.yaml"
    assert any(text.startswith(f"{file}:") and f"{key} has no effect" in text for text in warnings), warnings


def test_a_moving_revision_and_a_warm_up_that_never_ends_warn(tmp_path: Path) -> None:
    branch = loaded("model: {name: owner/model, revision: main}\n", tmp_path).warnings
    assert len(branch) == 1
    assert 'model.revision "main" is not a commit' in branch[0]
    commit = loaded("model: {name: owner/model, revision: 0a1b2c3d}\n", tmp_path).warnings
    assert commit == ()
    endless = loaded("train: {warmup: 100, max_steps: 50}\n", tmp_path).warnings
    assert len(endless) == 1
    assert "the peak rate is never reached" in endless[0]


def test_defaults_and_presets_never_warn(tmp_path: Path) -> None:
    assert loaded("name: x\n", tmp_path, "train.max_steps=10", preset="commonsense-adapters", lr=1e-5).warnings == ()


def test_a_model_directory_with_one_slash_needs_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert load(None, shortcuts=INPUTS | {"--model": "models/mine"}).config.model.name == "models/mine"
    with pytest.raises(ConfigError, match="needs a commit"):
        load(None, shortcuts=INPUTS | {"--model": "models/theirs"})


def test_a_rule_is_silent_about_a_key_that_could_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("model: {name: owner/model, revision: 1234567}\nlora: {init: pisa}\n", tmp_path)
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError) as caught:
        load(None, overrides=["base_model=./m", "data.path=x"])
    assert caught.value.problems[0].hint == "did you mean model.name?"
    assert not any(problem.what == "no model" for problem in caught.value.problems)


def test_a_key_below_a_value_or_without_a_position_says_what_belongs_there() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, overrides=["train.epochs.x=1", "data.sources.x=1", ".=1", "=1"], shortcuts=INPUTS)
    hints = [str(problem.hint) for problem in caught.value.problems]
    assert hints[0] == "train.epochs takes a number above 0 and at most 100,000"
    assert hints[1] == "entries go by their position: data.sources.0"
    assert hints[2].startswith("known here: name, output")
    assert hints[3] == "such as --set train.learning_rate=1e-4"


def test_a_set_refines_what_data_names() -> None:
    """The remedy that an undetected format suggests has to work as it is printed."""
    overrides = ["data.sources.0.fields.prompt=question", "data.sources.0.fields.completion=reply"]
    (source,) = load(None, overrides=overrides, shortcuts=INPUTS | {"--data": ["qa.csv"]}).config.data.sources
    assert (source.path, source.fields) == ("qa.csv", {"prompt": "question", "completion": "reply"})


@pytest.mark.parametrize("key", ["train.seed", "data.seed"])
@pytest.mark.parametrize("seed", ["-1", "4294967296", "99999999999999999999"])
def test_a_seed_that_no_generator_takes_is_refused_by_its_range(key: str, seed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, overrides=[f"{key}={seed}", "data.validation=0.1"], needs_inputs=False)
    (problem,) = caught.value.problems
    assert f"{key} must be a whole number from 0 to 4,294,967,295, not" in problem.what
    assert seed in problem.what
    assert seed not in str(problem.hint)


def test_the_largest_seed_is_taken() -> None:
    assert load(None, overrides=["train.seed=4294967295"], needs_inputs=False).config.train.seed == 2**32 - 1


@pytest.mark.parametrize("word", ["none", "off"])
def test_no_tracker_is_written_as_an_empty_list(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, overrides=[f"logging.trackers={word}"], needs_inputs=False)
    assert caught.value.problems[0].hint == "write []"


@pytest.mark.parametrize(
    ("key", "value", "range_"),
    [
        ("data.sources.0.weight", "1e6", "above 0 and at most 1,000"),
        ("data.sources.0.weight", "1e300", "above 0 and at most 1,000"),
        ("data.max_length", "1e12", "from 1 to 16,777,216"),
        ("data.seed", "-1", "from 0 to 4,294,967,295"),
        ("data.workers", "10000", "from 0 to 256"),
        ("train.workers", "10000", "from 0 to 256"),
        ("train.threads", "0", "from 1 to 1,024"),
        ("train.seed", "1099511627776", "from 0 to 4,294,967,295"),
        ("lora.rank", "1e11", "from 1 to 16,384"),
        ("lora.alpha", "1e300", "above 0 and at most 1,000,000"),
        ("train.neftune_alpha", "1e300", "from 0 to 1,000"),
        ("train.epochs", "1e12", "above 0 and at most 100,000"),
        ("train.max_steps", "1e15", "from 1 to 1,000,000,000"),
        ("train.global_batch", "1e12", "from 1 to 1,000,000"),
        ("train.weight_decay", "1e300", "from 0 to 1,000"),
        ("embedding.negatives", "1e9", "from 0 to 1,000"),
        ("limits.step_seconds", "1e300", "from 0 to 1,000,000,000"),
        ("name", "x" * 300, "of at most 200 characters"),
    ],
)
def test_a_number_beyond_any_run_is_refused_with_its_range(key: str, value: str, range_: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("name: x\n", tmp_path, f"{key}={value}")
    assert caught.value.exit_code == 78
    assert key in str(caught.value)
    assert range_ in str(caught.value)
