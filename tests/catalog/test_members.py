"""A member of a kind is asked what it is: nobody else compares its name, or keeps a table of such names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from facts import recorded

from loradock.analysis.profile.ranges import METHODS
from loradock.catalog import engines, families, objectives, optimizers, storages
from loradock.plan import obstacles
from loradock.training.backends import backend_named
from loradock.training.backends.base import Backend

SOURCE = Path(engines.__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of member. `home`: the pattern of the files that may name its members, the catalog besides.

    `ambiguous`: names that are words of something else, too; they count where `subject` is in the other operand.
    """

    names: frozenset[str]
    home: str
    ambiguous: frozenset[str] = frozenset()
    subject: str = "(?!)"


KINDS = {
    "engine": Kind(
        names=frozenset({*engines.ENGINES, *engines.MODES}),
        home=r"training/backends/|analysis/profile/ranges\.py$",  # the engines' own work: tables of what each does
        ambiguous=frozenset({"none"}),
        subject=r"parallel|\bmode\b",
    ),
    "storage": Kind(
        names=frozenset(storages.STORAGES),
        home=r"(?!)",
        ambiguous=frozenset({"none"}),
        subject=r"quantization|storage",
    ),
    "objective": Kind(
        names=frozenset(objectives.OBJECTIVES),
        home=r"training/objectives/",
        ambiguous=frozenset({"embedding"}),  # also a section of the configuration, and a layer
        subject=r"objective",
    ),
    "optimizer": Kind(names=frozenset(optimizers.OPTIMIZERS), home=r"(?!)"),
    "family": Kind(names=frozenset(families.BY_DECODER), home="training/backends/fast/families/"),
}


def uses(tree: ast.AST, kind: Kind) -> Iterator[ast.AST]:
    """Nodes of a module that compare a member's name, or hold a table of several."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                if any(_named(operand, kind, operands) for operand in operands):
                    yield node
            case ast.MatchValue(value=ast.Constant(value=str(name))) if name in kind.names - kind.ambiguous:
                yield node
            case ast.Dict(keys=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                texts = {_text(part) for part in parts}
                if len(texts) > 1 and texts <= kind.names | {"auto"} and texts - kind.ambiguous:
                    yield node


def _named(operand: ast.AST, kind: Kind, operands: list[ast.expr]) -> bool:
    parts = operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]
    names = {text for part in parts if (text := _text(part)) in kind.names}
    if not names:
        return False
    others = " ".join(ast.unparse(each) for each in operands if each is not operand)
    return bool(names - kind.ambiguous or re.search(kind.subject, others))


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_members_name_is_compared_in_the_catalog_and_in_its_own_work_alone(kind: Kind) -> None:
    found: list[str] = []
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        if not re.match(f"catalog/|{kind.home}", place):
            found += [f"{place}: {ast.unparse(node)}" for node in uses(_parsed(file), kind)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'plan.engine.value == "fast"',
        'config.engine != "peft"',
        'engine in ("fsdp", "zero")',
        'plan.parallel.value == "none"',
        'NAMES = {"peft": 1, "fsdp": 2}',
        'match engine:\n    case "zero": pass',
        'asked.quantization == "nf4"',
        'storage in ("int8", "none")',
        'model.quantization != "none"',
        'BITS = {"nf4": 4, "int8": 8}',
        'model.decoder in ("Gemma2Model", "Gemma3TextModel")',
    ],
)
def test_a_comparison_or_a_table_of_names_is_found(line: str) -> None:
    assert any(list(uses(ast.parse(line), kind)) for kind in KINDS.values())


@pytest.mark.parametrize("line", ['risk == "none"', 'config.engine == "auto"', 'PACKAGES = ("torch", "peft")'])
def test_a_word_that_is_no_members_name_is_not_found(line: str) -> None:
    assert not any(list(uses(ast.parse(line), kind)) for kind in KINDS.values())


def test_the_configurations_words_are_the_members_names() -> None:
    assert list(get_args(storages.StorageName)) == list(storages.STORAGES)
    assert list(get_args(engines.EngineName)) == ["auto", *engines.ENGINES]
    assert {"none", *get_args(engines.ModeName)} == {"auto", *engines.MODES}


def test_each_engine_has_its_backend_and_the_names_of_its_methods() -> None:
    assert all(issubclass(backend_named(name), Backend) for name in engines.ENGINES)
    assert list(METHODS) == list(engines.ENGINES)


@pytest.mark.parametrize("engine", engines.ENGINES.values(), ids=engines.ENGINES)
def test_every_reason_why_an_engine_cannot_be_used_is_one_that_a_run_can_meet(engine: engines.Engine) -> None:
    config, model = recorded.config(), recorded.models()["mistral-7b"]
    limits = obstacles.met(config, model, compute_dtype="float32")
    for member in (engine, *engine.modes):
        for limit, why in member.cannot.items():
            assert not limits[limit]
            assert why.format(config=config, model=model)
    assert engine.fallback is None or engine.fallback in engines.ENGINES


def test_the_layout_of_nf4_is_that_of_qlora() -> None:
    assert storages.NF4.code_bits + storages.NF4.scale_bits(double_quant=True) == pytest.approx(4.127, abs=1e-4)
    assert storages.NF4.code_bits + storages.NF4.scale_bits(double_quant=False) == 4.5
    assert storages.of("int8").scale_bits(double_quant=True) == storages.WHOLE.scale_bits(double_quant=True) == 0
