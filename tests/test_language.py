"""Texts that users read keep to the field's words: a private word is refused with the better one beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What is refused, as a regular expression, and what to write instead. docs/glossary.md has the words.
PRIVATE = {
    r"cards?": "GPU",
    r"(?:GPU|device) (?:is|was) full": "CUDA out of memory",
    r"so many": "number of ..., this many",
    r"computed (?:again|a second time)": "recomputed",
    r"(?<!there\s)is no (?!longer|more|less|faster|farther|better)": "is not a ...; for a key: unknown key: ...",
    r"bit for bit the same": "identical results",
    r"sum(?:s|med|ming)? up|sum(?:s|med|ming) the gradients": "all-reduce",
    r"signs? of life": "progress, heartbeat",
    r"go(?:es)? on": "continue",
    r"told": "reported, printed",
    r"spares|spared|(?:to|would|can|could|must|may|they) spare": "save",
    r"(?:has|have|no|leaves?|makes?|need|without|some|little) room|rooms? for": "memory, space",
    r"mend(?:s|ed|ing)?": "fix",
    r"anew": "again, new",
    r"sisters?": "the other GPUs",
    r"hinders?": "stop, prevent",
    r"held against|holds? (?:it|them) against": "compare with",
    r"brakes?": "bottleneck, slow down",
    r"whole (?:base )?weights": "unquantised weights, 16-bit weights",
    r"in silence": "silently",
    r"clears? away": "reap",
    r"meeting place|where they meet": "rendezvous address",
    r"to be had": "available",
    r"makes? a step": "run a step",
    r"one another's (?:host|machine)": "node",
    r"goes as in float64": "matches the float64 reference",
    r"the run as it is": "baseline",
    r"worth a word": "a note",
    r"For programs": "as JSON",
    r"(?:is|are|was|were) at fault": "is wrong, is the cause",
}

# Common words in which one of them stands.
COMMON = (r"model\s+cards?", r"told apart", r"power brake", r"takes the most room on the page")

PATTERN = re.compile(
    "|".join(rf"(?P<w{number}>\b(?:{words})\b)" for number, words in enumerate(PRIVATE)).replace(" ", r"\s+"),
    re.IGNORECASE,
)
ALLOWED = re.compile("|".join(COMMON), re.IGNORECASE)


def refused(text: str) -> Iterator[tuple[int, str, str]]:
    """(line from 0, what is there, what to write instead) for each private word."""
    left = ALLOWED.sub(lambda found: re.sub(r"\S", ".", found[0]), text)
    for found in PATTERN.finditer(left):
        better = list(PRIVATE.values())[int(str(found.lastgroup)[1:])]
        yield text.count("\n", 0, found.start()), " ".join(found[0].split()), better


def is_help(function: ast.FunctionDef) -> bool:
    """True for a click command: its docstring is its help."""
    return any(re.search(r"\b(?:command|group)\(", ast.unparse(each)) for each in function.decorator_list)


def seen_by_users(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that a program may print: all but docstrings, with the helps of commands."""
    hidden: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            hidden.update(map(id, node.values))
            parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Expr) and id(node) not in hidden:
            hidden.add(id(node.value))
        elif isinstance(node, ast.FunctionDef) and is_help(node):
            hidden.add(id(node.body[0]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value


def of_package() -> Iterator[str]:
    """FILE:LINE of each private word in a string of the package, with the better one."""
    for file in sorted((ROOT / "src" / "loradock").rglob("*.py")):
        for line, text in seen_by_users(file.read_text(encoding="utf-8")):
            for below, word, better in refused(text):
                yield f"{file.relative_to(ROOT)}:{line + below}: {word!r}: write {better}"


def of_docs() -> Iterator[str]:
    """The same for README.md and docs/; docs/glossary.md may name what a word replaces."""
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for line, word, better in refused(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(ROOT)}:{line + 1}: {word!r}: write {better}"


def test_no_string_that_users_see_has_a_private_word() -> None:
    found = list(of_package())
    assert not found, "\n".join(["", *found])


def test_no_page_has_a_private_word() -> None:
    found = list(of_docs())
    assert not found, "\n".join(["", *found])


def test_a_private_word_is_named_with_its_line_and_the_better_one() -> None:
    source = '''"""The card."""
KEY = "model card"
"""A card."""
def fail(number):
    """A card."""
    raise ValueError(f"{number} of so"
        f" many {number}")
@click.command()
def run():
    """Ask

    the card."""
'''
    found = [(line + below, word) for line, text in seen_by_users(source) for below, word, _ in refused(text)]
    assert sorted(found) == [(6, "so many"), (12, "card")]


VAGUE = frozenset(
    (
        "after again all asked before begun beside besides both chosen done each every found given gone held here kept "
        "left made named now one other others own ready rest said seen shown taken then there those told used wanted "
        "whole words"
    ).split()
)
"""Pronouns and participles that say nothing of a value; a name says what it is: `tokenizer`, `findings`, `row`."""
MOST_VAGUE_SHARE = 0.027
"""Of all names that the sources bind; it may only fall. The aim was 0.03."""


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Names of variables, attributes, arguments, functions and classes where they get their value."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def test_names_that_say_nothing_of_their_value_do_not_become_more() -> None:
    files = (ROOT / "src" / "loradock").rglob("*.py")
    names = [name for file in files for name in bound_names(ast.parse(file.read_text(encoding="utf-8")))]
    share = sum(name in VAGUE for name in names) / len(names)
    assert share <= MOST_VAGUE_SHARE, f"{share:.4f}: say what the value is"
    assert share > MOST_VAGUE_SHARE - 0.005, f"{share:.4f}: fewer than the limit says, which falls with them"
