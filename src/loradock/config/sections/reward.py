"""The section `reward`: a score of answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loradock.config.sections.values import Section


class RewardConfig(Section):
    """Reward models, under objective reward."""

    center: Annotated[float, Field(ge=0, le=1000)] = Field(
        default=0.0,
        description="Weight of the mean of the squared sum of both scores, which holds scores near 0 (Eisenstein et "
        "al. 2023); 0: none, 0.01 is usual.",
    )
