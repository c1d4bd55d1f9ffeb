"""What makes a run this run and no other: a flat table of field -> text, kept in run.json and in every checkpoint.

Fields named like a configuration key hold what was asked (`train.learning_rate`); `plan.`, `base.`, `data.`, `adapter.`
and `versions.` hold what was found. A path is no content: what lies at it is, so that a model or a data set that is
mounted elsewhere is the same. Where two tables differ, `check` refuses, and names every field.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock import __version__
from loradock.catalog.objectives import DEFAULT, is_foreign
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.config.load import leaves
from loradock.config.rules import HUB_PREFIX, is_hub_model
from loradock.config.schema import RunConfig
from loradock.config.suggest import unknown_key
from loradock.errors import NoCheckpoint, Problem, UsageError
from loradock.model import content, tokenizer_copy
from loradock.model.adapters import BASE_CHANGING
from loradock.plan import zero_config
from loradock.plan.plan import HELD
from loradock.text.suggest import nearest, sentence
from loradock.training.events import EARLY_STOP
from loradock.training.run_dir import recorded
from loradock.training.run_dir.paths import RECORD

if TYPE_CHECKING:
    from loradock.data.corpus import Corpus
    from loradock.data.samples.base import Part
    from loradock.model.source import BaseModel
    from loradock.plan.plan import Plan

FREE_KEYS = {
    "output": "where the run lies: the directory itself says which run it is",
    "name": "a name for people",
    "logging.": "what is written about the training, which reads none of it back",
    "after.": "what is made of the finished run",
    "evaluation.tasks": "what the finished run is asked",
    "limits.": "when a run counts as hung",
    "checkpoints.keep": "how many old checkpoints stay",
    "data.max_dropped": "ends a run or not; which rows are left is a field",
    "data.cache": "where prepared data are kept; their content is a field",
    "embedding.passes": "once or twice, the gradients are the same bit for bit",
    "data.workers": "any number of processes prepares the same rows",
    "model.cache_weights": "dense or packed, the products are the same bit for bit",
    "train.memory_fraction": "how much memory is planned with; sums in another order",
    "train.workers": "any number of processes loads the same steps",
}
"""Keys that change neither the adapter nor what is decided, each with the reason; "logging." is the whole section."""

JUDGED_KEYS = ("evaluation.every", "checkpoints.every", "checkpoints.metric")
"""Keys that only count where evaluations decide something: early stopping, or the best checkpoint."""

LATER_KEYS = {
    "model.sdpa_kernel": "auto",
    "checkpoints.metric": "loss",
    "train.betas": (0.9, 0.999),
    "train.eps": 1e-8,
}
"""Keys that came after the first runs: left out at the value that those had, so that such a run continues."""

LATER_DEFAULTS = {"data.special_tokens": {"auto": "as_text"}}
"""Defaults that came after the first runs, and what these had: what differs is told by the tokens."""

DECIDED = ("device", "engine", "compute_dtype", "attention", "packing", "optimizer", "tf32", "compile", "steps")
"""What "auto" came to, where that changes the numbers by more than the order of a sum."""

FOLLOWS = {
    **{f"plan.{name}": (".".join(path),) for name, path in HELD.items()},
    "plan.engine": ("engine", "train.parallel"),
    "plan.compile": ("train.compile",),
    "plan.steps": ("train.max_steps", "train.epochs", "train.global_batch", "data"),
}
"""What a decision follows from: where that is allowed to change, so is the decision."""

FOUND = ("plan", "base", "data", "adapter", "versions", "world_size")
"""What fields begin with that are found on the machine rather than asked for."""

LIBRARIES = (
    "torch", "transformers", "peft", "trl", "bitsandbytes", "tokenizers", "accelerate", "triton", "liger-kernel",
    "flash-attn", "numpy",
)  # fmt: skip
SHOWN_DIGITS = 12
LISTED_FIELDS = 3
"""Of more fields than this in one section, the hint names the section."""


def of_config(config: RunConfig) -> dict[str, str]:
    """Every key that matters, as canonical text: 1.0 is 1, whoever wrote it. Paths say only that they are paths."""
    is_judged = config.keeps_best or config.train.early_stopping is not None
    fields: dict[str, str] = {}
    for key, value in leaves(config).items():
        if _is_free(key) or (key in JUDGED_KEYS and not is_judged) or _is_of_other(key, config.objective_spec):
            continue
        if key in LATER_KEYS and value == LATER_KEYS[key]:
            continue
        later = LATER_DEFAULTS.get(key)
        fields[key] = "a path" if _is_path(key, value) else _text(later.get(value, value) if later else value)
    fields["checkpoints.keep_best"] = _text(config.keeps_best)  # what "auto" comes to
    if config.model.trust_remote_code is not None:
        fields["model.trust_remote_code"] = "on"  # it repeats the model's name; the code is in base.code
    return fields


def of_deepspeed(config: RunConfig) -> dict[str, str]:
    """Each key of a DeepSpeed configuration of one's own, as it is read: layout, order and "auto" are nothing.

    Raises InputMissing or ConfigError for a file that cannot be read.
    """
    path = config.train.deepspeed
    own = leaves(zero_config.said(Path(path))) if path else {}
    return {f"train.deepspeed.{key}": _text(value) for key, value in own.items() if value != {}}


def of_plan(plan: Plan, *, world_size: int) -> dict[str, str]:
    """What "auto" was decided to be, where another machine could decide otherwise, and the number of processes."""
    return {f"plan.{name}": _text(getattr(plan, name).value) for name in DECIDED} | {"world_size": str(world_size)}


def of_versions() -> dict[str, str]:
    """The versions of Python (minor), loradock and the libraries that compute, by their metadata, without import."""
    found = {"versions.python": f"{sys.version_info.major}.{sys.version_info.minor}", "versions.loradock": __version__}
    for name in LIBRARIES:
        try:
            found[f"versions.{name}"] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def of_base(base: BaseModel) -> dict[str, str]:
    """Digests of config.json, the tokenizer's files, the weights, and the model's own code where it is run.

    Of weights above 1 GiB a sample is read (see `model.content`). Raises OSError where a file cannot be read.
    """
    directory = base.directory
    words = tokenizer_copy.files_of(directory)
    found = {
        "base.config": content.digest([directory / "config.json"]),
        "base.tokenizer": content.digest(words),
        "base.weights": content.digest(base.weight_files),
        "base.revision": base.revision or "none",
    }
    if base.trust_remote_code:
        found["base.code"] = content.digest(sorted(directory.rglob("*.py")))
    return found


def of_data(corpus: Corpus) -> dict[str, str]:
    """Of each part the content of its sources, their rows as tokens, and the rows that are used; and the template."""
    fields = {"data.template.content": _sha256(corpus.template.text.encode())}
    for name, part in corpus.parts.items():
        fields |= {f"data.{name}.{key}": text for key, text in _of_part(part).items()}
    return fields


def of_adapter(model: Any) -> dict[str, str]:
    """The names, shapes and dtypes of the trainable tensors; their values too where they changed the base.

    To be taken before a checkpoint is loaded: PiSSA and OLoRA subtract the adapter that they begin with from the base,
    and an adapter that was trained over another remainder does not fit.
    """
    chosen = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    layout = [(name, list(each.shape), str(each.dtype)) for name, each in chosen]
    weights = sum(each.numel() for _, each in chosen)
    text = f"{len(chosen)} tensors, {weights} weights, {_sha256(json.dumps(layout).encode())}"
    if not any(each.init_lora_weights in BASE_CHANGING for each in model.peft_config.values()):
        return {"adapter.layout": text}
    digest = hashlib.sha256()
    for _, each in chosen:
        digest.update(each.detach().cpu().contiguous().numpy().tobytes())
    return {"adapter.layout": text, "adapter.initial": digest.hexdigest()}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[Problem]:
    """Each field that differs, in words: "train.learning_rate was 0.0002, now 0.001"."""
    return [Problem(what=_difference(key, before, now)) for key in _changed(before, now)]


def check(
    before: Mapping[str, str], now: Mapping[str, str], *, allowed: Collection[str], directory: Path
) -> dict[str, dict[str, str]]:
    """The changes that `allowed` names, {field: {"was": text, "now": text}}, for the record.

    An allowed name is a field or all that lies below it ("versions"). Raises NoCheckpoint with every other change,
    UsageError for an allowed name that is no field.
    """
    changed = _changed(before, now)
    for name in allowed:
        _refuse_unknown(name, fields={*before, *now})
    left = [key for key in changed if not any(_covers(name, each) for name in allowed for each in _with_cause(key))]
    if left:
        accept = " ".join(f"--allow-change {name}" for name in [*sorted(allowed), *_sections(left)])
        if done := _steps_made(directory, changed):
            accept = f"all {done} steps are made: --max-steps N --allow-change train.max_steps {accept}"
        raise NoCheckpoint(
            f"the run in {directory} was started with other settings",
            hint=f"{accept} continues it with these changes; --fresh or another --output starts a new run beside it",
            problems=[Problem(what=_difference(key, before, now)) for key in left],
        )
    return {key: {"was": _said(before, key), "now": _said(now, key)} for key in changed}


def _steps_made(directory: Path, changed: Collection[str]) -> int | None:
    """How many steps a finished run has, where no change gives it more; None for one that goes on, or ended early."""
    record = recorded.read(directory) if (directory / RECORD).exists() else {}
    if record.get("status") != "finished" or any(
        _covers(cause, key) for key in changed for cause in FOLLOWS["plan.steps"]
    ):
        return None
    outcome = record.get("outcome") or {}
    return None if outcome.get("ended") == EARLY_STOP else outcome.get("steps")


def _is_free(key: str) -> bool:
    return any(key == free or (free.endswith(".") and f"{key}.".startswith(free)) for free in FREE_KEYS)


def _is_of_other(key: str, spec: ObjectiveSpec) -> bool:
    """True for a key of other objectives, and for that of the only one that there was at first."""
    return is_foreign(key, spec) or (key == "objective" and spec.name == DEFAULT)


def _is_path(key: str, value: object) -> bool:
    """True for a value that names a place on this machine, whose content is a field of its own."""
    if not isinstance(value, str):
        return False
    if key in ("data.template", "embedding.template"):
        return value.endswith((".jinja", ".j2"))
    if re.fullmatch(r"data\.sources\.\d+\.path", key):
        return not value.startswith(HUB_PREFIX)
    if re.fullmatch(r"data\.validation(\..+)?", key):
        return True
    return key == "train.deepspeed" or (key == "model.name" and not is_hub_model(value))


def _text(value: Any) -> str:
    """JSON; whole numbers without a fraction, and texts without quotes where that is unmistakable."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_word = (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./:@-]*", value) and value not in ("null", "true", "false")
    )
    return str(value) if is_word else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _of_part(part: Part) -> dict[str, str]:
    return {
        "content": _sha256("\n".join(source.digest for source in part.prepared.sources).encode()),
        "tokens": part.prepared.digest,
        "rows": part.used,
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]


