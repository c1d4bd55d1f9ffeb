"""The loss over preferences: one, or several that are added, and what it costs besides the trained answers' passes."""

from __future__ import annotations

from loradock.plan.context import Context
from loradock.plan.plan import NOT_APPLICABLE, Decision

KEY = "preference.loss"


def decide(context: Context) -> Decision[str]:
    """The formula, the likelihood term within it, and how often the answers are run besides."""
    config, options = context.config, context.config.preference
    if not config.objective_spec.owns(KEY):
        return Decision(name="loss", value="likelihood", why=f"{NOT_APPLICABLE}objective {config.objective}")
    weight = (
        0 if "preference.likelihood_weight" in config.objective_spec.without_effect else options.weight_of_likelihood
    )
    terms = [options.formula, *([f"{weight:g} likelihood of the chosen answers"] if weight else [])]
    added = "added, each loss times its weight; " if len(terms) + len(options.losses) > 2 else ""
    passes = config.plain_passes
    against = (
        f"answers are compared with the model as it was, by {passes} pass{'es' * (passes > 1)} more without gradient"
        if passes
        else "no model is compared with, and no pass is added"
    )
    return Decision(name="loss", value=" + ".join(terms), why=f"{added}{against}")
