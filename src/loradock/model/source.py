"""Where the base model lies: found and checked file by file before anything large is read.

A hub model is fetched whole into the hub's own cache first, so that everything after works on a local directory.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loradock.config.sections.model import ModelConfig
from loradock.errors import HubError, InputMissing, ModelError, Problem
from loradock.files.foreign import reading, unreadable
from loradock.machine import hub_access
from loradock.model import (
    architecture,
    config_file,
    hub_cache,
    made_dense,
    not_a_base,
    prequantised,
    rope_scaling,
    shipped_code,
    weights,
)
from loradock.model.files import check_readable
from loradock.model.patches import decoder
from loradock.text.suggest import nearest, sentence

DECODERS = "loradock fine-tunes decoder-only models (Llama, Mistral, Qwen, Phi, Gemma, ...)"
COMMIT = re.compile(r"[0-9a-f]{40}")
BY_KEY, BY_OPTION = "--set model.trust_remote_code=", "--trust-remote-code "
"""What a person types before the model's name to trust its code: where a configuration is read, and elsewhere."""
FETCHED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A model directory that was checked: `config` is the transformers config, `revision` the hub commit or None.

    `scaling`: how the config's positions are stretched beyond those of config.json.
    """

    name: str
    directory: Path
    revision: str | None
    config: Any
    trust_remote_code: bool
    weight_files: tuple[Path, ...]
    scaling: rope_scaling.Scaling | None = None


def find(model_config: ModelConfig, *, on_bytes: Callable[[], None] = lambda: None) -> BaseModel:
    """Locate the model that the configuration names and check its files; `on_bytes` is called when some arrived.

    Raises InputMissing where nothing is there, HubError where the hub does not give it, ModelError with every
    problem of the directory at once.
    """
    if not hub_cache.is_hub_id(model_config.name):
        return checked(model_config, local_directory(Path(model_config.name)))
    directory = fetch(model_config, trusted=model_config.trust_remote_code == model_config.name, on_bytes=on_bytes)
    return checked(model_config, directory, revision=commit_of(directory) or model_config.revision)


def checked(
    model_config: ModelConfig, directory: Path, *, revision: str | None = None, trust_option: str = BY_KEY
) -> BaseModel:
    """The model in a directory of this machine, its files checked; nothing is fetched. ModelError as `find`.

    `revision`: the hub commit that the directory is of. `trust_option`: what the person types before the model's name
    to run the code that it ships, for the hint.
    """
    trusted = model_config.trust_remote_code == model_config.name
    files = check_files(directory)
    config = read_config(directory, name=model_config.name, trusted=trusted, trust_option=trust_option)
    check_architecture(config, directory=directory)
    scaling = rope_scaling.applied(config, model_config, trusted=trusted)
    return BaseModel(
        name=model_config.name,
        directory=directory,
        revision=revision,
        config=config,
        trust_remote_code=trusted,
        weight_files=files,
        scaling=scaling,
    )


def trusts(trusted: Collection[str], name: str, directory: Path) -> bool:
    """Whether a person named this model among those whose own code may run: as it is called, or by its directory."""
    return name in trusted or directory.resolve() in {Path(name).resolve() for name in trusted}


def commit_of(directory: Path) -> str | None:
    """The commit of a snapshot in the hub's cache, whose folder has its name."""
    return directory.name if COMMIT.fullmatch(directory.name) else None


def in_cache(name: str, revision: str | None) -> Path | None:
    """The directory that a name in somebody's record means on this machine: a path, or a hub id that was fetched."""
    return hub_cache.directory_of(name, revision, environ=os.environ)


def local_directory(path: Path) -> Path:
    """The directory itself; InputMissing with the nearest sibling where it does not exist."""
    not_a_base.refuse(path)
    if path.is_dir():
        return path
    if path.exists():
        hint = "give the directory of a model: config.json, *.safetensors and the tokenizer's files"
        if (path.parent / "config.json").is_file():
            hint = f"give the directory that holds it: {shlex.quote(str(path.parent))}"
        raise InputMissing(f"model {path} is a file", hint=hint)
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    hint = sentence(str(path.parent / near)) if near else "give a directory, or a hub id as OWNER/NAME"
    raise InputMissing(f"model directory {path} does not exist", hint=hint)


def fetch(model_config: ModelConfig, *, trusted: bool, on_bytes: Callable[[], None]) -> Path:
    """Fetch the pinned revision of a hub model into the hub cache and return its directory.

    `on_bytes` is called from the library's threads: for each file and for each 10 MB of one.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        """The library's own bar, which also passes on that bytes came."""

        def update(self, n: float | None = 1) -> bool | None:
            on_bytes()
            return super().update(n)

    patterns = [*FETCHED, "*.py"] if trusted else FETCHED
    return downloaded(model_config, allow_patterns=patterns, tqdm_class=Bar)


