"""What the tools call preference tuning: the kind of training, its loss and the keys of that."""

from __future__ import annotations

from typing import Any

from loradock.catalog.objectives.preference import LOSSES as KNOWN
from loradock.config.other_tools.base import Rule, Translation, as_list, as_number, is_on, refuse, to, to_number

KINDS = {name: name for name in ("dpo", "ipo", "kto", "orpo", "simpo", "cpo")}
"""Their word for a training by preferences -> our loss."""
LOSSES = {
    "sigmoid": "dpo",
    "sppo_hard": "sppo",
    **{name: name for name in ("hinge", "ipo", "robust", "apo_zero", "apo_down", "bco_pair", "orpo", "simpo")},
}
"""Their word for the loss of DPO's trainer -> ours."""
RULES: dict[str, Rule] = {
    **dict.fromkeys(("rl_beta", "pref_beta", "beta"), to_number("preference.beta", above=0)),
    **dict.fromkeys(("pref_ftx", "rpo_alpha", "cpo_alpha"), to_number("preference.likelihood_weight", above=0)),
    **dict.fromkeys(("simpo_gamma",), to_number("preference.margin", least=0)),
    **dict.fromkeys(("dpo_label_smoothing",), to_number("preference.label_smoothing", above=0)),
    **dict.fromkeys(
        ("kto_desirable_weight", "kto_chosen_weight", "desirable_weight"),
        to_number("preference.desirable_weight", above=0),
    ),
    **dict.fromkeys(
        ("kto_undesirable_weight", "kto_rejected_weight", "undesirable_weight"),
        to_number("preference.undesirable_weight", above=0),
    ),
    **dict.fromkeys(("adapter_name_or_path", "lora_model_dir"), to("lora.adapter")),
}


UNPAIRED = frozenset(("desirable_weight", "undesirable_weight"))
"""Keys of TRL's KTO trainer alone, whose loss is kto unless another is named."""
LIKELIHOOD = frozenset(("nll", "chunked_nll"))
"""TRL's words for the loss of supervised training."""


def preferring_by_loss(translation: Translation) -> None:
    """TRL's training by its loss, one or a list: by preferences where it is one of theirs, refused where not here."""
    if as_number(translation.get("center_rewards_coefficient")) is not None:
        rewarding(translation, "center_rewards_coefficient")
        if translation.given.get("learning_rate") is None:
            translation.put("train.learning_rate", TRL_REWARD_LEARNING_RATE, "learning_rate")
        return
    value = translation.get("loss_type")
    names = [str(each).lower() for each in as_list(value or [])] or ["kto"] * bool(UNPAIRED & translation.given.keys())
    is_one = len(names) == 1 and translation.get("loss_weights") is None
    loss = (LOSSES | {"kto": "kto"}).get(names[0]) if is_one else summed(translation, names)
    if loss is not None:
        translation.put("objective", "preference", "loss_type", *sorted(UNPAIRED))
        translation.put("preference.loss", loss, "loss_type", *sorted(UNPAIRED))
        if translation.given.get("learning_rate") is None:
            translation.put("train.learning_rate", TRL_LEARNING_RATE, "learning_rate")
    elif names == ["dft"]:
        translation.leave("loss_type", "dft: the loss is the likelihood, each token as it is")
    elif names and not LIKELIHOOD.issuperset(names):
        refuse(translation, "loss_type", value)
    if loss is None:
        for key in [key for key in translation.values if key.startswith("preference.")]:
            name = translation.values.pop(key).origin
            translation.leave(name, f"{key} belongs to objective preference: loss_type says which loss it is")


LIKELIHOOD_TERM = "sft"
"""The word in a list of losses for the likelihood of the chosen answers."""


