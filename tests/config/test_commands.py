"""`loradock config`: what it prints where, the schema for editors, and the reference page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from loradock.cli import cli
from loradock.config.fields import annotation_at, choices
from loradock.config.reference import json_schema, markdown
from loradock.data.formats import FORMATS
from loradock.errors import ConfigError, UsageError

ROOT = Path(__file__).parents[2]
INPUTS = ("--model", "./model", "--data", "rows.json")


def output(*args: str) -> tuple[str, str]:
    """Standard output and standard error of a `loradock config` that succeeds."""
    result = CliRunner().invoke(cli, ["config", *args])
    assert result.exit_code == 0, result.exception
    return result.stdout, result.stderr


def test_show_prints_yaml_with_the_origin_of_each_value(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("lora:\n  rank: 8\n")
    stdout, stderr = output("show", str(file), "--preset", "mistral-a10", "--lr", "1e-5", *INPUTS)
    lines = [" ".join(line.split()) for line in stdout.splitlines()]
    assert f"rank: 8 # {file}:2" in lines
    assert "dropout: 0.05 # preset mistral-a10" in lines
    assert "learning_rate: 1e-05 # --lr" in lines
    assert "- path: rows.json # --data" in lines
    assert "seed: 0 # default" in lines
    assert yaml.safe_load(stdout)["lora"]["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert stderr == ""


def test_show_needs_neither_a_model_nor_data() -> None:
    stdout, _ = output("show", "--preset", "phi3-commonsense")
    assert "max_length: 2048" in stdout


def test_show_as_json_is_for_programs() -> None:
    content = json.loads(output("show", "--json", "--set", "train.epochs=2", "--max-steps", "5", *INPUTS)[0])
    assert content["config"]["train"]["max_steps"] == 5
    assert content["origins"]["train.max_steps"] == "--max-steps"
    assert content["warnings"] == ["--set: train.epochs has no effect: train.max_steps 5 decides"]


def test_the_short_forms_that_people_type_are_keys_and_accumulation_says_what_it_follows_from() -> None:
    typed = ("--epochs", "2", "--rank", "4", "--alpha", "8", "--max-length", "64", "--seed", "3")
    content = json.loads(output("show", "--json", *typed, "--eval-steps", "5", "--save-steps", "6", *INPUTS)[0])
    config = content["config"]
    assert (config["train"]["epochs"], config["train"]["seed"], config["data"]["max_length"]) == (2, 3, 64)
    assert (config["lora"]["rank"], config["lora"]["alpha"]) == (4, 8)
    assert (config["evaluation"]["every"], config["checkpoints"]["every"]) == (5, 6)
    refused = CliRunner().invoke(cli, ["config", "show", "--grad-accum", "8", *INPUTS]).exception
    assert isinstance(refused, UsageError)
    assert "follows from --batch-size" in refused.what
    assert "8 times the micro-batch" in str(refused.hint)


def test_validate_says_ok_on_stdout_and_warns_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("logging:\n  project: mine\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.json").write_text("[]")
    stdout, stderr = output("validate", str(file), "--model", f"{tmp_path}/model", "--data", f"{tmp_path}/rows.json")
    assert stdout == f"ok: {file}\n"
    assert stderr == f"warning: {file}:2: logging.project has no effect: logging.trackers names no tracker\n"


def test_validate_says_of_each_input_whether_it_was_looked_for_and_found(tmp_path: Path) -> None:
    commit = "a" * 40
    file = tmp_path / "run.yaml"
    file.write_text(
        f"""
model: {{name: {tmp_path}/base}}
data:
  sources: [{tmp_path}/rows.jsonl, {{path: hub:a/b, revision: {commit}}}, "{tmp_path}/shard-*.jsonl"]
  template: {tmp_path}/t.jinja
  validation: {{held: {tmp_path}/v.jsonl}}
