"""`~` and variables mean the same in each path key and each path option; what cannot be expanded is refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from loradock.cli import COMMANDS, cli
from loradock.commands.paths import LocalPath, PathsAfter
from loradock.config.fields import annotation_at, item_of, keys, named_item_of, path_in
from loradock.config.places import expanded
from loradock.errors import LoradockError, UsageError

HOME, SCRATCH = "/srv/us", "/scratch/us"
ENVIRONMENT = {"HOME": HOME, "SCRATCH": SCRATCH, "EMPTY": "", "HF_TOKEN": "hf_abcdefgh"}
INPUTS = ("--model", "./model", "--data", "rows.json")
FORMS = {"$SCRATCH/x": f"{SCRATCH}/x", "${SCRATCH}/x": f"{SCRATCH}/x", "~/x": f"{HOME}/x", "./a~/b$.c$1": "./a~/b$.c$1"}
REFUSED = {
    "$NO_SUCH/x": "the variable NO_SUCH is not set",
    "$EMPTY/x": "the variable EMPTY is empty",
    "${SCRATCH:-/tmp}/x": "${SCRATCH:-/tmp} is not expanded",
    "$(SCRATCH)/x": "$(SCRATCH) is not expanded",
    "~no-such-user/x": "no home directory ~no-such-user",
    "runs/$HF_TOKEN": "HF_TOKEN is a secret",
}
ELSEWHERE = {"--host-path", "--data-path", "--fetch-arg"}
"""Options whose paths are those of a node or a container."""

OTHERS = {"data.sources", "data.text", "evaluation.tasks", "after.merge", "limits.setup_seconds"}
"""Keys whose description has a word of paths, and whose value is none."""


def path_keys() -> Iterator[tuple[str, str]]:
    """(KEY, what stands before the path in its value) of each key that holds a path."""
    for key in keys():
        path = tuple(0 if part == "N" else part for part in key.name.split("."))
        annotation = annotation_at(path)
        for name, each in ((key.name, annotation), (f"{key.name}.0", item_of(annotation))):
            if (bound := path_in(each)) is not None:
                yield name.replace("N", "0"), f"boolq{bound.after}" if bound.after else ""
        if path_in(named_item_of(annotation)) is not None:
            yield f"{key.name}.a", ""


PATH_KEYS = dict(path_keys())


def shown(*arguments: str) -> Result:
    """What `loradock config show --json` says."""
    return CliRunner(env=ENVIRONMENT).invoke(cli, ["config", "show", "--json", *arguments])


def test_every_key_of_a_file_or_directory_is_swept() -> None:
    assert set(PATH_KEYS) == {
        "output", "model.name", "model.trust_remote_code", "data.sources.0.path", "data.template", "data.validation",
        "data.validation.a", "data.cache", "train.deepspeed", "embedding.template", "evaluation.tasks.0",
        "lora.adapter",
    }  # fmt: skip
    told = {key.name for key in keys() if re.search(r"\b(file|path|director|folder|=FILE)", key.description.lower())}
    assert told - {key.replace(".0", ".N") for key in PATH_KEYS} <= OTHERS


@pytest.mark.parametrize("key", PATH_KEYS)
def test_each_path_key_expands_what_a_shell_would(key: str) -> None:
    for written, meant in FORMS.items():
        values = [f"--set={key}={PATH_KEYS[key]}{written}"]
        if key == "model.trust_remote_code":
            values.append(f"--set=model.name={written}")
        if key == "train.deepspeed":
            values.append("--set=train.parallel=zero2")
        done = shown(*INPUTS, *values)
        assert done.exit_code == 0, done.exception
        here = json.loads(done.stdout)["config"]
        for part in key.split("."):
            here = here[int(part) if part.isdecimal() else part]
        assert here == PATH_KEYS[key] + meant


@pytest.mark.parametrize("key", PATH_KEYS)
def test_each_path_key_refuses_what_cannot_be_expanded(key: str) -> None:
    for written, why in REFUSED.items():
        done = shown(*INPUTS, f"--set={key}={PATH_KEYS[key]}{written}")
        assert getattr(done.exception, "exit_code", 0) == 78
        assert f"{key}: {written}: " in str(done.exception)
        assert why in str(done.exception)


def test_a_file_tells_each_path_that_cannot_be_expanded_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "output: $NO_A/x\nmodel: {name: ~/base}\n"
        "data:\n  sources:\n    - $NO_B/rows.jsonl\n    - {path: $NO_C/y.jsonl}\n"
    )
    lines = str(shown(str(file)).exception).splitlines()
    assert [line.partition(" ")[0] for line in (each.strip() for each in lines[1:])] == [
        f"{file}:1:", f"{file}:5:", f"{file}:6:",
    ]  # fmt: skip


def parameters() -> Iterator[tuple[str, click.Parameter]]:
    """(command, parameter) of every command and what is below it."""

    def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
        yield from ((name, each) for each in command.params)
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                yield from below(f"{name} {inner.name}", inner)

    for verb in COMMANDS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        yield from below(verb, command)


def test_every_option_and_argument_that_is_a_path_has_the_type_that_expands() -> None:
    checked = 0
    for command, each in parameters():
        says = f"{each.metavar or ''} {getattr(each, 'help', None) or ''}"
        is_path = re.search(r"\b(DIR|FILE|PATH|FOLDER|NPY|JSONL|RUN)\b", each.metavar or "") is not None
        if (is_path or isinstance(each.type, click.Path)) and not ELSEWHERE & set(each.opts):
            assert isinstance(each.type, LocalPath | PathsAfter), f"{command} {each.opts}: {says}"
            checked += 1
    assert checked > 60


KINDS = {
    "report": ("--output", "page.html"),
    "embed": ("--output", "vectors.npy"),
    "data stats": ("--png", "lengths.png"),
    "data show": ("--html", "rows.html"),
    "render": ("-o", "pod.yml"),
    "image sbom": ("--output", "sbom.json"),
    "build": ("--sbom", "sbom.json"),
}


@pytest.mark.parametrize("verb", KINDS)
def test_what_is_written_again_replaces_no_file_of_another_kind(verb: str, tmp_path: Path) -> None:
    option, name = KINDS[verb]
    (kind,) = [each.type for words, each in parameters() if words == verb and option in each.opts]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    with pytest.raises(UsageError, match=r"rows.jsonl exists, and by its name it is no \.\w+") as refused:
        kind.convert(str(rows), None, None)
    assert refused.value.hint
    assert kind.convert(refused.value.hint.removeprefix("name another file, such as "), None, None).parent == tmp_path
    (tmp_path / name).touch()
    assert kind.convert(str(tmp_path / name), None, None) == tmp_path / name
    assert kind.convert("/dev/stdout", None, None) == Path("/dev/stdout")
    for new in ("vectors", "new.rows"):
        with pytest.raises(UsageError, match=rf"{new}: a file that is written here has a name in \.\w+") as refused:
            kind.convert(str(tmp_path / new), None, None)
        assert kind.convert((refused.value.hint or "").removeprefix("name another file, such as "), None, None)
    os.mkfifo(tmp_path / "pipe")
    assert kind.convert(str(tmp_path / "pipe"), None, None) == tmp_path / "pipe"
    with pytest.raises(UsageError, match=r"nothing/ names a directory, where a file is wanted"):
        kind.convert(f"{tmp_path}/nothing/", None, None)


@pytest.mark.parametrize("written", FORMS)
def test_an_option_is_expanded_by_the_same_rule(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert LocalPath().convert(written, None, None) == Path(FORMS[written])
    assert PathsAfter("=").convert(f"boolq={written},piqa", None, None) == f"boolq={FORMS[written]},piqa"
    for refused, why in REFUSED.items():
        with pytest.raises(UsageError) as error:
            expanded(refused)
        assert why in error.value.what


def test_no_command_makes_a_folder_that_is_called_like_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        ["train", "--demo", "--output", "$SCRATCH/x"],
        ["profile", "--model", "m", "--data", "rows.jsonl", "--output", "$SCRATCH/x"],
        ["diagnose", "--model", "m", "--data", "rows.jsonl", "--output", "$SCRATCH/x"],
        ["bundle", "load", "b.tar", "--output", "$SCRATCH/x"],
        ["merge", ".", "$SCRATCH/x"],
    ):
        done = CliRunner(env={"SCRATCH": None}).invoke(cli, command)
        assert "the variable SCRATCH is not set" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_no_command_writes_a_file_that_is_called_like_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    for command, code in (
        (["generate", ".", "--input", "rows.jsonl", "-o", "-"], 64),
        (["embed", ".", "--input", "-", "-o", "v.npy"], 64),
        (["export", "gguf", ".", "-o", "-"], 64),
        (["merge", ".", "-"], 64),
        (["checkpoint", "export", ".", "-o", "-"], 64),
        (["train", "--demo", "--output", "-"], 78),
    ):
        done = CliRunner().invoke(cli, command)
        assert isinstance(done.exception, LoradockError)
        assert done.exception.exit_code == code
        assert "standard" in str(done.exception)
        assert "./-" in str(done.exception)
    assert sorted(tmp_path.iterdir()) == before
