"""The base of what is opened: from this machine alone, and with its own code only where a person named it.

A record (run.json, training.json, adapter_config.json) came with the files that it describes, and may be anybody's: it
can say which base that was, and neither trust the code of one nor have one fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from loradock.config.sections.model import ModelConfig
from loradock.errors import InputMissing, ModelError, UsageError
from loradock.model import hub_cache, not_a_base, source
from loradock.model.adapter_files import SETTINGS, settings_of
from loradock.training.lineage import Lineage

BASE_OPTION = "--base-model"


def find_base(
    adapter: Path, asked: ModelConfig, *, named: str | None, given: str | None, trusted: Collection[str]
) -> source.BaseModel:
    """The base of an adapter, from this machine alone: `given` by a person, else at the first recorded place.

    `asked`: how it is loaded, and its commit; `named`: by the record of training. Of recorded names an absolute path
    comes first: a relative one was true in the directory where training ran. Raises InputMissing where it is nowhere,
    and what `checked` raises.
    """
    if given and (what := not_a_base.described(Path(given))):
        raise UsageError(f"{given} is {what}, not a base model", hint=f"{BASE_OPTION} DIR names the model itself")
    settings = settings_of(adapter)
    recorded = [name for name in (named, settings.base_model_name_or_path) if name]
    names = [given] if given else sorted(dict.fromkeys(recorded), key=lambda name: not Path(name).is_absolute())
    if not names:
        raise ModelError(f"{adapter / SETTINGS} names no base model", hint=f"{BASE_OPTION} DIR says which it is")
    revision = None if given not in (None, *recorded) else asked.revision or settings.revision
    for name in names:
        if place := source.in_cache(name, revision):
            return checked(asked.model_copy(update={"name": name, "revision": revision}), place, trusted=trusted)
    was_directory = not given and Path(names[0]).is_absolute()
    hub_ids = [] if was_directory else [name for name in names if hub_cache.is_hub_id(name)]
    commit = f" --revision {revision}" if revision else ""
    fetch = [f"hf download {name}{commit} fetches it (nothing is fetched because a file names it)" for name in hub_ids]
    where = " and ".join(f"{name}{' (hub)' if name in hub_ids else ''}" for name in names)
    raise InputMissing(
        f"the base of {adapter} is not on this machine: looked for {where}",
        hint="; ".join([*fetch, f"{BASE_OPTION} DIR says where it lies"]),
    )


def checked(asked: ModelConfig, place: Path, *, trusted: Collection[str]) -> source.BaseModel:
    """`source.checked` of a model that a person opens. Its code is run where they named it among the `trusted` ones."""
    trust = asked.name if source.trusts(trusted, asked.name, place) else None
    is_hub = hub_cache.is_hub_id(asked.name)
    revision = (source.commit_of(place) or asked.revision) if is_hub else None
    return source.checked(
        asked.model_copy(update={"trust_remote_code": trust}),
        place,
        revision=revision,
        trust_option=source.BY_OPTION,
    )


def check_weights(base: source.BaseModel, lineage: Lineage, *, found: Callable[[], str]) -> None:
    """ModelError where an adapter was trained on other weights than `base` has, whose digest `found` makes."""
    if lineage.base_weights and lineage.base_weights != found():
        raise ModelError(
            f"{base.directory} is not the base that the adapter was trained on: its weight files differ",
            hint="put back the base of the run, or --base-model DIR says where it lies",
        )
