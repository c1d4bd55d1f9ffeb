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
    if context.config.preference.share_prompts:
        return (
            Trial(
                name="shared-prompts-off",
                title="the prompt of both answers computed with each of them",
                settings=(f"{KEY}=false",),
                cause="attention over a shared prompt takes longer than computing it twice",
                phase="passes",
                is_remedy=False,
            ),
        )
    return (
        Trial(
            name="shared-prompts-on",
            title="the prompt of both answers computed once",
            settings=(f"{KEY}=true",),
            cause="each prompt is computed twice, once with each answer",
            phase="passes",
        ),
    )