def downloaded(model_config: ModelConfig, **options: Any) -> Path:
    """The snapshot of a hub model; where the hub does not answer, that in the local cache. `options`: the library's.

    Raises HubError, EnvironmentUnfit for a variable that cannot be right, StorageError where it cannot be written.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    is_offline = hub_cache.is_offline(os.environ)
    away = None if is_offline else hub_access.away()
    hint = "check the name, the revision and the access rights (HF_TOKEN), or give a local directory in its place"
    with hub_access.asking(f"{model_config.name} at {model_config.revision}", hint=hint):
        try:
            directory = snapshot_download(
                model_config.name, revision=model_config.revision, local_files_only=away is not None, **options
            )
        except LocalEntryNotFoundError as error:
            if not away and not is_offline:
                raise  # the hub's own answer is behind it
            switches = [name for name in hub_access.OFFLINE[:2] if hub_access.is_true(os.environ.get(name))]
            why = away or f"{' or '.join(switches)} switches the hub off"
            network = hub_access.remedy(away) if away else f"unset {' '.join(switches)}"
            hint = f"{network}; or give a local directory in its place"
            what = f"model {model_config.name} at {model_config.revision} is not in the local cache, and {why}"
            raise HubError(what, hint=hint) from error
    return Path(directory)


def check_files(directory: Path) -> tuple[Path, ...]:
    """Check that config, weights and tokenizer are there and whole; all problems at once. Returns the weight files.

    Raises InputMissing or StorageError for one that cannot be read.
    """
    check_regular(directory)
    problems: list[Problem] = []
    if not (directory / "config.json").is_file():
        problems.append(Problem(what="config.json is missing", file=str(directory)))
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        problems.append(Problem(what="no tokenizer (tokenizer.json or tokenizer.model)", file=str(directory)))
    files = weights.resolve(directory, problems)
    problems += [
        Problem(what=wrong, file=str(file))
        for file in files
        if file.suffix == ".safetensors" and (wrong := safetensors_problem(file))
    ]
    if problems:
        raise ModelError(
            f"model directory {directory} cannot be used",
            hint="copy the whole directory again (config.json, *.safetensors, tokenizer files)",
            problems=problems,
        )
    return files


def check_regular(directory: Path) -> None:
    """Refuse a FIFO, a device or what cannot be read, in the place of any file that a library may open."""
    check_readable(sorted({file for pattern in (*FETCHED, "*.bin") for file in directory.glob(pattern)}))


def safetensors_problem(file: Path) -> str | None:
    """See `weights.safetensors_problem`; a file that cannot be read is told as such."""
    try:
        return weights.safetensors_problem(file)
    except OSError as error:
        raise unreadable(error, file) from error


def read_config(directory: Path, *, name: str, trusted: bool, trust_option: str = BY_KEY) -> Any:
    """The transformers config; ModelError where it cannot be read or needs code that is not trusted.

    `name`: what the model is called where it is trusted, by `trust_option` as in `checked`.
    """
    from transformers import AutoConfig

    raw = config_file.read(directory)
    if trusted:
        shipped_code.refuse_of_others(directory, name=name)
    if "auto_map" in raw and not trusted and str(raw.get("model_type")) not in known_model_types():
        raise ModelError(
            f"{directory} needs Python code that it ships, which is off by default",
            hint=f"{trust_option}{name} runs it: read its *.py files first",
        )
    with reading_config(directory, "cannot be read", hint="is this a model that transformers 5 knows?"):
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trusted, local_files_only=True)
    return made_dense.described(config)


def reading_config(directory: Path, what: str, *, hint: str = "do the values in config.json belong together?") -> Any:
    """Around a library's call that follows config.json; see `foreign.reading`."""
    file = directory / "config.json"
    return reading(file, what, hint=hint, suspects=partial(config_file.suspects, file))


def on_meta(base: BaseModel) -> Any:
    """The causal LM that config.json describes, on the meta device: shapes without memory. ModelError if it is none."""
    import torch

    decoder.build(base.config)
    with torch.device("meta"), reading_config(base.directory, "describes a model that transformers cannot build"):
        return architecture.build(base.config, trust_remote_code=base.trust_remote_code)


def known_model_types() -> frozenset[str]:
    """Model types that transformers has itself."""
    from transformers import CONFIG_MAPPING

    return frozenset(CONFIG_MAPPING.keys())


def check_architecture(config: Any, *, directory: Path) -> None:
    """Refuse what does not generate text from left to right, and weights quantised otherwise than in NF4."""
    from transformers import AutoModelForMaskedLM

    classes = [str(name) for name in getattr(config, "architectures", None) or ()]
    if scoring := [name for name in classes if name.endswith("ForSequenceClassification")]:
        what = f"{directory} is {scoring[0]}: it scores texts, and writes none"
        hint = "transformers' AutoModelForSequenceClassification opens it; loradock evaluate RUN scores by its run"
        raise ModelError(what, hint=hint)
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if getattr(config, "is_encoder_decoder", False):
        what = f"{directory} is an encoder-decoder ({config.model_type}), not a causal language model"
        raise ModelError(what, hint=DECODERS)
    if architecture.published(config) is None and not remote:
        raise ModelError(f"{directory} is a {config.model_type} model, not a causal language model", hint=DECODERS)
    if inside := architecture.parts_inside(config):
        raise ModelError(
            f"{directory} ({config.model_type}) sees or hears by parts inside its decoder, which cannot be left "
            f"out ({', '.join(inside)})",
            hint="give the text model of its family, as Phi-4-mini is for Phi-4-multimodal",
        )
    text = config.get_text_config(decoder=True)
    masked = type(config) in AutoModelForMaskedLM._model_mapping and not getattr(config, "is_decoder", False)
    if masked or getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        raise ModelError(
            f"{directory} is an encoder ({config.model_type}): its attention sees what comes next, so that there is "
            "nothing to learn by predicting it",
            hint="give a decoder-only model (Llama, Mistral, Qwen, Phi, Gemma, ...)",
        )
    if refused := prequantised.refusal(config):
        raise ModelError(f"{directory} {refused}", hint=prequantised.original_of(directory))
