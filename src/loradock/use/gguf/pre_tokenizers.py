"""How a tokenizer cuts text before it merges, by the name that llama.cpp has for it.

llama.cpp has these rules in its own code and picks them by `tokenizer.ggml.pre`: a wrong name gives other ids silently.
So a tokenizer is taken where its rules are those of a known name, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loradock.errors import ModelError

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}|\p{{N}}{{1,3}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
        " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
)
"""One split after the other; the last has a real line feed in its pattern."""
BYTES = ("ByteLevel", False)
"""ByteLevel without a space before the text, and without a pattern of its own."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A name of llama.cpp. `steps`: what cuts; `ignores_merges`: a whole word of the vocabulary is one token, or by the
    merges, where llama.cpp's ids are the same for either. `normalizers`: those of which llama.cpp has none.
    """

    name: str
    steps: tuple[tuple[Any, ...], ...]
    ignores_merges: tuple[bool, ...] = (False,)
    normalizers: tuple[tuple[str, ...], ...] = ((),)


# From llama.cpp's src/llama-vocab.cpp (names, patterns) and its convert_hf_to_gguf.py (which models have them).
KNOWN = (
    Known(name="gpt-2", steps=(("ByteLevel", True),)),
    Known(name="smollm", steps=(("Digits", True), ("ByteLevel", True))),
    Known(name="llama-bpe", steps=(("Split", LLAMA3), BYTES), ignores_merges=(True,)),
    Known(name="qwen2", steps=(("Split", QWEN2), BYTES), normalizers=((), ("NFC",))),
    Known(name="qwen35", steps=(("Split", QWEN35), BYTES), normalizers=((), ("NFC",))),
    Known(name="dbrx", steps=(("Split", LLAMA3), BYTES)),
    Known(name="olmo", steps=(("ByteLevel", True),), normalizers=(("NFC",),)),
    Known(name="gpt-4o", steps=(("Split", GPT4O), BYTES), ignores_merges=(False, True)),
    Known(name="deepseek-v3", steps=(*(("Split", pattern) for pattern in DEEPSEEK3), BYTES)),
    Known(name="tekken", steps=(("Split", TEKKEN), BYTES), ignores_merges=(True,)),
)

CUT_MARKS = ("gpt-4o",)
"""Of these llama.cpp's own pattern takes a combining mark for no part of a word, as tokenizer.json's does."""


def name_of(tokenizer: Mapping[str, Any]) -> str:
    """llama.cpp's name for the rules of a byte-level tokenizer.json. ModelError where it has none."""
    steps = tuple(_step(step) for step in _flat(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    ignores = bool(tokenizer["model"].get("ignore_merges"))
    normalizers = tuple(step["type"] for step in _flat(tokenizer.get("normalizer"), "normalizers"))
    for known in KNOWN:
        if known.steps == steps and ignores in known.ignores_merges and normalizers in known.normalizers:
            return known.name
    rules = ", ".join(str(step[0]) for step in steps) or "none"
    names = ", ".join(known.name for known in KNOWN)
    raise ModelError(
        f"the tokenizer cuts text by rules ({rules}) that are none of those known here by llama.cpp's names ({names})",
        hint="llama.cpp's own convert_hf_to_gguf.py knows more of them; a wrong name would give other ids",
    )


def _flat(part: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The steps of a part of tokenizer.json, those of a Sequence one by one."""
    if part is None:
        return []
    return [step for child in part[key] for step in _flat(child, key)] if part["type"] == "Sequence" else [part]


def _step(part: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a step decides the ids; one that is not known is itself, equal to nothing."""
    kind = part["type"]
    if kind == "ByteLevel" and not part.get("add_prefix_space"):
        return kind, bool(part.get("use_regex", True))
    if kind == "Digits":
        return kind, bool(part["individual_digits"])
    if kind == "Split" and part["behavior"] == "Isolated" and not part.get("invert"):
        return kind, part["pattern"].get("Regex")
    return kind, "another", str(part)


def adds_space(tokenizer: Mapping[str, Any]) -> bool:
    """For a tokenizer with byte fallback (SentencePiece): whether it puts a space before a text.

    ModelError where it changes texts in a way that llama.cpp does not.
    """
    cuts = _flat(tokenizer.get("pre_tokenizer"), "pretokenizers")
    changes = [_change(step) for step in _flat(tokenizer.get("normalizer"), "normalizers")]
    if not cuts and changes in (["prepend", "replace"], ["replace"]):
        return "prepend" in changes
    if len(cuts) == 1 and cuts[0]["type"] == "Metaspace" and not changes and not cuts[0].get("split", True):
        return cuts[0].get("prepend_scheme", "always") != "never"
    rules = ", ".join(step["type"] for step in (*_flat(tokenizer.get("normalizer"), "normalizers"), *cuts)) or "none"
    raise ModelError(
        f"the tokenizer changes texts by rules ({rules}) that llama.cpp has not for a SentencePiece vocabulary",
        hint="llama.cpp's own convert_hf_to_gguf.py may know it",
    )


def _change(part: Mapping[str, Any]) -> str:
    if part["type"] == "Prepend" and part["prepend"] == "\u2581":
        return "prepend"
    if part["type"] == "Replace" and part["pattern"] == {"String": " "} and part["content"] == "\u2581":
        return "replace"
    return "another"
