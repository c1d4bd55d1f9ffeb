"""What is not as it was recorded: code, packages, machine, base, rows and settings, and what each may change.

Nothing here imports torch, so that it takes about as long as reading the files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loradock.analysis.reproduce.attempts import turns
from loradock.analysis.reproduce.difference import Difference, Effect
from loradock.analysis.reproduce.original import Original
from loradock.analysis.reproduce.places import TEMPLATE_SUFFIXES
from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig
from loradock.data.read import digest, other_files
from loradock.data.sources import held_out_files
from loradock.facts import Facts
from loradock.files import regular
from loradock.machine import library_variables
from loradock.model import content, tokenizer_copy
from loradock.model.adapter_files import WEIGHTS
from loradock.training.continued import directory_of
from loradock.training.run_dir import fingerprint
from loradock.training.run_dir.record import code_sha256

COMPUTING = frozenset(("torch", "bitsandbytes", "triton", "liger-kernel", "flash-attn"))
"""Packages whose other versions may add in another order."""
READING = frozenset(("transformers", "tokenizers", "peft", "trl", "accelerate", "loradock", "numpy"))
"""Packages whose other versions may read, render, adapt or (numpy) shuffle in another way."""
NUMPY = frozenset(("2.4.6", "2.5.5"))
"""Versions of numpy that draw the same: the lock's for Python before 3.12 and from there on. It adds nothing up."""


def all_of(original: Original, config: RunConfig, facts: Facts) -> list[Difference]:
    """Every difference that is seen before a model is loaded. `config`: with the places of now, all of which hold."""
    return [
        *of_code(original, facts),
        *of_machine(original, config, facts),
        *of_settings(original),
        *(turn.difference for turn in turns(original.record)),
        *of_deepspeed(original, config),
        *of_base(original, config),
        *of_rows(original, config),
        *of_templates(original, config),
    ]


def of_code(original: Original, facts: Facts) -> Iterator[Difference]:
    """loradock, Python and the installed packages."""
    was = original.record.get("facts") or {}
    before: Mapping[str, str] = was.get("packages") or {}
    for name in sorted({*before, *facts.packages}):
        yield from _differ(name, before.get(name), facts.packages.get(name), _of_package(name, before, facts.packages))
    yield from _differ("Python", was.get("python"), facts.python, "nothing")
    if recorded := original.record.get("code_sha256"):
        yield from _differ("loradock's code", _short(recorded), _short(code_sha256()), "results")
    else:
        yield from _differ("loradock's commit", was.get("git_commit"), facts.git_commit, "results")
    yield from _differ("lock file (sha256)", was.get("lock_sha256"), facts.lock_sha256, "nothing")
    if was.get("image_digest") and facts.image_digest:
        yield from _differ("image", was["image_digest"], facts.image_digest, "nothing")


def _of_package(name: str, *versions: Mapping[str, str]) -> Effect:
    if name == "numpy" and NUMPY.issuperset(packages.get(name, "") for packages in versions):
        return "nothing"
    return "last bits" if name in COMPUTING else "results" if name in READING else "nothing"


def of_machine(original: Original, config: RunConfig, facts: Facts) -> Iterator[Difference]:
    """GPUs, or the CPU where that computes; the environment variables that libraries of computing read."""
    was = original.record.get("facts") or {}
    gpus = [gpu["name"] for gpu in was.get("gpus") or []]
    gpus_here = [gpu.name for gpu in facts.gpus]
    is_on_cpu = original.decided("device") == "cpu"
    is_portable = config.deterministic == "portable"
    # The repeat sets the recorded number of threads. More than there are CPUs may still be cut by a library.
    has_threads = 0 < (original.decided("threads") or 0) <= min(was.get("cpus") or 0, facts.cpus)
    yield from _differ("GPUs", ", ".join(gpus) or "none", ", ".join(gpus_here) or "none", "last bits")
    if gpus:
        yield from _differ("driver", was.get("driver"), facts.driver, "last bits")
    if is_on_cpu:
        effect: Effect = "nothing" if is_portable else "last bits"
        yield from _differ("instruction set", was.get("instruction_set"), facts.instruction_set, effect)
        yield from _differ("CPUs", was.get("cpus"), facts.cpus, "nothing" if has_threads else effect)
    if "environment" in original.record:
        before = original.record["environment"]
        now = library_variables.in_a_training(os.environ, deterministic=config.deterministic)
        for name in sorted({*before, *now}):
            changes: Effect = "nothing" if has_threads and name in library_variables.OF_THREADS else "last bits"
            yield from _differ(name, before.get(name), now.get(name), changes)


