"""Which template a run takes is never a guess, and the plan names it with where it comes from."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import BASE, write_rows

from loradock.config.load import load
from loradock.data.corpus import prepare_corpus
from loradock.env_check.model import tokenizer as check
from loradock.errors import ConfigError, ModelError
from loradock.machine import Host, probe
from loradock.model import tokenizer_files
from loradock.model.description import describe
from loradock.model.tokenizer import open_tokenizer

TEMPLATE = (BASE / "chat_template.jinja").read_text(encoding="utf-8")


def in_config(folder: Path, value: object) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": value}))


def of_jinja(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def of_config(folder: Path) -> None:
    in_config(folder, TEMPLATE)


def of_processor(folder: Path) -> None:
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def of_both(folder: Path) -> None:
    in_config(folder, "{{ raise_exception('another') }}")
    of_jinja(folder)


def of_named(folder: Path) -> None:
    in_config(folder, [{"name": name, "template": TEMPLATE} for name in ("tool_use", "default")])


def of_none(folder: Path) -> None:
    pass


def several(folder: Path) -> None:
    in_config(folder, [{"name": name, "template": TEMPLATE} for name in ("tool_use", "rag")])


def only_additional(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TEMPLATE)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The demo's base without its template."""
    folder = tmp_path / "a model"
    shutil.copytree(BASE, folder, ignore=shutil.ignore_patterns("chat_template.jinja"))
    return folder


def rendered_with(model: Path, *settings: str, data: Path | None = None) -> tuple[str, str]:
    """What the plan of a run says of its template."""
    folder = model.parent
    rows = data or write_rows(folder / "rows.jsonl", rows=4)
    overrides = [f"data.cache={folder / 'cache'}", *settings]
    config = load(None, overrides=overrides, shortcuts={"--model": str(model), "--data": [str(rows)]}).config
    tokenizer = open_tokenizer(describe(config.model))
    facts = probe.gather(Host())
    return prepare_corpus(config, tokenizer=tokenizer, max_length=512, facts=facts).facts.template


@pytest.mark.parametrize(
    ("brings", "name", "origin"),
    [
        (of_jinja, "the tokenizer's own", "from its chat_template.jinja"),
        (of_config, "the tokenizer's own", "from its tokenizer_config.json"),
        (of_processor, "the tokenizer's own", "from its chat_template.json"),
        (of_both, "the tokenizer's own", "from its chat_template.jinja"),
        (of_named, "the tokenizer's own", "from its tokenizer_config.json"),
        (of_none, "alpaca", "the tokenizer brings no chat template (data.template auto)"),
    ],
)
def test_the_plan_names_the_template_and_the_file_that_it_is_from(
    brings: Callable[[Path], None], name: str, origin: str, model: Path
) -> None:
    brings(model)
    assert rendered_with(model) == (name, origin)
    (found,) = check.judge(tokenizer_files.read(model), directory=model, template="auto")
    assert ("template: its own" in found.what) == (name != "alpaca")


@pytest.mark.parametrize("brings", [several, only_additional])
def test_of_templates_none_of_which_is_the_default_none_is_guessed(brings: Callable[[Path], None], model: Path) -> None:
    brings(model)
    with pytest.raises(
        ConfigError, match=r"brings the chat templates .*tool_use, and none that is the default"
    ) as told:
        rendered_with(model)
    (found,) = check.judge(tokenizer_files.read(model), directory=model, template="auto")
    assert (found.severity, found.exit_code) == ("error", ConfigError.exit_code)
    options = [word for word in shlex.split(told.value.hint or "") if word.startswith("data.template=")]
    if brings is several:
        assert options == ["data.template=chatml"]
        return
    file, shipped = options
    assert rendered_with(model, file)[1] == "data.template names the file"
    assert rendered_with(model, shipped) == ("chatml", "data.template names it, a shipped one")


def test_rows_without_turns_have_no_template_and_those_beside_others_are_counted(model: Path) -> None:
    of_jinja(model)
    file = model.parent / "text.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert rendered_with(model, data=file) == ("none", "all rows are text without turns")
    file.write_text('{"text": "one"}\n{"text": ["a question", "an answer"]}\n')
    assert rendered_with(model, data=file)[1] == "from its chat_template.jinja; 1 of 2 rows are text without it"


@pytest.mark.parametrize("content", ["{", "[]", '{"chat_template": 3}'])
def test_a_template_file_of_a_processor_that_holds_none_is_refused_by_name(content: str, model: Path) -> None:
    (model / "chat_template.json").write_text(content)
    with pytest.raises(ModelError, match=r"chat_template\.json"):
        rendered_with(model)
