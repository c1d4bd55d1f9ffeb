"""Bases that come quantised: NF4 as bitsandbytes writes it is opened as it is, others (`model.stored`) made dense.

A weight `NAME` lies there as packed numbers, two to a byte, beside `NAME.absmax`, `NAME.quant_map`, with double
quantisation `NAME.nested_absmax` and `NAME.nested_quant_map`, and `NAME.quant_state.bitsandbytes__nf4`, a JSON text of
its shape, dtype and blocks. Imports neither torch nor transformers.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.catalog.storages import NF4, NF4_SCALES, Storage
from loradock.errors import ModelError
from loradock.files import regular
from loradock.files.foreign import unreadable
from loradock.model import headers
from loradock.model.stored import FORMATS

if TYPE_CHECKING:
    from loradock.config.sections.model import ModelConfig

METHOD = "bitsandbytes"
STATE = f".quant_state.{METHOD}__{NF4.name}"
PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", STATE)
"""What follows the name of a weight in the names of the tensors that belong to it."""
MOST_STATE_BYTES = 4096
MOST_CARD_BYTES = 65536
CARD_BASE = re.compile(r"^base_model:\s*(?:-\s*)?[\"']?([\w.-]+/[\w.-]+)", re.MULTILINE)
ORIGINAL = "give the original 16-bit model directory"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A weight that files hold in NF4: its shape and dtype once it is dense, and its blocks."""

    shape: tuple[int, ...]
    dtype: str
    block: int
    group: int | None

    @property
    def count(self) -> int:
        """Weights."""
        return prod(self.shape)


def settings(config: Any) -> dict[str, Any]:
    """`quantization_config` of a transformers config or of a parsed config.json; empty where there is none."""
    raw = config.get("quantization_config") if isinstance(config, dict) else getattr(config, "quantization_config", {})
    return dict(raw if isinstance(raw, Mapping) else raw.to_dict()) if raw else {}


def is_nf4(config: Any) -> bool:
    """Whether a base comes in NF4, where `refusal` has nothing against it."""
    return settings(config).get("quant_method") == METHOD


def refusal(config: Any) -> str | None:
    """Why a base that is quantised already is not opened, to be said after its name; None where it is, or is not."""
    quantised = settings(config)
    if not quantised:
        return None
    method = quantised.get("quant_method")
    if form := FORMATS.get(str(method)):
        return form.refusal(quantised)
    if method != METHOD:
        return f"is already quantised ({method}); loradock quantises the 16-bit weights itself"
    if not (quantised.get("load_in_4bit") or quantised.get("_load_in_4bit")):
        return f"is already quantised ({method}, 8 bit); of such files only NF4 is opened"
    kind, storage = quantised.get("bnb_4bit_quant_type", "fp4"), quantised.get("bnb_4bit_quant_storage", "uint8")
    if kind != NF4.name:
        return f"is already quantised ({method}, {kind}); of such files only NF4 is opened"
    return None if storage == "uint8" else f"holds NF4 as {storage}, and only uint8 is opened"


def original_of(directory: Path) -> str:
    """What to give in the place of a base that is not opened: the model that its card says it was made from."""
    base_name = _card_base(directory)
    return f"give the 16-bit model that it was made from: {base_name}" if base_name else ORIGINAL


def _card_base(directory: Path) -> str | None:
    """`base_model` of a model's card (README.md), where that is the id of a model."""
    card = directory / "README.md"
    if not card.is_file():
        return None
    with regular.opened(card) as stream:
        front = stream.read(MOST_CARD_BYTES).decode(errors="replace").partition("\n---")[0]
    found = CARD_BASE.search(front)
    return found[1] if found else None


def plain(config: Any) -> Any:
    """The config of the same model, not quantised."""
    if not settings(config):
        return config
    unquantised = copy.deepcopy(config)
    del unquantised.quantization_config
    return unquantised


def computing_in(config: Any, dtype: Any) -> Any:
    """The config of the same quantised model, whose products are made in this torch dtype; "auto": as its files say."""
    asked = copy.deepcopy(config)
    if not isinstance(dtype, str):
        asked.quantization_config = {**settings(config), "bnb_4bit_compute_dtype": str(dtype).removeprefix("torch.")}
    return asked


