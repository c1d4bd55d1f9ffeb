"""The weights: every tensor of the architecture is in the files, in its shape; by their headers."""

from __future__ import annotations

from loradock.env_check.base import ON_DISK, Check, Finding, Intent, ok, warning
from loradock.env_check.model.base import download_to
from loradock.env_check.model.refusal import refusal
from loradock.errors import LoradockError
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import hub_cache


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """What cannot be opened at all is the business of the check of the base."""
    from loradock.model import description, weights, whole

    assert plan.config is not None
    model = plan.config.model
    directory = hub_cache.directory_of(model.name, model.revision, environ=host.environ)
    if directory is None or not weights.files(directory):
        return [ok("the weights are not here yet")]
    try:
        base = description.describe(model)
        unused = whole.check(base)
    except LoradockError as wrong:
        return refusal(wrong, remedy=download_to(directory))
    if unused:
        examples = ", ".join(unused[:3])
        return [warning(f"{len(unused)} tensors of {directory} are not used: {examples}", remedy=f"ls -l {directory}")]
    return [ok(f"{directory} holds every tensor of {base.config.model_type}")]


CHECK = Check(
    name="model-weights",
    group="model",
    proves="The weight files hold every tensor of the architecture in its shape (by their headers).",
    look=look,
    level="compute",
    needs="config",
    depends_on=(*ON_DISK, "model", "weights"),
    limit_seconds=90,
)
