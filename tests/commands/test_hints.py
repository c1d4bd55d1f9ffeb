"""An option that a hint names is one of the verb that gives the hint."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

import loradock
from loradock.cli import cli

SOURCES = Path(loradock.__file__).parent
OPENERS = ("merge", "generate", "chat", "evaluate", "embed", "export gguf", "train", "plan")
OPENING = "source weights files config_file tokenizer tokenizer_copy adapter_files adapter_tensors whole headers trial"
ROOMS = {
    "use/merge/*.py": ("merge",),
    "use/gguf/*.py": ("export gguf",),
    "use/evaluation/**/*.py": ("evaluate",),
    "use/embedding/st_*.py": ("checkpoint export",),
    **dict.fromkeys((f"model/{name}.py" for name in OPENING.split()), OPENERS),
}
"""Files by the verbs that reach them: a hint of a file may name what all of these have."""
OTHER_COMMAND = re.compile(r"\b(?:loradock|hf|lm-eval|pip|docker) [^;,]*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def options_of(words: str) -> set[str]:
    """The options of a verb as it is typed."""
    command: click.Command = cli
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found, words
        command = found
    return {option for each in command.params for option in each.opts}


def hints(file: Path) -> list[str]:
    """The texts that are given as a hint, or kept in a name that ends so, without what they fill in."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        given = isinstance(node, ast.keyword) and node.arg == "hint"
        named = isinstance(node, ast.Assign) and "hint" in ast.unparse(node.targets[0]).lower()
        if isinstance(node, (ast.keyword, ast.Assign)) and (given or named):
            texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
            found.append(" ".join(text for text in texts if isinstance(text, str)))
    return found


def strangers(text: str, verb: str) -> set[str]:
    """Options that a hint names and the verb does not have; what follows another command's name is that command's."""
    return set(OPTION.findall(OTHER_COMMAND.sub("", text))) - options_of(verb)


@pytest.mark.parametrize("files", ROOMS)
def test_every_option_that_a_hint_names_is_one_of_the_verb(files: str) -> None:
    found = sorted(SOURCES.glob(files))
    assert found
    wrong = {
        (str(file.relative_to(SOURCES)), verb, text): strangers(text, verb)
        for file in found
        for text in hints(file)
        for verb in ROOMS[files]
    }
    assert not {where: names for where, names in wrong.items() if names}


def test_an_option_of_another_verb_is_seen() -> None:
    assert strangers("give a local directory with --model", "merge") == {"--model"}
    assert strangers("loradock train --model DIR, or --dtype f32", "merge") == set()