def _difference(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    was, is_now = (
        re.sub(r"\b[0-9a-f]{40,64}\b", lambda match: match[0][:SHOWN_DIGITS], _said(table, key))
        for table in (before, now)
    )
    return f"{key} was {was}, now {is_now}"


def _said(table: Mapping[str, str], key: str) -> str:
    """What a table says of a field. A later key that it leaves out is at its first default, unless nothing judges."""
    if key in table or key in JUDGED_KEYS or key not in LATER_KEYS:
        return table.get(key, "absent")
    return _text(LATER_KEYS[key])


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name.removesuffix('.')}.")


def _with_cause(key: str) -> tuple[str, ...]:
    """The field, and what it follows from."""
    return (key, *FOLLOWS.get(key, ()))


def _sections(fields: list[str]) -> list[str]:
    """The fields as they are typed: one by one, or their section where many of it changed."""
    in_section: dict[str, list[str]] = {}
    for key in fields:
        in_section.setdefault(key.split(".")[0], []).append(key)
    return [
        name
        for section, members in in_section.items()
        for name in (members if len(members) <= LISTED_FIELDS else [section])
    ]


def _refuse_unknown(name: str, *, fields: Collection[str]) -> None:
    """UsageError for a name that is neither a field, nor a section, nor a key that may be absent from the table."""
    if any(_covers(name, key) for key in fields) or name in JUDGED_KEYS or name.split(".")[0] in FOUND:
        return  # which of the found ones there are differs from machine to machine, and from stage to stage
    if _is_free(name):
        raise UsageError(f"{name} may change without being named", hint=f"leave out --allow-change {name}")
    field = nearest(name, sorted(fields)) or unknown_key(tuple(name.split("."))).meant
    hint = sentence(f"--allow-change {field}") if field else "loradock config show lists the keys"
    raise UsageError(f"--allow-change {name}: a run has no such field", hint=hint)
