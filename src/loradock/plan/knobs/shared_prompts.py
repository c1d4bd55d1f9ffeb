"""The prompt of both answers of a preference pair computed once or twice: what `diagnose` measures of it."""

from __future__ import annotations

from loradock.plan.context import Context
from loradock.plan.trial import Trial

KEY = "preference.share_prompts"


def propose(context: Context) -> tuple[Trial, ...]:
    """The other way than now, where the engine and the loss can do both; computing it twice is no remedy."""
    spec = context.config.objective_spec
    if not spec.owns(KEY) or KEY in spec.without_effect or not context.engine.shares_prompts:
        return ()
    is_shared = context.config.preference.share_prompts
    return (
        Trial(
            name=f"shared-prompts-{'off' if is_shared else 'on'}",
            title=f"the prompt of both answers computed {'with each of them' if is_shared else 'once'}",
            settings=(f"{KEY}={'false' if is_shared else 'true'}",),
            cause="attention over a shared prompt takes longer than computing it twice"
            if is_shared
            else "each prompt is computed twice, once with each answer",
            phase="passes",
            is_remedy=not is_shared,
        ),
    )
