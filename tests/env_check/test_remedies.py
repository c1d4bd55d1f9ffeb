"""A remedy is a whole command that a shell takes: those of docs/faults.md, and those that are written in the checks."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from env_check.conftest import ROOT, rows

from loradock.env_check.remedies import from_hint

CHECKS = ROOT / "src" / "loradock" / "env_check"
PROGRAMS = set(
    "apt-get chmod cp curl dmesg docker export fallocate grep hf ip kill kubectl ldconfig ldd loradock ls"
    " lspci mkdir mkswap modprobe mount mv nvidia-smi pip prlimit ps python reboot rm sed srun ssh swapoff"
    " swapon systemctl timedatectl torchrun touch true ulimit unset uv".split()
)
BEFORE = {"sudo", "env"}
PLACEHOLDERS = {"DIR": 24, "OWNER/NAME": 6, "HOST": 2, "TOKEN": 2, "CONTAINER": 1}
"""What a reader has to put in, and in how many rows: only where no check can know it."""
WHOLE_WORD = re.compile(r"(?:^|(?<=[\s=/]))[A-Z]+(?:/[A-Z]+)*(?=$|[\s/;])")


def commands(remedy: str) -> list[list[str]]:
    """The words of each command of a line, as a shell splits it; ValueError where it would not."""
    lexer = shlex.shlex(remedy, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    parted = groupby(words, key=lambda word: bool(word) and not set(word) - set(";|&"))
    return [list(each) for is_between, each in parted if not is_between]


def faults(remedy: str) -> Iterator[str]:
    """What keeps a reader from typing this line."""
    try:
        parts = commands(remedy)
    except ValueError as refusal:
        yield str(refusal)
        return
    for number, words in enumerate(parts, 1):
        first = [word for word in words if not re.match(r"\w+=", word)] or words
        named = first[1:] if first[0] in BEFORE else first
        if not named or named[0] not in PROGRAMS:
            yield f"{(named or first)[0]!r} is not a program"
        if "..." in words[:-1] or (words[-1] == "..." and number < len(parts)):
            yield "an ellipsis before the end"
        if prose := [word for word in words if re.search(r"[\w.)][,:]$", word) or word == "#"]:
            yield f"prose: {prose}"


def placeholders(remedy: str) -> list[str]:
    """Words in capitals that stand for something else; `unset CC` and `HOME=/root` have none."""
    return [] if remedy.startswith("unset ") else WHOLE_WORD.findall(remedy)


def written(path: Path) -> Iterator[str]:
    """Remedies that a module writes as text; `true`, a program, stands for what it puts into them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        is_assigned = any(isinstance(target, ast.Name) and target.id == "remedy" for target in targets)
        if isinstance(node, ast.keyword | ast.Assign) and (is_assigned or getattr(node, "arg", "") == "remedy"):
            yield from _texts(node.value)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "true" for part in node.values)


def test_every_remedy_of_the_page_of_faults_can_be_typed() -> None:
    wrong = {row[5]: found for row in rows().values() if (found := list(faults(row[5])))}
    assert wrong == {}


def test_every_remedy_that_a_check_writes_can_be_typed() -> None:
    checks = [
        path for path in sorted(CHECKS.rglob("*.py")) if path.parent.name != "cluster"
    ]  # between nodes: no one command
    texts = [(path.stem, text) for path in checks for text in written(path)]
    assert len(texts) > 50
    assert {text: [stem, *found] for stem, text in texts if (found := list(faults(text)))} == {}


def test_a_reader_has_little_to_fill_in() -> None:
    counted = Counter(word for row in rows().values() for word in placeholders(row[5]))
    assert {word: count for word, count in counted.items() if count > PLACEHOLDERS.get(word, 0)} == {}


@pytest.mark.parametrize(
    ("remedy", "why"),
    [
        ("--set model.name=DIR", "is not a program"),
        ("docker run --gpus all ..., or to mean it: loradock train", "prose"),
        ("sudo lspci -vv | grep Lnk, then reseat the GPU", "prose"),
        ("hf auth whoami; then ask on the model's page", "No closing quotation"),
        ("hf auth login; then ask", "'then' is not a program"),
        ("export HF_HOME=DIR  # on a disk with room", "prose"),
        ("docker run ... --gpus all", "ellipsis"),
        ("sudo", "is not a program"),
    ],
)
def test_what_cannot_be_typed_is_seen(remedy: str, why: str) -> None:
    assert why in " ".join(faults(remedy))


def test_what_can_be_typed_is_let_through() -> None:
    for remedy in (
        'sudo nvidia-smi -q -d CLOCK,POWER && docker run -v "$PWD/a b":/runs loradock ...',
        "HF_HUB_OFFLINE=0 python -c 'import datasets; print(1, 2)'",
        "export TMPDIR=$(mktemp -d)",
        "unset CC",
    ):
        assert not list(faults(remedy))
        assert placeholders(remedy) == []
    assert placeholders("export A=DIR B=/OTHER/DISK; hf download OWNER/NAME") == ["DIR", "OTHER/DISK", "OWNER/NAME"]


@pytest.mark.parametrize(
    ("hint", "settings"),
    [
        ("--set a.b=1", "--set a.b=1"),
        ("--set a.b=none --set lora.targets=[in_proj,q]", "--set a.b=none --set 'lora.targets=[in_proj,q]'"),
        ("--set a.b=1, or --set c=2", "--set a.b=1"),
    ],
)
def test_the_settings_side_by_side_of_a_hint_are_its_command(hint: str, settings: str) -> None:
    assert from_hint(hint) == f"loradock train {settings} ..."
    assert from_hint("do something else") is from_hint(None) is None
