"""Tokenizer, chat template and generation settings of a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from fuzz.kinds.base import Kind
from fuzz.kinds.model_parts import PLAN, TRAIN
from fuzz.kinds.model_parts import make as make_model
from fuzz.mutate import any_of, of_bytes, of_json, of_text

BOMBS = (
    "{{ 9**(9**9) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ i * j }}{% endfor %}{% endfor %}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{{ 1 / 0 }}",
    "{{ 1 % (messages | length - messages | length) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{{ 'x' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ 'x' | center(10**10) }}",
    "{{ '%10000000000s' % 'x' }}",
    "{{ 10.0 ** 400 }}",
    "{{ messages[10**30] }}",
    "{{ messages.x.y }}",
    "{{ none + 1 }}",
    "{{ messages[0]['content'] + 1 }}",
    "{% include 'x' %}",
    "{% extends messages %}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now(1) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ ().__class__.__mro__ }}",
    "{{ cycler()() }}",
    "{{ lipsum(n=10**6) }}",
    "{{ 'x' | indent(10**10, true) }}",
    "{% generation %}{{ 1 / 0 }}{% endgeneration %}",
)
ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"what is {n}"},
            {"role": "assistant", "content": f"it is the number {n}"},
        ]
    }
    for n in range(8)
]


def make(folder: Path) -> None:
    """A model directory, and conversations, which a chat template renders."""
    make_model(folder)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")


def bomb(content: bytes, draw: Random) -> bytes:
    """What costs or breaks, in the place of the template or within it."""
    text, found = content.decode(), draw.choice(BOMBS)
    return draw.choice(
        (found, found + text, text + found, text.replace("{%- endfor %}", found + "{%- endfor %}"))
    ).encode()


NORMALISERS = (
    {"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": "x"},
    {"type": "Replace", "pattern": {"Regex": "("}, "content": "x"},
    {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"},
    {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 1_000_000},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Precompiled", "precompiled_charsmap": "/////w=="},
    {"type": "Precompiled", "precompiled_charsmap": ""},
    {"type": "Prepend", "prepend": "x" * 100_000},
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "."}, "content": "xxxxxxxx"}] * 9},
    {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": ""}, {"type": "NFKD"}]},
    {"type": "Strip", "strip_left": True, "strip_right": True},
)


def in_normaliser(content: bytes, draw: Random) -> bytes:
    """Another normaliser, post-processor or padding, some of which panic, abort or explode."""
    document = json.loads(content)
    match draw.randrange(4):
        case 0 | 1:
            document["normalizer"] = draw.choice(NORMALISERS)
        case 2:
            size = draw.choice((0, 1 << 20, 1 << 31, 1 << 40))
            document["padding"] = {
                "strategy": {"Fixed": size}, "direction": "Right",
                "pad_to_multiple_of": draw.choice((None, 0, 1 << 40)),
                "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
            }  # fmt: skip
        case _:
            document["truncation"] = {
                "direction": "Right", "max_length": draw.choice((0, 1)), "strategy": "LongestFirst",
                "stride": draw.choice((0, 1, 1 << 40)),
            }  # fmt: skip
    return json.dumps(document).encode()


TOKENIZER = Kind(
    name="tokenizer.json",
    make=make,
    file="model/tokenizer.json",
    mutate=any_of(of_json, of_json, of_json, of_bytes, in_normaliser, in_normaliser),
    command=PLAN,
)
TOKENIZER_CONFIG = Kind(
    name="tokenizer_config.json",
    make=make,
    file="model/tokenizer_config.json",
    mutate=any_of(of_json, of_json, of_json, of_bytes),
    command=PLAN,
    share=0.5,
)
CHAT_TEMPLATE = Kind(
    name="chat template",
    make=make,
    file="model/chat_template.jinja",
    mutate=any_of(of_text, of_bytes, bomb, bomb),
    command=PLAN,
    share=0.5,
)
GENERATION = Kind(
    name="generation_config.json, trained",
    make=make,
    file="model/generation_config.json",
    mutate=any_of(of_json, of_json, of_bytes),
    command=TRAIN,
    share=0.2,
)
