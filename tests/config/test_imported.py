"""A configuration of another tool becomes one of ours, which is taken as it is, and none of which is without effect."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from loradock.cli import cli
from loradock.config.annotated_yaml import annotated_yaml
from loradock.config.imported import imported
from loradock.config.load import leaves, load
from loradock.config.other_tools import TOOLS, recognised
from loradock.config.other_tools.base import Tool
from loradock.config.strict_yaml import parse_document
from loradock.errors import ConfigError

pytestmark = pytest.mark.thin(2)

FOLDER = Path(__file__).parents[1] / "cases" / "imported"
TABLES: dict[str, Any] = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in sorted(FOLDER.glob("*.yaml"))}
EACH = [(tool, number) for tool, table in TABLES.items() for number in range(len(table["cases"]))]
COMMIT = "0" * 40


def written(folder: Path, tool: str, changes: dict[str, Any]) -> Path:
    """Their file, which is JSON, and so YAML as well; what is None is left out."""
    (folder / "dataset_info.json").write_text(json.dumps(TABLES["llama-factory"]["dataset_info"]))
    theirs = {name: value for name, value in (TABLES[tool]["base"] | changes).items() if value is not None}
    file = folder / "theirs.yaml"
    file.write_text(json.dumps(theirs, indent=1).replace("{folder}", str(folder)))
    return file


def flat(values: Any) -> dict[str, Any]:
    """Dotted keys of a YAML of ours, mappings of columns whole."""
    level: dict[str, Any] = {}
    for section, inside in values.items():
        for key, value in inside.items() if isinstance(inside, dict) else (("", inside),):
            name = f"{section}.{key}".rstrip(".")
            if name == "data.sources":
                level |= {f"{name}.{index}.{own}": each for index, row in enumerate(value) for own, each in row.items()}
            else:
                level[name] = value
    return level


@pytest.mark.thin(4)
@pytest.mark.parametrize(("tool", "number"), EACH)
def test_each_value_of_theirs_is_ours_or_told_and_what_is_written_is_taken_and_has_an_effect(
    tool: str, number: int, tmp_path: Path
) -> None:
    case = TABLES[tool]["cases"][number]
    changes, ours = case["theirs"], case["ours"]
    file = written(tmp_path, tool, changes)
    hub = "hub:" in json.dumps(ours) and not any("revision" in each for each in changes.get("datasets", ()))
    result = imported(file, overrides=[f"data.sources.0.revision={COMMIT}"] if hub else [])
    assert result.tool.name == tool
    found = flat(parse_document(result.text, file="ours").values)
    for key, value in ours.items():
        expected = value.replace("{folder}", str(tmp_path)) if isinstance(value, str) else value
        assert found.get(key) == expected, key
    assert sorted(result.left) == case.get("left", []), result.left
    assert all(result.left.values())
    loaded = load(tmp_path / "ours.yaml", text=result.text, needs_inputs=False)
    assert [warning for warning in loaded.warnings if "has no effect" in warning] == []
    again = load(tmp_path / "shown.yaml", text=annotated_yaml(loaded), needs_inputs=False)
    assert leaves(again.config) == leaves(loaded.config)


def test_there_are_twenty_of_each_tool() -> None:
    assert TABLES.keys() == TOOLS.keys()
    assert [tool for tool, table in TABLES.items() if len(table["cases"]) < 20] == []


OTHER_TRAININGS: list[tuple[str, dict[str, Any], str]] = [
    ("ms-swift", {"rlhf_type": "grpo", "reward_funcs": ["accuracy"], "num_generations": 8}, "rlhf_type: grpo"),
    ("ms-swift", {"task_type": "seq_cls", "num_labels": 2}, "task_type: seq_cls"),
    ("ms-swift", {"task_type": "reranker"}, "task_type: reranker"),
    ("ms-swift", {"task_type": "embedding", "loss_type": "infonce"}, "here with objective: embedding"),
    ("unsloth", {"GRPOConfig": {"num_generations": 6, "beta": 0.1}}, "GRPOConfig"),
    ("unsloth", {"num_generations": 6}, "num_generations: 6, of a trainer that is not named"),
    ("unsloth", {"beta": 0.1}, "beta: 0.1, of a trainer that is not named"),
    ("unsloth", {"FastSentenceTransformer": {"max_seq_length": 512}}, "FastSentenceTransformer"),
    ("unsloth", {"task_type": "FEATURE_EXTRACTION"}, "task_type: FEATURE_EXTRACTION"),
]


@pytest.mark.parametrize(("tool", "changes", "what"), OTHER_TRAININGS)
def test_another_training_is_not_taken_for_a_supervised_one(
    tool: str, changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="asks for a training that is not here") as error:
        imported(written(tmp_path, tool, changes), tool=tool)
    assert what in str(error.value)
    assert str(error.value.hint).startswith("to train supervised rows, remove ")


def test_nothing_of_a_tool_is_both_carried_over_and_needless() -> None:
    for tool in TOOLS.values():
        assert not tool.needless & (tool.rules.keys() | tool.lacking.keys()), tool.name
        assert tool.marks.isdisjoint(("model.name", "train", "data", "lora"))


@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_of_each_becomes_a_plan_by_the_command_line(tool: str, tmp_path: Path, llama: Path, rows: Path) -> None:
    places = {"base_model": llama, "model_name_or_path": llama, "model": llama, "model_name": llama}
    data = {"datasets": [{"path": str(rows)}], "dataset_name": str(rows), "dataset": str(rows)}
    changes = {name: str(value) for name, value in places.items() if name in TABLES[tool]["base"]}
    changes |= {name: value for name, value in data.items() if name in TABLES[tool]["base"]} | {"seed": 3}
    (tmp_path / "rows.json").write_bytes(rows.read_bytes())
    if tool == "llama-factory":
        changes["dataset"] = "mine"
    file, ours = written(tmp_path, tool, changes), tmp_path / "run.yaml"
    settings = ("--set", "data.max_length=512", "--set", f"data.sources.0.path={rows}")
    done = CliRunner().invoke(cli, ["config", "import", str(file), "-o", str(ours), *settings])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(cli, ["config", "show", str(ours)])
    assert (shown.exit_code, "no effect" in shown.stderr) == (0, False), shown.output
    planned = CliRunner().invoke(cli, ["plan", str(ours)])
    assert planned.exit_code == 0, (planned.output, planned.exception)
    again = CliRunner().invoke(cli, ["config", "import", str(file), "-o", str(ours)])
    assert "already exists" in str(again.exception)


@pytest.mark.parametrize("tool", TOOLS)
def test_given_to_train_it_is_answered_with_the_command_that_imports_it(tool: str, tmp_path: Path) -> None:
    file = written(tmp_path, tool, {})
    done = CliRunner().invoke(cli, ["train", str(file)])
    assert isinstance(done.exception, ConfigError)
    assert f"is a configuration of {TOOLS[tool].title}, not one of loradock" in str(done.exception)
    assert done.exception.hint == f"loradock config import {file} -o run.yaml"


def test_a_file_of_ours_with_slips_is_nobody_elses() -> None:
    from loradock.config.presets import preset_names, read_preset

    assert [name for name in preset_names() if recognised(read_preset(name).values)] == []


def test_a_step_of_several_gpus_is_as_many_rows_and_shares_the_model(tmp_path: Path) -> None:
    file = written(
        tmp_path, "axolotl", {"gradient_accumulation_steps": 4, "deepspeed": "deepspeed_configs/zero3_bf16.json"}
    )
    result = imported(file, gpus=4)
    found = flat(parse_document(result.text, file="ours").values)
    assert (found["train.global_batch"], found["train.parallel"]) == (32, "zero3")
    assert "# micro_batch_size x gradient_accumulation_steps x 4 GPUs" in result.text


def test_what_nobody_wrote_is_said_to_be_their_default(tmp_path: Path) -> None:
    text = imported(written(tmp_path, "trl", {})).text
    assert "# learning_rate, TRL's default" in text
    assert "# lora_r\n" in text


def test_what_cannot_be_trained_is_told_by_the_line_of_their_file_and_nothing_is_written(tmp_path: Path) -> None:
    file, ours = written(tmp_path, "axolotl", {"lora_r": -3, "learning_rate": 7}), tmp_path / "run.yaml"
    done = CliRunner().invoke(cli, ["config", "import", str(file), "-o", str(ours)])
    assert isinstance(done.exception, ConfigError)
    lines = {problem.what.split(" ")[0]: problem.line for problem in done.exception.problems}
    texts = file.read_text().splitlines()
    assert "lora_r" in texts[(lines["lora.rank"] or 0) - 1]
    assert "learning_rate" in texts[(lines["train.learning_rate"] or 0) - 1]
    assert not ours.exists()
    pinned = ("--set", "lora.rank=3", "--set", "train.learning_rate=1e-4")
    assert CliRunner().invoke(cli, ["config", "import", str(file), "-o", str(ours), *pinned]).exit_code == 0


def test_a_file_of_no_tool_asks_whose_it_is(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text("learning_rate: 1e-4\n")
    done = CliRunner().invoke(cli, ["config", "import", str(file)])
    assert "its keys are those of none of axolotl, LLaMA-Factory, ms-swift, TRL, unsloth" in str(done.exception)
    assert CliRunner().invoke(cli, ["config", "import", str(file), "--from", "trl"]).exit_code == 0


@pytest.mark.parametrize("asked", [(), ("--from", "axolotl")])
def test_a_file_of_ours_needs_no_import(asked: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: base\ndata: rows.jsonl\ntrain: {max_steps: 3}\n")
    done = CliRunner().invoke(cli, ["config", "import", str(file), *asked])
    assert f"{file} is a configuration of loradock, and needs no import\nhint: loradock plan {file}" in str(
        done.exception
    )


@pytest.mark.parametrize(("tool", "key", "value"), [
    ("axolotl", "rl", "grpo"), ("llama-factory", "stage", "ppo"), ("ms-swift", "rlhf_type", "gkd"),
])  # fmt: skip
def test_a_training_that_is_not_here_is_refused_and_imports_once_its_key_is_removed(
    tool: str, key: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"a training that is not here .{key}: {value}.") as refused:
        imported(written(tmp_path, tool, {key: value}))
    assert str(refused.value.hint).endswith(f"remove {key}")
    assert imported(written(tmp_path, tool, {})).text


@pytest.mark.parametrize(("tool", "given", "expected"), [
    ("axolotl", {"rl": "dpo", "rl_beta": 0.2, "lora_model_dir": "sft"}, ("dpo", 0.2, "auto", "sft")),
    ("axolotl", {"rl": "orpo"}, ("orpo", 0.1, "auto", None)),
    ("llama-factory", {"stage": "dpo", "pref_loss": "sigmoid", "pref_beta": 0.3, "pref_ftx": 0.5},
     ("dpo", 0.3, 0.5, None)),
    ("llama-factory", {"stage": "dpo", "pref_loss": "simpo", "adapter_name_or_path": "sft"},
     ("simpo", 0.1, "auto", "sft")),
    ("llama-factory", {"stage": "kto", "pref_beta": 0.3, "kto_chosen_weight": 1.3}, ("kto", 0.3, "auto", None)),
    ("axolotl", {"rl": "kto", "rl_beta": 0.2, "kto_undesirable_weight": 0.5}, ("kto", 0.2, "auto", None)),
    ("trl", {"loss_type": "kto", "beta": 0.2}, ("kto", 0.2, "auto", None)),
    ("trl", {"desirable_weight": 1.3}, ("kto", 0.1, "auto", None)),
    ("trl", {"loss_type": ["sigmoid"], "beta": 0.2, "rpo_alpha": 1.0}, ("dpo", 0.2, 1.0, None)),
    ("trl", {"loss_type": ["sigmoid"], "precompute_ref_log_probs": True}, ("dpo", 0.1, "auto", None)),
    ("trl", {"loss_type": "ipo"}, ("ipo", 0.1, "auto", None)),
    ("trl", {"loss_type": ["hinge"]}, ("hinge", 0.1, "auto", None)),
    ("trl", {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0], "beta": 0.2},
     ({"dpo": 0.8, "bco_pair": 0.2}, 0.2, 1.0, None)),
    ("trl", {"loss_type": ["sigmoid"], "loss_weights": [0.5]}, ({"dpo": 0.5}, 0.1, "auto", None)),
    ("trl", {"loss_type": ["sigmoid", "sppo_hard"]}, ({"dpo": 1.0, "sppo": 1.0}, 0.1, "auto", None)),
    ("ms-swift", {"rlhf_type": "dpo", "loss_type": ["sigmoid", "ipo"], "loss_weights": [0.5, 0.1]},
     ({"dpo": 0.5, "ipo": 0.1}, 0.1, "auto", None)),
    ("ms-swift", {"rlhf_type": "dpo", "beta": 0.2, "rpo_alpha": 1.0, "adapters": ["sft"]}, ("dpo", 0.2, 1.0, "sft")),
])  # fmt: skip
def test_a_training_by_preferences_is_one_of_ours(
    tool: str, given: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    result = imported(written(tmp_path, tool, given))
    file.write_text(result.text)
    config = load(file, needs_inputs=False).config
    of = config.preference
    assert "precompute_ref_log_probs" not in result.left  # ours are kept anyway
    assert expected[3] is None or not {"rank:", "alpha:", "targets:"} & {*file.read_text().split()}  # the adapter's own
    assert not any(source.format in ("messages", "alpaca", "sharegpt") for source in config.data.sources)
    assert config.objective == "preference"
    assert (of.loss, of.beta, of.likelihood_weight) == expected[:3]
    assert (config.lora.adapter is None) == (expected[3] is None)


@pytest.mark.parametrize(("tool", "given", "center"), [
    ("llama-factory", {"stage": "rm", "pref_beta": 0.2}, 0.0),
    ("ms-swift", {"rlhf_type": "rm", "center_rewards_coefficient": 0.01}, 0.01),
    ("axolotl", {"reward_model": True, "center_rewards_coefficient": 0.01}, 0.01),
    ("trl", {"center_rewards_coefficient": 0.01, "learning_rate": None}, 0.01),
    ("ms-swift", {"rlhf_type": "rm", "adapters": ["sft"]}, 0.0),
])  # fmt: skip
def test_a_training_of_a_reward_model_is_one_of_ours(
    tool: str, given: dict[str, Any], center: float, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    result = imported(written(tmp_path, tool, given))
    file.write_text(result.text)
    loaded = load(file, needs_inputs=False)
    assert (loaded.config.objective, loaded.config.reward.center) == ("reward", center)
    assert not any(source.format in ("messages", "alpaca", "sharegpt") for source in loaded.config.data.sources)
    assert ("pref_beta" in result.left, "adapters" in result.left) == ("pref_beta" in given, "adapters" in given)
    assert tool != "trl" or loaded.config.train.learning_rate == 1e-4


def test_trls_loss_says_what_is_trained_and_at_which_default_rate(tmp_path: Path) -> None:
    """DPOConfig and KTOConfig have 1e-6 where SFTConfig has 2e-5."""
    preferred = imported(written(tmp_path, "trl", {"loss_type": "kto", "learning_rate": None})).text
    assert "learning_rate: 1e-06" in preferred
    given = imported(written(tmp_path, "trl", {"loss_type": "kto", "learning_rate": 3e-6})).text
    assert "learning_rate: 3e-06" in given
    supervised = imported(written(tmp_path, "trl", {"loss_type": "nll", "beta": 0.2})).text
    assert "preference" not in supervised.replace("preference.beta belongs to", "")
    smoothed = {"loss_type": ["sigmoid", "robust"], "label_smoothing": 0.1}  # theirs smooths robust alone
    for given in ({"loss_type": ["sigmoid", "aot"]}, {"loss_type": ["sigmoid"], "loss_weights": [1, 2]}, smoothed):
        with pytest.raises(ConfigError, match="a training that is not here"):
            imported(written(tmp_path, "trl", given))


ODD = (16, -1.5, "x", "", True, False, ["x"], [], [1, {"path": 2}], {"a": 1}, {"path": ["x"]}, [[{}]])


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.thin(6)
def test_a_value_of_the_wrong_kind_is_an_error_of_ours_or_reported_and_never_a_traceback(
    tool: str, tmp_path: Path
) -> None:
    base = TABLES[tool]["base"]
    known = TOOLS[tool].rules.keys() | base.keys()
    for value in ODD:
        translation = TOOLS[tool].translate(base | dict.fromkeys(known, value), folder=tmp_path, gpus=2)
        assert all(translation.left.values())
    number = next(name for name in sorted(known) if name in ("lora_r", "lora_rank", "r"))
    with pytest.raises(ConfigError) as refused:
        imported(written(tmp_path, tool, {number: -3}), tool=tool)
    assert "lora.rank" in [problem.what.split(" ")[0] for problem in refused.value.problems]
    for name in sorted(known):
        with contextlib.suppress(ConfigError):
            imported(written(tmp_path, tool, {name: [[{}]]}), tool=tool)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=lambda tool: tool.name)
def test_no_key_of_a_tool_is_answered_in_two_ways(tool: Tool) -> None:
    answered = Counter([*tool.rules, *tool.needless, *tool.lacking])
    assert not [key for key, count in answered.items() if count > 1]


def test_rows_that_are_given_as_a_whole_list_take_the_place_of_theirs(tmp_path: Path) -> None:
    """They were written beside one another, and the result was said to name no rows."""
    file = tmp_path / "theirs.yaml"
    theirs = {"base_model": "base", "adapter": "lora", "datasets": [{"path": "old.jsonl", "type": "alpaca"}]}
    file.write_text(yaml.safe_dump(theirs), encoding="utf-8")
    result = imported(file, overrides=["data.sources=[{path: new.jsonl}]"])
    assert yaml.safe_load(result.text)["data"]["sources"] == [{"path": "new.jsonl"}]
    assert "(the rows)" not in result.left


def test_a_term_of_theirs_that_is_not_quite_ours_is_told_with_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    theirs = {"model_name_or_path": "base", "stage": "dpo", "finetuning_type": "lora", "pref_bco_weight": 0.2}
    file.write_text(yaml.safe_dump(theirs), encoding="utf-8")
    assert "running mean" in imported(file).left["pref_bco_weight"]


@pytest.mark.parametrize(
    ("tool", "theirs"),
    [
        ("unsloth", {"model_name": "base", "r": 8, "KTOTrainer": {"loss_type": "apo_zero_unpaired"}}),
        ("unsloth", {"model_name": "base", "r": 8, "loss_type": "sigmoid"}),
        ("ms-swift", {"model": "base", "rlhf_type": "cpo", "loss_type": "hinge"}),
    ],
)
def test_a_loss_that_is_not_here_is_refused_and_not_taken_for_its_trainers_own(
    tool: str, theirs: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(yaml.safe_dump(theirs), encoding="utf-8")
    with pytest.raises(ConfigError, match="loss_type"):
        imported(file, tool=tool)
