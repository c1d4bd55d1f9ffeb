"""Export: a model directory becomes one GGUF file and a Modelfile beside it, whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.errors import EnvironmentUnfit, ModelError, UsageError
from loradock.files import staged
from loradock.model import architecture, prequantised
from loradock.model.files import json_object
from loradock.training.run_dir.disk_space import before_output
from loradock.use.gguf import metadata, modelfile, pre_tokenizers, vocabulary, weights
from loradock.use.gguf.metadata import Shape
from loradock.use.gguf.modelfile import Form, form_of, writes_bos
from loradock.use.gguf.vocabulary import Vocabulary
from loradock.use.inference.opener import Origin
from loradock.use.merge import tensors

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

HEADER_BYTES = 64 << 20
"""Names and merges of the largest vocabularies, and what a file system rounds up."""

PROBE_BYTES = 1 << 20
AHEAD = re.compile(r"(?:model\.|language_model\.)*(?:mtp\.|layers\.(?P<layer>\d+)\.)")
"""Of the names in a model's files: layers for multi-token prediction, and those of the decoder by their number."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. `template`: the name of the Modelfile's; None where the GGUF alone holds it."""

    file: Path
    modelfile: Path
    size_bytes: int
    tensors: int
    pre: str
    template: str | None
    notes: tuple[str, ...]


def export(origin: Origin, file: Path, *, type_name: str, progress: Callable[[int, int], None]) -> Exported:
    """Write `file`, which does not exist yet, and FILE.Modelfile. `type_name`: a key of `weights.TYPES`.

    Raises UsageError for an adapter or a file that exists, ModelError where llama.cpp has not the architecture or the
    tokenizer, or a weight is not finite, EnvironmentUnfit without the package gguf, and DiskFull, NotWritable,
    StorageError or Locked; then no file appears.
    """
    refuse(origin, file)
    origin.check_finite()
    shape = metadata.read(origin.base.config)
    tensors_to_write = weights.of_model(origin.base, shape, type_name=type_name)
    rows = next(weight.shape[0] for weight in tensors_to_write if weight.name == "token_embd.weight")
    vocabulary_read = vocabulary.read(origin.directory, rows=rows)
    size = sum(map(weights.size, tensors_to_write))
    before_output(file, size + HEADER_BYTES)
    special = Tokens.of(origin, vocabulary_read)
    with staged.file(file) as place:
        writer = _writer(place, origin, shape, vocabulary_read, special, type_name=type_name)
        try:
            _write(writer, tensors_to_write, shape, progress)
        except OSError as error:
            raise (_reason(place) or error) from error
        modelfile_path = file.with_name(f"{file.name}.Modelfile")
        ends = [vocabulary_read.tokens[end] for end in special.ends]
        text = modelfile.text(file, special.form, eos=vocabulary_read.tokens[special.eos], ends=ends)
        with staged.file(modelfile_path, replaces=True) as text_place:
            text_place.write_text(text, encoding="utf-8")
    return Exported(
        file=file,
        modelfile=modelfile_path,
        size_bytes=file.stat().st_size,
        tensors=len(tensors_to_write),
        pre=vocabulary_read.pre,
        template=special.form.name if special.form else None,
        notes=_notes(shape, vocabulary_read.pre, origin.base),
    )


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Ids that have a meaning. `ends`: all that end an answer; `adds_bos`: prompts of training begin with BOS."""

    bos: int | None
    eos: int
    pad: int | None
    unknown: int | None
    ends: tuple[int, ...]
    adds_bos: bool
    template: str | None
    form: Form | None

    @classmethod
    def of(cls, origin: Origin, vocabulary_read: Vocabulary) -> Tokens:
        """Those of a model directory."""
        from loradock.model.tokenizer import open_tokenizer

        tokenizer: Any = open_tokenizer(origin.base, directory=origin.directory)
        if tokenizer.chat_template and origin.lineage:
            # other programs know nothing of training.json: they get a template that writes what training read
            arguments = origin.lineage.template_arguments
            tokenizer.chat_template = modelfile.with_arguments(tokenizer.chat_template, arguments)
        settings = origin.directory / "generation_config.json"
        content = json_object(settings) if settings.is_file() else {}
        eos = content.get("eos_token_id")
        listed = eos if isinstance(eos, list) else [] if eos is None else [eos]
        ends = {
            index
            for index, kind in enumerate(vocabulary_read.types)
            if kind in (vocabulary.CONTROL, vocabulary.USER_DEFINED)
        }
        ends -= {tokenizer.eos_token_id}
        return cls(
            bos=vocabulary_read.id_of(tokenizer.bos_token),
            eos=tokenizer.eos_token_id,
            pad=vocabulary_read.id_of(_own_pad(origin.directory)),
            unknown=vocabulary_read.id_of(tokenizer.unk_token),
            ends=(tokenizer.eos_token_id, *dict.fromkeys(entry for entry in listed if entry in ends)),
            adds_bos=_adds_bos(tokenizer),
            template=tokenizer.chat_template,
            form=form_of(tokenizer),
        )


def _own_pad(folder: Path) -> str | None:
    """The pad token that the tokenizer names itself; where it has none, an opened one takes EOS for it."""
    settings = json_object(folder / "tokenizer_config.json")
    pad = settings.get("pad_token")
    return pad.get("content") if isinstance(pad, dict) else pad


