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
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock import __version__
from loradock.catalog import engines
from loradock.catalog.objectives import DEFAULT, is_foreign
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.config.load import leaves
from loradock.config.rules import is_hub_model
from loradock.config.schema import RunConfig
from loradock.config.sections.data import HUB_PREFIX
from loradock.data.read import shown_files
from loradock.data.readers import reader_of
from loradock.data.sources import held_out_files
from loradock.errors import DataError, InputMissing
from loradock.model import content, tokenizer_copy
from loradock.model.adapters import BASE_CHANGING
from loradock.plan import zero_config

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
    "preference.keep_reference": "the same values, computed in other micro-batches; sums in another order",
    "train.memory_fraction": "how much memory is planned with; sums in another order",
    "train.threads": "how many add up; sums in another order",
    "train.workers": "any number of processes loads the same steps",
}
"""Keys that change neither the adapter nor what is decided, each with the reason; "logging." is the whole section."""

JUDGED_KEYS = ("evaluation.every", "checkpoints.every", "checkpoints.metric")
"""Keys that only count where evaluations decide something: early stopping, or the best checkpoint."""

LATER_KEYS = {
    "model.sdpa_kernel": "auto",
    "checkpoints.metric": "loss",
    "data.on_bad_row": "stop",
    "train.betas": (0.9, 0.999),
    "train.eps": 1e-8,
    "lora.rank_pattern": {},
    "lora.adapter": None,
    "preference.desirable_weight": 1.0,
    "preference.undesirable_weight": 1.0,
    "reward.center": 0.0,
    "lora.alpha_pattern": {},
    "train.loraplus_lr_ratio": 1.0,
    "train.min_learning_rate_ratio": 0.0,
    "train.decay": 0.1,
    "train.decay_shape": "cosine",
    "train.cycles": 1,
    "train.power": 1.0,
    "data.tools": "keep",
    "data.reasoning": "as_template",
    "data.template_arguments": {},
    "data.text": "line",
    "data.min_tokens": 0,
    "data.overlap": 0,
    "data.deduplicate": "off",
    "tokenizer.add_tokens": (),
    "model.rope_scaling": "off",
    "model.rope_factor": 1.0,
}
"""Keys that came after the first runs: left out at the value that those had, so that such a run continues."""

LATER_DEFAULTS = {"data.special_tokens": {"auto": "as_text"}}
"""Defaults that came after the first runs, and what these had: what differs is told by the tokens."""

DECIDED = ("device", "engine", "compute_dtype", "attention", "packing", "optimizer", "tf32", "compile", "steps")
"""What "auto" came to, where that changes the numbers by more than the order of a sum."""


LIBRARIES = (
    "torch", "transformers", "peft", "trl", "bitsandbytes", "tokenizers", "accelerate", "triton", "liger-kernel",
    "flash-attn", "numpy",
)  # fmt: skip


def of_config(config: RunConfig) -> dict[str, str]:
    """Every key that matters, as canonical text: 1.0 is 1, whoever wrote it. Paths say only that they are paths."""
    is_judged = config.keeps_best or config.train.early_stopping is not None
    fields: dict[str, str] = {}
    for key, value in leaves(config).items():
        if is_free(key) or (key in JUDGED_KEYS and not is_judged) or _is_of_other(key, config.objective_spec):
            continue
        if key in LATER_KEYS and value == LATER_KEYS[key]:
            continue
        if key.endswith(".configuration") and value is None:  # came after the first runs
            continue
        if key == "data.text" and not _names_text(config):
            continue
        later = LATER_DEFAULTS.get(key)
        fields[key] = "a path" if _is_path(key, value) else text_of(later.get(value, value) if later else value)
    fields["checkpoints.keep_best"] = text_of(config.keeps_best)  # what "auto" comes to
    if config.model.trust_remote_code is not None:
        fields["model.trust_remote_code"] = "on"  # it repeats the model's name; the code is in base.code
    return fields


def of_deepspeed(config: RunConfig) -> dict[str, str]:
    """Each key of a DeepSpeed configuration of one's own, as it is read: layout, order and "auto" are nothing.

    Raises InputMissing or ConfigError for a file that cannot be read.
    """
    path = config.train.deepspeed
    own = leaves(zero_config.said(Path(path))) if path else {}
    return {f"train.deepspeed.{key}": text_of(value) for key, value in own.items() if value != {}}


def of_plan(plan: Plan, *, world_size: int) -> dict[str, str]:
    """What "auto" was decided to be, where another machine could decide otherwise, and the number of processes."""
    return {f"plan.{name}": text_of(getattr(plan, name).value) for name in DECIDED} | {"world_size": str(world_size)}


def of_dropout(plan: Plan, *, share: float) -> dict[str, str]:
    """How the masks of dropout are drawn, where the engine once drew others; runs without dropout have no masks."""
    masks = engines.of(plan.engine.value).dropout_masks
    return {"plan.dropout_masks": masks} if share and masks else {}


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


def is_free(key: str) -> bool:
    """Whether a key may change without being named."""
    return any(key == free or (free.endswith(".") and f"{key}.".startswith(free)) for free in FREE_KEYS)


def _is_of_other(key: str, spec: ObjectiveSpec) -> bool:
    """True for a key of other objectives, and for that of the only one that there was at first."""
    return is_foreign(key, spec) or (key == "objective" and spec.name == DEFAULT)


def _names_text(config: RunConfig) -> bool:
    """True where a file of text is read, named or in a directory; of one that is gone its name tells."""
    names: list[str] = []
    for source in (*config.data.sources, *held_out_files(config.data)):
        try:
            names += shown_files(source)
        except (InputMissing, DataError):
            names.append(source.path)
    return any(found and found[0].units for found in map(reader_of, names))


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
    return key in ("train.deepspeed", "lora.adapter") or (key == "model.name" and not is_hub_model(value))


def text_of(value: Any) -> str:
    """A value as JSON; whole numbers without a fraction, texts without quotes where that is unmistakable."""
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