def summed(translation: Translation, names: list[str]) -> dict[str, float] | None:
    """A list of losses with its weights, 1 where none are given; None where one of it is not here.

    `sft` is a term of its own here, not a loss. Smoothing that theirs gives one of them alone would be that of all.
    """
    weights = [as_number(each) for each in as_list(translation.get("loss_weights") or [1.0] * len(names))]
    terms = {name: weight for name, weight in zip(names, weights, strict=False) if weight is not None}
    can_be = {theirs: ours for theirs, ours in LOSSES.items() if not KNOWN[ours].alone}
    is_complete = len(terms) == len(names) == len(weights) and terms.keys() <= can_be.keys() | {LIKELIHOOD_TERM}
    is_smoothed = "preference.label_smoothing" in translation.values and {"sigmoid", "robust"} <= terms.keys()
    losses = {can_be[name]: weight for name, weight in terms.items() if name in can_be and weight}
    if not losses or not is_complete or is_smoothed:
        return None
    if terms.get(LIKELIHOOD_TERM):
        translation.put("preference.likelihood_weight", terms[LIKELIHOOD_TERM], "loss_type", "loss_weights")
    return losses


TRL_LEARNING_RATE = 1e-6
"""The default of TRL's DPO and KTO trainers."""
TRL_REWARD_LEARNING_RATE = 1e-4
"""And of its trainer of reward models."""


def first_adapter(translation: Translation, name: str, value: Any) -> None:
    """The adapter to begin with, where one is named."""
    adapters = as_list(value)
    if len(adapters) == 1:
        translation.put("lora.adapter", adapters[0], name)
    elif adapters:
        translation.leave(name, f"{len(adapters)} adapters: a run begins with one (lora.adapter)")


REWARD = "rm"
"""Their word for the training of a reward model."""


def rewarding(translation: Translation, name: str) -> None:
    """The training of a reward model; what they say of preference losses belongs to another one."""
    translation.put("objective", "reward", name)
    for key in [key for key in translation.values if key.startswith("preference.")]:
        origin = translation.values.pop(key).origin
        translation.leave(origin, f"{key} belongs to objective preference, and this trains a reward model")
    center = as_number(translation.get("center_rewards_coefficient"))
    if center:
        translation.put("reward.center", center, "center_rewards_coefficient")


def reward_model(translation: Translation, name: str, value: Any) -> None:
    """axolotl's switch."""
    if is_on(value):
        rewarding(translation, name)


LOSSES_OF_KIND = {"cpo": {"sigmoid": "cpo", "simpo": "simpo"}, "kto": {"kto": "kto"}}
"""Their word for the loss of a trainer of another kind than DPO's -> ours."""


def preferring(translation: Translation, name: str, value: Any) -> None:
    """A training by preferences of a kind that is here, with its loss; refused where it is another."""
    kind = KINDS.get(str(value).lower())
    if str(value).lower() == REWARD:
        rewarding(translation, name)
        return
    if kind not in (None, "dpo"):
        own_kind(translation, name, kind)
        return
    loss = translation.get("pref_loss", "loss_type")
    names = [str(each).lower() for each in as_list(loss or [])]
    is_one = len(names) == 1 and translation.get("loss_weights") is None
    ours = LOSSES.get(names[0]) if is_one else summed(translation, names)
    if kind is None or (kind == "dpo" and names and ours is None):
        refuse(translation, name if kind is None else "pref_loss", value if kind is None else loss)
        return
    translation.put("objective", "preference", name)
    if names:
        translation.put("preference.loss", ours, "pref_loss", "loss_type")
    else:
        translation.put("preference.loss", kind, name)


def own_kind(translation: Translation, name: str, kind: str) -> None:
    """A training by preferences whose kind says its loss, unless its trainer has several."""
    loss = translation.get("loss_type")
    ours = kind if loss is None else LOSSES_OF_KIND.get(kind, {kind: kind}).get(str(loss).lower())
    if ours is None:
        refuse(translation, "loss_type", loss)
        return
    translation.put("objective", "preference", name)
    translation.put("preference.loss", ours, name, "loss_type")