def refuse(origin: Origin, file: Path) -> None:
    """UsageError for what cannot be exported, EnvironmentUnfit without the package."""
    if origin.has_adapter:
        hint = f"loradock merge {origin.directory} MERGED, then loradock export gguf MERGED -o {file}"
        raise UsageError(f"{origin.directory} is an adapter; GGUF holds whole models", hint=hint)
    if prequantised.settings(origin.base.config):
        what = f"{origin.base.directory} comes quantised, and GGUF is made of 16-bit weights"
        raise ModelError(what, hint="loradock merge puts an adapter onto them in 16 bit; or give the original model")
    staged.refuse_existing(file, is_folder=False)
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise EnvironmentUnfit("the package gguf is not installed", hint="pip install gguf==0.19.0") from error


def _adds_bos(tokenizer: Any) -> bool:
    """Whether prompts begin with BOS: as the chat template writes them, else as the tokenizer does.

    llama.cpp puts BOS before what a template wrote where the file says so, and takes a second one away.
    """
    if tokenizer.chat_template:
        return writes_bos(tokenizer)
    return tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]


def _writer(
    place: Path, origin: Origin, shape: Shape, vocabulary_read: Vocabulary, special: Tokens, *, type_name: str
) -> Any:
    import gguf

    writer = gguf.GGUFWriter(place, shape.architecture)
    writer.add_type("model")
    writer.add_name(origin.directory.resolve().name)
    writer.add_file_type(gguf.LlamaFileType[weights.FILE_TYPES[type_name]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    metadata.put(writer, shape, rows=len(vocabulary_read.tokens))
    writer.add_tokenizer_model(vocabulary_read.model)
    writer.add_tokenizer_pre(vocabulary_read.pre)
    writer.add_token_list(vocabulary_read.tokens)
    writer.add_token_types(vocabulary_read.types)
    if vocabulary_read.scores:
        writer.add_token_scores(vocabulary_read.scores)
    if vocabulary_read.merges:
        writer.add_token_merges(vocabulary_read.merges)
    writer.add_add_space_prefix(vocabulary_read.adds_space)
    writer.add_add_bos_token(special.adds_bos)
    writer.add_eos_token_id(special.eos)
    other_ends = [end for end in special.ends if end != special.eos]
    for put, index in (
        (writer.add_bos_token_id, special.bos),
        (writer.add_unk_token_id, special.unknown),
        (writer.add_pad_token_id, special.pad),
        (writer.add_eot_token_id, other_ends[0] if other_ends else None),
    ):
        if index is not None:
            put(index)
    if special.template:
        writer.add_chat_template(special.template)
    return writer


def _write(writer: Any, entries: list[weights.Weight], shape: Shape, progress: Callable[[int, int], None]) -> None:
    """Header and metadata, then one tensor after another."""
    import gguf
    import numpy as np

    factors = np.array(shape.factors, dtype=np.float32)
    if len(factors):
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    dtypes = {"F32": np.dtype("f4"), "F16": np.dtype("f2"), "BF16": np.dtype("i2"), "Q8_0": np.dtype("i1")}
    for weight in entries:
        kind = gguf.GGMLQuantizationType[weight.type]
        writer.add_tensor_info(weight.name, weight.shape, dtypes[weight.type], weights.size(weight), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if len(factors):
            writer.write_tensor_data(factors)
        for number, weight in enumerate(entries, 1):
            writer.write_tensor_data(weights.values(weight, shape))
            progress(number, len(entries))
    finally:
        writer.close()


def _reason(place: Path) -> OSError | None:
    """Why the file takes no more: numpy's short write has no errno. None where it does take more."""
    try:
        with place.open("ab") as stream:
            stream.write(bytes(PROBE_BYTES))
    except OSError as error:
        return error
    return None


def _notes(shape: Shape, pre: str, base: BaseModel) -> tuple[str, ...]:
    cut = f"context_length is {shape.context}: llama.cpp has no sliding window for this architecture"
    part = "the language model alone: llama.cpp has vision towers in a file of their own (--mmproj)"
    rounded = "llama.cpp rounds YaRN's bounds, which this model does not (truncate: false): its answers differ slightly"
    marks = "llama.cpp cuts words with combining marks (Hindi, Thai) otherwise than this tokenizer: other ids for these"
    ahead = "layers for multi-token prediction are left out: answers are the same, without drafts"
    names = [entry.name for file in base.weight_files for entry in tensors.entries(file)]
    notes = (
        (cut, shape.is_windowed),
        (part, architecture.is_wrapper(base.config)),
        (rounded, shape.scaling.get("truncate") is False),
        (marks, pre in pre_tokenizers.CUT_MARKS),
        (ahead, predicts_ahead(names, layers=shape.layers)),
    )
    return tuple(note for note, holds in notes if holds)


def predicts_ahead(names: Iterable[str], *, layers: int) -> bool:
    """Whether tensors of these names predict further tokens: below `mtp`, or in a layer behind those of the decoder."""
    found = filter(None, map(AHEAD.match, names))
    return any(match["layer"] is None or int(match["layer"]) >= layers for match in found)
