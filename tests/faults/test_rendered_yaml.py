"""P16: YAML that is rendered says what was asked and nothing else, whatever characters stand in a name or a path."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from faults.conftest import Trial
from pydantic import ValidationError

from loradock.config.annotated_yaml import annotated_yaml
from loradock.config.load import Loaded, leaves
from loradock.config.schema import RunConfig
from loradock.config.strict_yaml import parse_document
from loradock.errors import LoradockError

pytestmark = pytest.mark.thin(2)

INJECTIONS = (
    "x\nprivileged: true", "x\r\nengine: peft", "x\u2028train: {seed: 9}", "x\x85seed: 9", 'x"\noutput: "/etc',
    "'", '"', "x # no comment", "#", "- item", "? key", ": ", "key: value", "&anchor x", "*alias",
    "!!python/object:os.system", "!tag x", "<<", "|", ">", "|-\n  x", "%YAML 1.1", "---", "...", "--- x",
    "{a: b}", "[a, b]", "}", "]", ",", "`", "@x", "null", "~", "true", "no", "on", "0x10", "0o7", "1e5",
    "1_000", ".inf", "-.inf", ".nan", "12:30:00", "2024-01-01", "=", " leading", "trailing ", "\ttab",
    "two  spaces", "", " ", "\n", "\n\n", "\\", "\\n", "\\x41", "${HOME}", "$(id)", "{{ x }}", "é", "日本", "🙂",
    "\u202eright to left", "\ufeffmark", "\u200b", "\x07", "\x1b[31m", "\x7f", "\x80", "\x9f", "a" * 150,
)  # fmt: skip
ALPHABET = (
    "ab01 _-./~:,#&*!|>'\"%@`{}[]?=<\\\n\r\t$()+;^\x01\x1b\x7f\x85\xa0é日🙂\u2028\u2029\u202e\ufeff\ufffe\U0010ffff"
)
"""Without NUL, which neither an argument nor a file's name can hold: the reader of files refuses its escape."""
LONGEST_NAME = 200
"""In characters, by the schema."""
FIELDS = (
    "name",
    "output",
    "model.name",
    "data.cache",
    "data.template",
    "logging.project",
    "path",
    "revision",
    "mapped",
)


def fuzzed(draw: random.Random) -> str:
    """A known injection, noise, or both put together; never half of a surrogate pair, which no file can hold."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice(INJECTIONS)
    noise = "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(1, 24)))
    if kind == 1:
        return noise
    if kind == 2:
        return noise + draw.choice(INJECTIONS)
    return "".join(chr(draw.choice((draw.randrange(0x20, 0x300), draw.randrange(0xE000, 0x11000)))) for _ in range(12))


def config(texts: dict[str, str]) -> RunConfig:
    """A configuration with these texts in every place that takes any text."""
    return RunConfig.model_validate(
        {
            "name": texts["name"][:LONGEST_NAME],
            "output": texts["output"] or None,
            "model": {"name": texts["model.name"], "revision": texts["revision"]},
            "data": {
                "sources": [
                    {"path": texts["path"] or "x"},
                    {"path": "x", "fields": {texts["mapped"] or "x": texts["name"]}},
                ],
                "cache": texts["data.cache"],
                "template": texts["data.template"],
                "validation": texts["output"] or "x",
            },
            "lora": {"targets": [texts["path"], texts["name"]]},
            "logging": {"project": texts["logging.project"]},
        }
    )


def is_taken(texts: dict[str, str]) -> bool:
    """Whether a configuration takes them all: `~name` has to be a home directory that there is."""
    try:
        config(texts)
    except ValidationError:
        return False
    return True


def rendered(asked: RunConfig, *, origin: str) -> str:
    return annotated_yaml(Loaded(config=asked, origins=dict.fromkeys(leaves(asked), origin), warnings=()))


def read_back(text: str) -> Any:
    """The value by our own reader; PyYAML's has to see the same keys and texts, for other tools read it too."""
    document = parse_document(text, file="rendered")
    assert not document.problems, document.problems
    plain = yaml.safe_load(text)
    assert is_same(document.values, plain)
    return document.values


def is_same(ours: Any, plain: Any) -> bool:
    """Every key and every text of ours is one there; numbers may differ, which YAML 1.1 writes in other ways."""
    if isinstance(ours, dict):
        return isinstance(plain, dict) and ours.keys() == plain.keys() and all(is_same(ours[k], plain[k]) for k in ours)
    if isinstance(ours, list):
        return isinstance(plain, list) and len(ours) == len(plain) and all(map(is_same, ours, plain))
    return ours == plain if isinstance(ours, str) else not isinstance(plain, dict | list)


def difference(texts: dict[str, str], *, origin: str) -> str | None:
    """What went wrong with these texts, or None."""
    asked = config(texts)
    text = rendered(asked, origin=origin)
    try:
        found = RunConfig.model_validate(read_back(text))
    except (AssertionError, LoradockError, ValueError, yaml.YAMLError) as error:
        return f"{type(error).__name__}: {error}"
    return None if found == asked else "read back as another configuration"


def run(count: int, *, seed: int, trial: Trial) -> None:
    draw = random.Random(seed)
    bad: list[Any] = []
    for _ in range(-(-count // len(FIELDS))):
        texts = {field: fuzzed(draw) for field in FIELDS}
        while not is_taken(texts):
            texts = {field: fuzzed(draw) for field in FIELDS}
        wrong = difference(texts, origin="default")
        if wrong:
            bad.append([wrong, texts])
    trial("P16", bad == [], count=count, injected=bad[:3])


@pytest.mark.parametrize("text", INJECTIONS)
def test_a_known_injection_stays_a_text_wherever_it_stands(text: str) -> None:
    assert difference(dict.fromkeys(FIELDS, text), origin="default") is None


def test_500_fuzzed_texts_are_read_back_as_they_were_and_inject_nothing(trial: Trial) -> None:
    run(500, seed=1, trial=trial)


@pytest.mark.full
def test_10_000_fuzzed_texts_are_read_back_as_they_were_and_inject_nothing(trial: Trial) -> None:
    run(10_000, seed=2, trial=trial)


@pytest.mark.parametrize("origin", ["a\nb.yaml:3", "x\rengine: peft", "a\u2028b", "\x85seed: 1", "\x1b[31m", "*x: y #"])
def test_the_name_of_a_file_in_a_comment_cannot_end_it(origin: str) -> None:
    assert difference(dict.fromkeys(FIELDS, "x"), origin=origin) is None


def test_an_injection_that_is_let_through_is_found() -> None:
    """The control: a renderer that pastes text would be caught by the same comparison."""
    pasted = "name: x\nengine: peft\n"
    assert RunConfig.model_validate(read_back(pasted)) != RunConfig.model_validate({"name": "x\nengine: peft"})
