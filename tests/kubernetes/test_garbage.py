"""Whatever is in the file, the checker says what is wrong and where, and never fails itself."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest
from kubernetes.goods import CRONJOB, GOOD, JOBSET, TRAINJOB

from loradock.delivery.kubernetes.check import LONGEST, judge, problems
from loradock.delivery.kubernetes.check.reading import objects, read
from loradock.errors import Problem

pytestmark = pytest.mark.thin(3)

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
)
GARBAGE = {
    "nothing": ("", None, "it holds no object"),
    "blank": ("\n\n# only a comment\n---\n...\n", None, "it holds no object"),
    "a byte order mark alone": ("\ufeff", None, "it holds no object"),
    "a word": ("hello", 1, "a single value"),
    "a list": ("- kind: Job\n", 1, "the top level is a list"),
    "null": ("~\n", 1, "a single value"),
    "a bracket that is not closed": ("kind: [Job\n", None, "not valid YAML"),
    "a tab": ("kind: Job\nspec:\n\tsuspend: true\n", 3, "a tab"),
    "a control character": ("kind: J\x07ob\n", 1, "a control character"),
    "a NUL byte": ("kind: J\0ob\n", 1, "a control character"),
    "half of a surrogate pair": ("kind: J\ud800ob\n", 1, "a control character"),
    "a key given twice": ("apiVersion: v1\nkind: Pod\nkind: Job\n", 3, "kind is given twice"),
    "a merge key": ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n<<: {data: {}}\n", 4, "merge keys"),
    "a tag": ("kind: !!python/object/apply:os.system [ls]\n", 1, "tags"),
    "an alias without an anchor": ("kind: *missing\n", 1, "undefined alias"),
    "an alias of itself": ("a: &a [*a]\n", 1, "without end"),
    "an alias bomb": (BOMB, None, "aliases expand"),
    "deep nesting": ("a: " + "[" * 5000, 1, "nested deeper"),
    "deep flow mappings": ("a: " + "{a: " * 500, 1, "nested deeper"),
    "more than a megabyte": ("a: x\n" * 250_000, None, "larger than 1 MB"),
    "a megabyte of list": ("a:\n" + "- x\n" * 200_000, None, "more than 10000 values"),
    "a document without an object": ("spec: {}\n", 1, "apiVersion is missing"),
    "a List of no list": ("apiVersion: v1\nkind: List\nitems: {}\n", 3, "is not a list of objects"),
    "a List of words": ("apiVersion: v1\nkind: List\nitems: [a, b]\n", 3, "apiVersion is missing"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_a_clear_problem(name: str) -> None:
    text, line, says = GARBAGE[name]
    found = problems({"job.yaml": text})
    assert all(problem.file == "job.yaml" for problem in found)
    told = [problem.line for problem in found if says in str(problem)]
    assert told, "\n".join(map(str, found))
    assert line in (None, told[0])


def test_a_document_that_cannot_be_read_does_not_hide_the_others() -> None:
    text = "kind: [Job\n---\n" + GOOD.replace("restartPolicy: Never", "restartPolicy: Always")
    found = problems({"job.yaml": text})
    assert ["not valid YAML" in found[0].what, found[0].line] == [True, 2]
    assert [problem.what.partition(":")[0] for problem in found[1:]] == ["schema"]


def test_numbers_and_words_are_read_as_kubernetes_reads_them() -> None:
    text = "a: 0644\nb: yes\nc: 'yes'\nd: 1_000\ne: 0o17\nf: 2024-01-01\ng: 1e3\nh: off\ni: 0.5\nj: 08\n"
    values: Any = read(text, file="x")[0][0].root.value
    assert list(values.values()) == [420, True, "yes", 1000, 15, "2024-01-01", 1000.0, False, 0.5, "08"]


ODD: tuple[object, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        10**18,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\n",
        "$(X)",
        "$(",
        "a: b",
        "0",
        "1e300",
    ),
    *(
        [],
        {},
        [None],
        [[]],
        [{}],
        {"": None},
        {"name": None},
        {"name": []},
        [{"name": {}}],
        "\u0000",
        "\x1b[2J",
        "é" * 3000,
        "@sha256:",
    ),
)
OTHERS = [next(iter(read(text, file="x")[0])) for text in (JOBSET, CRONJOB)]
SEEDS: list[Any] = [made.root.value for made in (*read(GOOD + "---\n" + TRAINJOB, file="x")[0], *OTHERS)]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) in a tree of values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, below in items for place in [(value, key), *places(below)]]


def mutate(value: Any, chance: random.Random) -> None:
    """One change of the tree: a field gone, doubled, renamed, moved here from elsewhere, or made into something odd."""
    container, key = chance.choice(places(value))
    kind = chance.randrange(5)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, list):
        container.append(deepcopy(container[key]))
    elif kind == 2 and isinstance(container, dict):
        container[chance.choice(["", "x", "name", "spec", str(key).upper()])] = container.pop(key)
    elif kind == 3:
        other, place = chance.choice(places(value))
        container[key] = deepcopy(other[place])
    else:
        container[key] = deepcopy(chance.choice(ODD))


def fuzz(seed: int) -> list[Problem]:
    """What is told of the seeds' objects, side by side, after some changes."""
    chance = random.Random(seed)
    values = deepcopy(SEEDS)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        changed = chance.choice([value for value in values if places(value)])
        mutate(changed, chance)
    manifests = [made for value in values for made in objects(value, file="x", lines={})]
    for manifest in manifests:
        manifest.beside.extend(manifests)
    return [problem for manifest in manifests for problem in judge(manifest)]


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 2_200), marks=pytest.mark.full)], ids=str)
def test_no_structure_makes_the_checker_fail(seeds: range) -> None:
    told = 0
    for seed in seeds:
        for problem in fuzz(seed):
            told += 1
            assert problem.line
            assert problem.hint
            assert (problem.what + problem.hint).isprintable()
            assert len(problem.what) <= LONGEST + 3
    assert told > len(seeds) / 2


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 600), marks=pytest.mark.full)], ids=str)
def test_no_text_makes_the_checker_fail(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        text = GOOD
        for _ in range(chance.choice((1, 3, 10))):
            start = chance.randrange(len(text))
            end = start + chance.choice((0, 1, 5, 80))
            text = (
                text[:start]
                + chance.choice(("", "\t", "- ", ": ", "\n---\n", "&a ", "*a ", "'", "{", "[", "\0", "é", "  "))
                + text[end:]
            )
        assert all(problem.file == "x" for problem in problems({"x": text}))
