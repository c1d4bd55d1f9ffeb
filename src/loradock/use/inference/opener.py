"""The one opener: `RUN | ADAPTER | MERGED | BASE` -> model, tokenizer, and the training's own way from text to ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from loradock.catalog.storages import NF4
from loradock.config.sections.model import ModelConfig
from loradock.errors import EnvironmentUnfit, InputMissing, ModelError, NoCheckpoint, UsageError
from loradock.model import adapter_tensors, finite, load, opening, patterns, prequantised, reward_head, source
from loradock.model.adapter_files import check, settings_of, shapes_of
from loradock.model.content import digest
from loradock.model.dense import densify
from loradock.model.files import check_readable
from loradock.model.tokenizer import open_tokenizer
from loradock.model.whole import quiet
from loradock.text.terminal import first_line
from loradock.training.lineage import Lineage
from loradock.training.run_dir.paths import ADAPTER, CHECKPOINTS, RECORD
from loradock.training.run_dir.resume import read
from loradock.use.inference.base import BASE_OPTION, check_weights, checked, find_base
from loradock.use.inference.prompts import Prompts

SETTINGS, MERGED, CONFIG = "adapter_config.json", "merge.json", "config.json"
USED = (".safetensors", ".json", ".jinja", ".model")
"""Suffixes of the files of an adapter or model that answers depend on."""
FIRST_BFLOAT16 = (8, 0)
Kind = Literal["run", "adapter", "merged", "base"]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a path is, and how its weights came to be; nothing large is read yet.

    `directory`: of a run its adapter, else what was given. `base`: the weights to load, a merged model's or base's own.
    `asked`: how they are loaded. `lineage`: how rows became tokens; None where nobody recorded it. `record`: run.json;
    empty where there is no run.
    """

    kind: Kind
    directory: Path
    base: source.BaseModel
    asked: ModelConfig
    lineage: Lineage | None
    record: Mapping[str, Any]

    @property
    def has_adapter(self) -> bool:
        """True where weights are a base's with an adapter on top."""
        return self.kind in ("run", "adapter")

    @cached_property
    def weights(self) -> str:
        """`model.content.digest` of the files that `base` has."""
        return digest(self.base.weight_files)

    def check_base(self) -> None:
        """ModelError where the weights below an adapter are not those that training recorded."""
        if self.has_adapter and self.lineage:
            check_weights(self.base, self.lineage, found=lambda: self.weights)

    def check_finite(self) -> None:
        """ModelError where a weight of the base is NaN or infinity; `load_whole` looks itself."""
        finite.check(self.base.weight_files)

    @property
    def digest(self) -> str:
        """sha256 over all that its answers depend on: weights, adapter, tokenizer, and how the base is loaded."""
        files_used = [file for file in self.directory.iterdir() if file.suffix in USED]
        parts = [self.weights, digest(files_used), self.asked.quantization, self.asked.double_quant]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A frozen model in evaluation mode, its tokenizer, and how text becomes ids. `dtype`: that of matrix products."""

    model: Any
    tokenizer: Any
    prompts: Prompts
    origin: Origin
    dtype: torch.dtype

    @property
    def has_adapter(self) -> bool:
        """True where the model is a PeftModel, whose base can be asked alone."""
        return self.origin.has_adapter

    @property
    def scores(self) -> bool:
        """True of a reward model, whose head scores answers."""
        return reward_head.of(self.model) is not None

    def written(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens and white space as they are."""
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, the base answers alone."""
        with self.model.disable_adapter():
            yield

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around forward passes: no gradients, and matrix products in `dtype`."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.dtype != torch.float32:
                stack.enter_context(torch.autocast(self.model.device.type, dtype=self.dtype, cache_enabled=False))
            yield


def find(
    given: Path, *, quantization: str | None = None, base: str | None = None, trusted: Collection[str] = ()
) -> Origin:
    """What `given` is: the directory of a run (its finished adapter), an adapter, a merged model, or a base.

    `quantization`: how the base is stored; None: as in training, and of a whole model as its files hold it. `base`:
    where the base lies now, in place of what was recorded. `trusted`: names of models whose own code a person lets run;
    a record can name a base, and neither trust it nor have it fetched. InputMissing where it is none of these,
    NoCheckpoint for a run without an adapter, ModelError for an adapter of which nobody says how its base was stored,
    and what `find_base` raises.
    """
    directory = directory_of(given)
    if (directory / SETTINGS).is_file():
        kind = "adapter" if directory == given else "run"
        return _of_adapter(directory, kind=kind, quantization=quantization, base=base, trusted=trusted)
    if base is not None:
        raise UsageError(f"{given} is a whole model: it has no other base", hint=f"leave out {BASE_OPTION}")
    model_config = ModelConfig.model_validate({"name": str(given), "quantization": quantization or "none"})
    whole_model = checked(model_config, given, trusted=trusted)
    if quantization in (None, NF4.name):
        model_config = prequantised.as_stored(whole_model.config, whole_model.weight_files, model_config)
    return Origin(
        kind="merged" if (given / MERGED).is_file() else "base",
        directory=given,
        base=whole_model,
        asked=model_config,
        lineage=Lineage.read(given),
        record={},
    )


def directory_of(given: Path) -> Path:
    """The adapter or model directory that is meant: of a run its adapter. InputMissing or NoCheckpoint if none is."""
    check_readable([given / name for name in (RECORD, SETTINGS, CONFIG, f"{ADAPTER}/{SETTINGS}")])
    if (given / RECORD).is_file():
        if (given / ADAPTER / SETTINGS).is_file():
            return given / ADAPTER
        what = f"the run in {given} is not finished: it has no adapter yet"
        has_checkpoint = any((given / CHECKPOINTS).glob("checkpoint-*"))
        remedy = f"checkpoint export {given} -o ADAPTER" if has_checkpoint else f"train --resume --output {given}"
        raise NoCheckpoint(what, hint=f"loradock {remedy}")
    if not ((given / SETTINGS).is_file() or (given / CONFIG).is_file()):
        what = f"{given} holds neither a run, nor an adapter, nor a model"
        raise InputMissing(what, hint=f"name the directory that holds {RECORD}, {SETTINGS} or {CONFIG}")
    return given


def _of_adapter(
    directory: Path, *, kind: Kind, quantization: str | None, base: str | None, trusted: Collection[str]
) -> Origin:
    run = directory.parent
    record = read(run) if directory.name == ADAPTER and (run / RECORD).is_file() else {}
    lineage = Lineage.found(directory)
    model_config = _asked(directory, lineage, quantization=quantization)
    base_found = find_base(
        directory, model_config, named=lineage.base if lineage else None, given=base, trusted=trusted
    )
    if lineage is None and model_config.quantization == NF4.name:
        model_config = prequantised.as_stored(base_found.config, base_found.weight_files, model_config)
    return Origin(
        kind=kind,
        directory=directory,
        base=base_found,
        asked=model_config.model_copy(update={"name": base_found.name, "revision": base_found.revision}),
        lineage=lineage,
        record=record,
    )


def _asked(directory: Path, lineage: Lineage | None, *, quantization: str | None) -> ModelConfig:
    """How the base is loaded, as in training or as asked."""
    if lineage:
        model_config = lineage.model()
        return model_config.model_copy(update={"quantization": quantization}) if quantization else model_config
    if quantization is None:
        what = f"nobody recorded how the base of {directory} was stored in training"
        raise ModelError(what, hint="--quantization nf4 for an adapter of QLoRA, --quantization none for plain LoRA")
    return ModelConfig.model_validate({"quantization": quantization})


def open_model(
    given: Path,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    base: str | None = None,
    trusted: Collection[str] = (),
    template: str | None = None,
    may_score: bool = False,
) -> Opened:
    """The model of a path, with its adapter on top where it has one; a reward model where it `may_score`.

    Raises as `find` and `load.load_whole` do, and ModelError for another base than the adapter was trained on.

    NF4 weights are held dense, with the values that NF4 gives them, where memory allows: the same model, and faster.
    """
    origin = find(given, quantization=quantization, base=base, trusted=trusted)
    return opened(origin, dtype=dtype, device=device, template=template, may_score=may_score)


def opened(
    origin: Origin,
    *,
    dtype: str = "auto",
    device: str = "auto",
    template: str | None = None,
    may_score: bool = False,
) -> Opened:
    """See `open_model`. `template`: that of a model which brings none, by its name."""
    if origin.has_adapter and not may_score:
        reward_head.refuse(settings_of(origin.directory), origin.directory)
    origin.check_base()
    place = chosen_device(device)
    computed = chosen_dtype(origin.asked.compute_dtype if dtype == "auto" else dtype, place)
    tokenizer = open_tokenizer(origin.base, directory=origin.directory)
    with quiet():
        model = load.load_whole(origin.base, origin.asked, dtype=computed, device=place)
        densify(model, dtype=computed)
        model = with_adapter(model, origin.directory) if origin.has_adapter else model
    settings: Any = getattr(model, "generation_config", None)
    prompts = Prompts.of(tokenizer, origin.lineage, generation=settings, template_name=template)
    return Opened(model=model.eval(), tokenizer=tokenizer, prompts=prompts, origin=origin, dtype=computed)


def with_adapter(model: Any, adapter: Path) -> Any:
    """The PeftModel with the adapter of a directory. ModelError where it does not fit the base, or is damaged."""
    from peft import PeftModel

    settings, shapes = check(adapter), shapes_of(adapter)
    patterns.check(adapter, settings, (name for name, _ in model.named_modules()))
    base = getattr(model, "name_or_path", "the base")
    filled = opening.fit(model, settings, shapes, adapter=adapter)
    try:
        layered = PeftModel.from_pretrained(model, str(adapter))
    except Exception as error:  # what PEFT says of settings that it does not know has any type
        what = f"the adapter in {adapter} does not load: {first_line(error)}"
        raise ModelError(what, hint="is it of this base?") from error
    if settings.peft_type == "LORA":
        adapter_tensors.read(layered, shapes, adapter=adapter, base=base, filled=filled)
    return layered


def chosen_device(asked: str) -> str:
    """cuda:0 where there is a GPU and nothing else was asked for. EnvironmentUnfit for cuda without one."""
    has_gpu = torch.cuda.is_available()
    if asked == "cuda" and not has_gpu:
        raise EnvironmentUnfit("there is no usable GPU", hint="loradock env-check, or --device cpu")
    return "cuda:0" if has_gpu and asked != "cpu" else "cpu"


def chosen_dtype(asked: str, device: str) -> torch.dtype:
    """As `plan.knobs.compute_dtype` decides for a run."""
    if device == "cpu":
        return torch.bfloat16 if asked == "bfloat16" else torch.float32
    if asked != "auto":
        return getattr(torch, asked)
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= FIRST_BFLOAT16 else torch.float16
