"""The commit of a hub id that was named without one: asked for once, so that a run and its record name it."""

from __future__ import annotations

import functools
import os

from loradock.config.rules import HubId, KeyProblem
from loradock.errors import HubError
from loradock.machine import hub_access
from loradock.model import hub_cache


@functools.cache
def resolve(hub_id: HubId) -> str | KeyProblem:
    """The commit (40 hex digits) that a hub id has on its default branch now; a problem where the hub is switched off.

    HubError where the hub does not answer or does not give it, EnvironmentUnfit for a variable that cannot be right.
    The hint names the commit that was fetched last, where there is one.
    """
    name, key, is_model = hub_id.name, hub_id.key, hub_id.kind == "models"
    known = hub_cache.commit(name, "main", environ=os.environ, kind=hub_id.kind)
    pinned = f"--set {key}={known} (the commit in the local cache)" if known else f"--set {key}=COMMIT"
    what = f"{hub_id.subject} needs a commit"
    path = hub_id.or_directory
    if hub_cache.is_offline(os.environ) if is_model else hub_cache.datasets_are_offline(os.environ):
        variables = hub_access.switches(os.environ)
        switched_off = f"{what}, and {' or '.join(variables)} switches the hub off"
        hint = pinned if known else f"unset {' '.join(variables)}, or {pinned}"
        hint += path
        return KeyProblem(keys=(hub_id.name_key, key), what=switched_off, hint=hint)
    if why := hub_access.away():
        raise HubError(f"{what}, and {why}", hint=f"{hub_access.remedy(why, has_copy=False)}; or {pinned}{path}")
    from huggingface_hub import HfApi

    with hub_access.asking(f"the commit of {name}", hint=f"check the name and the access rights (HF_TOKEN){path}"):
        found = HfApi().model_info(name) if is_model else HfApi().dataset_info(name)
    if not found.sha:
        raise HubError(f"the hub gave no commit of {name}", hint=pinned)
    return found.sha