def of_settings(original: Original) -> Iterator[Difference]:
    """Keys that mean something else in this version, as defaults that changed."""
    recorded, now = original.record["fingerprint"], fingerprint.of_config(original.config)
    later = {name: fingerprint.text_of(value) for name, value in fingerprint.LATER_KEYS.items()}
    asked = {name: text for name, text in recorded.items() if name.partition(".")[0] in SECTIONS}
    for name in sorted({*now, *asked}):
        if not name.endswith(FOUND) and not name.startswith(DEEPSPEED):
            yield from _differ(name, asked.get(name, later.get(name)), now.get(name, later.get(name)), "results")


SECTIONS = frozenset(RunConfig.model_fields)
FOUND = (".content", ".tokens", ".rows")
"""Ends of the fields of a fingerprint that only reading the rows or the adapter gives."""


DEEPSPEED = "train.deepspeed."
"""Begin of the fields that a DeepSpeed configuration of one's own gives."""


def of_deepspeed(original: Original, config: RunConfig) -> Iterator[Difference]:
    """Keys of a DeepSpeed configuration of one's own."""
    recorded = {name: text for name, text in original.record["fingerprint"].items() if name.startswith(DEEPSPEED)}
    now = fingerprint.of_deepspeed(config)
    for name in sorted({*recorded, *now}):
        yield from _differ(name, recorded.get(name), now.get(name), "results")


def of_base(original: Original, config: RunConfig) -> Iterator[Difference]:
    """The base's files, its own code where that is run, and the weights of the adapter that the run began with."""
    base, recorded = original.record.get("base") or {}, original.record["fingerprint"]
    directory = Path(config.model.name)
    now = {
        "base.config": content.digest([directory / "config.json"]),
        "base.tokenizer": content.digest(tokenizer_copy.files_of(directory)),
        "base.weights": content.digest([directory / name for name in base.get("weights", [])]),
    }
    if config.model.trust_remote_code:
        now["base.code"] = content.digest(sorted(directory.rglob("*.py")))
    if config.lora.adapter:
        now["lora.adapter.content"] = content.digest([directory_of(config.lora.adapter) / WEIGHTS])
    for name, value in now.items():
        yield from _differ(name.removesuffix(".content"), _short(recorded.get(name)), _short(value), "results")


def of_rows(original: Original, config: RunConfig) -> Iterator[Difference]:
    """The files of rows, by their content, in their order."""
    data = original.record.get("data") or {}
    named = [*config.data.sources, *held_out_files(config.data)]
    recorded = [*data.get("sources", []), *data.get("validation_sources", [])]
    yield from _differ("number of files of rows", len(recorded), len(named), "results")
    for source, before in zip(named, recorded, strict=False):
        yield from _differ(f"rows of {before['path']}", _short(before["sha256"]), _digest(source), "results")
        for line in other_files([source], [before]):
            yield from _differ("files", "as recorded", line, "results")


def of_templates(original: Original, config: RunConfig) -> Iterator[Difference]:
    """Templates in files of their own; the tokenizer's is among the base's files."""
    recorded, data = original.record["fingerprint"], original.record.get("data") or {}
    digests = {
        "data.template": (config.data.template, recorded.get("data.template.content")),
        "embedding.template": (config.embedding.template, data.get("embedding_template_sha256")),
    }
    for name, (path, was) in digests.items():
        if path.endswith(TEMPLATE_SUFFIXES) and was:
            now = hashlib.sha256(regular.read_text(Path(path)).encode()).hexdigest()
            yield from _differ(name, _short(was), _short(now), "results")


def _digest(source: SourceConfig) -> str:
    return _short(digest(source)) or ""


def _short(value: str | None) -> str | None:
    return value and f"sha256 {value[:16]}" if value and len(value) == SHA256_DIGITS else value


SHA256_DIGITS = 64


def of_start(before: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    """What only a started run knows, of both fingerprints: tokens, template, plan and the adapter's layout."""
    names = [name for name in sorted({*before, *now}) if name.endswith(FOUND) or name.startswith(("plan.", "adapter."))]
    return [
        difference
        for name in names
        for difference in _differ(name, _short(before.get(name)), _short(now.get(name)), _effect(name))
    ]


def _effect(name: str) -> Effect:
    return "last bits" if name.startswith("plan.") and name != "plan.steps" else "results"


def _differ(name: str, was: Any, now: Any, changes: Effect) -> Iterator[Difference]:
    if was != now:
        yield Difference(name=name, was=_shown(was), now=_shown(now), changes=changes)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