def packed(files: Iterable[Path]) -> dict[str, Packed]:
    """{weight: what the files hold of it} of weights in NF4. ModelError for a state that is none, or another's."""
    weights: dict[str, Packed] = {}
    stored: dict[str, int] = {}
    for file in files:
        if file.suffix != ".safetensors":
            continue
        try:
            entries = headers.header(file)
            stored |= {name: prod(entry["shape"]) for name, entry in entries.items() if entry["dtype"] == "U8"}
            with regular.opened(file) as stream:
                start = 8 + int.from_bytes(stream.read(8), "little")
                for name, entry in entries.items():
                    if name.endswith(STATE):
                        begin, end = entry["data_offsets"]
                        stream.seek(start + begin)
                        text = stream.read(min(end - begin, MOST_STATE_BYTES))
                        weights[name.removesuffix(STATE)] = _packed(text, file=file, name=name)
        except headers.BadHeader as wrong:
            raise ModelError(f"{file} {wrong}", hint="copy it again") from wrong
        except OSError as error:
            raise unreadable(error, file) from error
    for name, weight in weights.items():
        if 2 * stored.get(name, 0) != weight.count:
            what = f"{name} is to hold {weight.count:,} weights in NF4, and its file has {stored.get(name, 0):,} bytes"
            raise ModelError(what, hint="copy the files again")
    return weights


def _packed(text: bytes, *, file: Path, name: str) -> Packed:
    try:
        state = json.loads(text)
        group = state.get("nested_blocksize")
        return Packed(
            shape=tuple(int(size) for size in state["shape"]),
            dtype=str(state["dtype"]),
            block=int(state["blocksize"]),
            group=None if group is None else int(group),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: {name} does not say how its weight is quantised", hint="copy it again") from error


def dense_shapes(shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, Packed]) -> dict[str, tuple[int, ...]]:
    """Tensors by name as a model has them: weights in NF4 in their own shape, without what belongs to them."""
    parts = {f"{name}{part}" for name in weights for part in PARTS}
    own = {name: weight.shape for name, weight in weights.items()}
    return {name: own.get(name, shape) for name, shape in shapes.items() if name not in parts}


def check(config: Any, files: tuple[Path, ...], model_config: ModelConfig, *, directory: Path) -> dict[str, Packed]:
    """The weights in NF4 of a base whose files have such; ModelError where they are not what the configuration says."""
    if not is_nf4(config):
        return {}
    storage: Storage = model_config.storage
    if storage != NF4:
        raise ModelError(
            f"{directory} holds its weights in NF4, and {storage.name} is asked for",
            hint=f"to train: --set model.quantization={NF4.name}; to use: --quantization {NF4.name}; or {ORIGINAL}",
        )
    weights = packed(files)
    if files and not weights:
        raise ModelError(f"{directory} has no weights in NF4, and its config.json says so", hint=ORIGINAL)
    groups = {weight.group for weight in weights.values()}
    is_double = None not in groups
    if groups and is_double != model_config.double_quant:
        raise ModelError(
            f"{directory} holds NF4 {'with' if is_double else 'without'} double quantisation",
            hint=f"--set model.double_quant={str(is_double).lower()}",
        )
    blocks = {(weight.block, weight.group) for weight in weights.values()}
    known = {(NF4_SCALES.block, NF4_SCALES.group if is_double else None)}
    if blocks - known:
        raise ModelError(f"{directory} holds NF4 in blocks of {sorted(blocks - known)[0][0]}", hint=ORIGINAL)
    return weights


def as_stored(config: Any, files: tuple[Path, ...], model_config: ModelConfig) -> ModelConfig:
    """The same, with the storage that the base's files have, where they have one."""
    if not is_nf4(config):
        return model_config
    is_double = all(weight.group for weight in packed(files).values())
    return model_config.model_copy(update={"quantization": NF4.name, "double_quant": is_double})
