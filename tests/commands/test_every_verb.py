"""What every verb has: an example in its help that can be typed, and facts for scripts as one JSON document."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands.test_hints import SOURCES, hints
from tiny import BASE

from loradock.cli import cli
from loradock.commands.paths import LocalPath
from loradock.errors import InputMissing, UsageError

pytestmark = pytest.mark.thin(2)

WITHOUT_JSON = {
    "launch": "it starts another verb, whose output is its own",
    "chat": "a conversation",
    "config schema": "it prints JSON",
    "image sbom": "it prints JSON",
    "report": "it prints the path of its file and nothing else",
}
"""Verbs that print no facts a script could not use as they are."""
RUN_HERE = {
    "config validate": "--model {base} --data {rows}",
    "config show": "--model {base} --data {rows}",
    "config presets": "",
    "config import": "{axolotl}",
    "data show": "--model {base} --data {rows} --set data.cache={cache}",
    "data stats": "--data {rows} --set data.cache={cache}",
    "runs": "{empty}",
    "plan": "--model {base} --data {rows} --set data.cache={cache}",
    "render": "job --model {base} --data {rows}",
}
"""Verbs that say something in seconds, without a run: the document of each is looked at here."""
ABOUT = {"runs.py": {"--output"}, "identity.py": {"--allow-change"}}
"""Files whose hints name an option of another verb in a clause about it."""


def verbs(group: click.Group = cli, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every verb as it is typed, with its command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from verbs(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


VERBS = dict(verbs())


def options(verb: str) -> set[str]:
    return {option for each in VERBS[verb].params for option in (*each.opts, *each.secondary_opts)}


def test_what_a_verb_writes_is_named_by_o_too() -> None:
    """Where a run is configured (`--set`) its directory is --output, and -o is left to what the verb itself writes."""
    found = [verb for verb in VERBS if "--output" in options(verb) and not {"-o", "--set"} & options(verb)]
    assert found == []


HAVE_TO_EXIST = [
    pytest.param(verb, param, id=f"{verb} {param.opts[0]}")
    for verb, command in VERBS.items()
    for param in command.params
    if isinstance(param.type, LocalPath) and param.type.exists
]


@pytest.mark.parametrize(("verb", "param"), HAVE_TO_EXIST)
def test_a_path_that_does_not_exist_ends_with_66_and_the_nearest_name(
    tmp_path: Path, verb: str, param: click.Parameter
) -> None:
    (tmp_path / "demo-001").touch()
    option = [param.opts[0]] if isinstance(param, click.Option) else []
    error = CliRunner().invoke(cli, [*verb.split(), *option, str(tmp_path / "demo-01")]).exception
    assert isinstance(error, InputMissing)
    assert str(error) == f"error: {tmp_path}/demo-01 does not exist\nhint: did you mean {tmp_path}/demo-001?"
    assert error.exit_code == 66


ONE_KIND = [
    pytest.param(verb, param, id=f"{verb} {param.opts[0]}")
    for verb, command in VERBS.items()
    for param in command.params
    if isinstance(param.type, LocalPath) and not (param.type.file_okay and param.type.dir_okay)
]


@pytest.mark.parametrize(("verb", "param"), ONE_KIND)
def test_a_file_in_the_place_of_a_directory_and_the_reverse_are_told(
    tmp_path: Path, verb: str, param: click.Parameter
) -> None:
    assert isinstance(param.type, LocalPath)
    (tmp_path / "a file").touch()
    given = tmp_path if param.type.file_okay else tmp_path / "a file"
    option = [param.opts[0]] if isinstance(param, click.Option) else []
    before = [str(tmp_path)] * (not option and param.name != VERBS[verb].params[0].name)
    error = CliRunner().invoke(cli, [*verb.split(), *option, *before, str(given)]).exception
    assert isinstance(error, InputMissing if param.type.exists else UsageError)
    wanted = ("directory", "file") if param.type.file_okay else ("file", "directory")
    assert str(error).startswith(f"error: {given} is a {wanted[0]}, where a {wanted[1]} is wanted\nhint: name ")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_where_a_script_could_use_what_it_prints(verb: str) -> None:
    assert ("--json" in options(verb)) != (verb in WITHOUT_JSON)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_has_an_example_of_options_that_there_are(verb: str) -> None:
    shown = VERBS[verb].help or ""
    examples = [line.strip() for line in shown.splitlines() if line.strip().startswith("loradock ")]
    assert any(line.startswith(f"loradock {verb}") for line in examples)
    for line in examples:
        typed = " ".join(shlex.split(line.partition(" > ")[0].partition(" | ")[0])[1:])
        named = max((name for name in VERBS if f"{typed} ".startswith(f"{name} ")), key=len)
        given = {word.partition("=")[0] for word in shlex.split(typed) if word.startswith("-") and len(word) > 1}
        if named != "launch":  # what follows is another verb's
            assert given <= options(named), line


def named_in(text: str) -> Iterator[tuple[str, set[str]]]:
    """The verbs that a text names to be typed, each with the options behind it up to the next clause."""
    for typed in re.findall(r"loradock ([a-z][^;,`()]*)", text):
        words = typed.partition(" and ")[0]
        if known := [name for name in VERBS if f"{words} ".startswith(f"{name} ")]:
            yield max(known, key=len), set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", words))


def test_a_verb_that_a_hint_names_has_the_options_behind_it() -> None:
    """`loradock merge RUN -o DIR` was one, which takes its folder without an option."""
    assert [*named_in("loradock merge RUN -o DIR makes a base")] == [("merge", {"-o"})]
    wrong = {
        (file.name, text): given - options(verb)
        for file in SOURCES.rglob("*.py")
        for text in hints(file)
        for verb, given in named_in(text)
        if verb != "launch" and given - options(verb) - {"--help"} - ABOUT.get(file.name, set())
    }
    assert not wrong


@pytest.mark.parametrize("verb", RUN_HERE)
def test_the_json_of_a_verb_is_one_document_and_all_of_its_stdout(verb: str, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("rows.jsonl", "axolotl.yaml", "cache", "empty")}
    places["rows.jsonl"].write_text(json.dumps({"prompt": "one", "completion": " two"}) + "\n", "utf-8")
    places["axolotl.yaml"].write_text("base_model: x\nadapter: qlora\nload_in_4bit: true\n", "utf-8")
    places["empty"].mkdir()
    named = {name.partition(".")[0]: str(place) for name, place in places.items()} | {"base": str(BASE)}
    words = [*verb.split(), *RUN_HERE[verb].format(**named).split(), "--json"]
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout) is not None


def test_a_configuration_with_problems_is_a_document_too(tmp_path: Path) -> None:
    """The exit code and the message on stderr are those without --json."""
    file = tmp_path / "run.yaml"
    file.write_text("lora: {rnk: 8}\ntrain: {epochs: -1}\n", "utf-8")
    ended = CliRunner().invoke(cli, ["config", "validate", str(file), "--json"])
    found = json.loads(ended.stdout)
    assert ended.exit_code != 0
    assert found["valid"] is False
    assert {problem["line"] for problem in found["problems"]} >= {1, 2}


def test_rows_are_shown_in_pieces_with_what_is_learned_of_them(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "one", "completion": " two"}) + "\n", "utf-8")
    words = ["data", "show", "--model", str(BASE), "--data", str(rows), "--set", f"data.cache={tmp_path}", "--json"]
    (row,) = json.loads(CliRunner().invoke(cli, words).stdout)["rows"]
    assert "two" in "".join(piece["text"] for piece in row["pieces"] if piece["is_learned"])
    assert "one" in "".join(piece["text"] for piece in row["pieces"] if not piece["is_learned"])
    assert row["place"] == f"{rows}:1"
