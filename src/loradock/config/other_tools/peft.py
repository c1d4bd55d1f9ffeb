"""What the tools call the adapter, by peft's names for the most part."""

from __future__ import annotations

from typing import Any

from loradock.config.other_tools.base import Rule, Translation, as_list, by_word, to, to_number, to_truth

INITS = {
    "true": None, "default": None, "gaussian": "gaussian", "pissa": "pissa", "olora": "olora",
    "orthogonal": "orthogonal",
}  # fmt: skip


def targets(translation: Translation, name: str, value: Any) -> None:
    """Names of layers; all of them under several names."""
    names = [str(each) for each in as_list(value)]
    if {each.lower() for each in names} & {"all", "all-linear", "all_linear"}:
        translation.put("lora.targets", "all-linear", name)
    elif len(names) == 1 and any(sign in names[0] for sign in "*|\\("):
        translation.leave(name, "lora.targets takes names of layers, not a pattern")
    else:
        translation.put("lora.targets", names, name)


NOT_SPECIAL = "tokenizer.add_tokens adds tokens that are not special: answers show them"


def new_tokens(translation: Translation, name: str, value: Any) -> None:
    """A list, or texts with commas between them."""
    translation.put("tokenizer.add_tokens", [str(each) for each in as_list(value)], name)


def modules_to_save(translation: Translation, name: str, value: Any) -> None:
    """Names of modules."""
    translation.put("lora.modules_to_save", [str(each) for each in as_list(value)], name)


def rules(*, rank: str, prefix: str = "", alpha: str = "lora_alpha", dropout: str = "lora_dropout") -> dict[str, Rule]:
    """Those that most tools have, `rank` and what comes before the flags as this one writes them."""
    return {
        rank: to_number("lora.rank"),
        alpha: to_number("lora.alpha"),
        dropout: to_number("lora.dropout"),
        f"{prefix}use_rslora": to_truth("lora.rslora"),
        f"{prefix}use_dora": to_truth("lora.dora"),
        f"{prefix}init_lora_weights": by_word("lora.init", INITS),
        "rank_pattern": to("lora.rank_pattern"),
        "alpha_pattern": to("lora.alpha_pattern"),
    }