evaluation: {{tasks: [boolq={tmp_path}/test.json]}}
train: {{parallel: zero2, deepspeed: {tmp_path}/ds.json}}
embedding: {{template: {tmp_path}/e.jinja}}
"""
    )
    stdout, stderr = output("validate", str(file))
    assert stdout == f"ok: {file}; 7 of its inputs not found on this machine; hub:a/b not looked for on the hub\n"
    absent = [line for line in stderr.splitlines() if line.startswith("warning: on this machine: ")]
    for name in ("base", "rows.jsonl", "shard-*.jsonl", "t.jinja", "v.jsonl", "test.json", "ds.json"):
        assert any(f"{tmp_path}/{name}" in line for line in absent), name
    others = ("objective=gritlm", "train.parallel=ddp", "train.deepspeed=null")
    assert f"{tmp_path}/e.jinja" in output("validate", str(file), *(f"--set={each}" for each in others))[1]
    assert output("validate", "--model", "a/b", "--set", f"model.revision={commit}", "--data", str(file))[0] == (
        "ok: the configuration; a/b not looked for on the hub\n"
    )


@pytest.mark.parametrize("command", ["config show", "config validate", "render job", "render pod --demo"])
def test_a_command_that_reads_no_rows_does_not_wait_for_standard_input(command: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--model", "./model", "--data", "-"])
    assert isinstance(result.exception, UsageError), result.exception
    assert result.exception.what == "--data - is standard input, and this command reads no rows"


def test_validate_refuses_a_template_or_task_that_is_called_by_no_name() -> None:
    assert "there is no template named 'alpacca'" in refused("--set", "data.template=alpacca").what
    assert "boolk" in refused("--set", "evaluation.tasks=[boolk=x.jsonl]").what


def refused(*args: str) -> ConfigError:
    """The error that `loradock config validate` ends with."""
    result = CliRunner().invoke(cli, ["config", "validate", *INPUTS, *args])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_code == 78
    return result.exception


def test_validate_knows_the_data_formats_and_their_fields(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data:\n  sources:\n    - path: rows.json\n      format: alpacca\n")
    result = CliRunner().invoke(cli, ["config", "validate", str(file), "--model", "./model"])
    assert isinstance(result.exception, ConfigError)
    (problem,) = result.exception.problems
    assert (problem.file, problem.line, problem.hint) == (str(file), 4, "did you mean alpaca?")
    error = refused("--set", "data.sources.0.fields.reply=output")
    assert error.what == "data.sources.0.fields: reply is a field of no format"
    error = refused("--set", "data.sources.0.format=text", "--set", "data.sources.0.fields.output=reply")
    assert error.what == "data.sources.0.fields: output is a field of no text row"


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("data.validation=-0.1", "letters, digits, - and _: {chat: chat.jsonl}"),
        ('data.validation={"a b": x.jsonl}', "letters, digits, - and _: {chat: chat.jsonl}"),
        ("data.validation={}", "letters, digits, - and _: {chat: chat.jsonl}"),
        ("model.trust_remote_code=true", "repeat its model.name here as a text; else delete the key"),
        ("output=3", "put it in quotes"),
    ],
)
def test_quotes_are_proposed_only_where_the_text_would_mean_something(setting: str, hint: str) -> None:
    (problem,) = refused("--set", setting).problems
    assert str(problem.hint).endswith(hint)


def test_presets_are_listed_with_what_each_is_for() -> None:
    stdout, _ = output("presets")
    names = {"phi3-commonsense", "tinyllama-2080ti", "small-dataset-4090", "mistral-a10", "commonsense-adapters"}
    names |= {
        "seed-000",
        "seed-001",
        "seed-002",
        "seed-003",
        "seed-004",
        "gritlm-7b",
        "embedding-e5",
        "dpo-zephyr",
        "orpo",
    }
    assert {line.split()[0] for line in stdout.splitlines()} == names


def test_the_schema_is_valid_and_takes_what_we_take(tmp_path: Path) -> None:
    schema = json.loads(output("schema")[0])
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for good in (
        {},
        {"data": {"sources": "a"}},
        {"data": {"sources": ["a", {"path": "b"}]}},
        {"train": {"tf32": True}},
    ):
        validator.validate(good)
    for preset in (ROOT / "src" / "loradock" / "config" / "presets").glob("*.yaml"):
        content = {
            key: value for key, value in yaml.safe_load(preset.read_text(encoding="utf-8")).items() if key != "train"
        }
        validator.validate(content)
    for bad in ({"modle": {}}, {"lora": {"rank": 0}}, {"train": {"compile": "yes"}}, {"data": {"sources": [{}]}}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(bad)


def test_the_schema_describes_every_key() -> None:
    for section in [json_schema(), *json_schema()["$defs"].values()]:
        for name, field in section["properties"].items():
            assert field.get("description") or "$ref" in field, name


def test_the_schema_names_every_data_format() -> None:
    known = choices(annotation_at(("data", "sources", 0, "format")))
    assert known == ("auto", *(format.name for format in FORMATS))


def test_the_reference_page_is_the_one_made_from_the_schema() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == markdown(), "run: loradock config schema --markdown > docs/config.md"
    assert page == output("schema", "--markdown")[0]


def test_config_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from loradock.config.load import load; import loradock.commands.config; "
        "load(None, preset='mistral-a10', shortcuts={'--model': './m', '--data': ['x']}); "
        "print({'torch', 'transformers', 'numpy', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"
