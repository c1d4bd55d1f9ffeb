"""How a trained model embeds, as `embedding.json` beside an adapter says it: template, pooling, attention, lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from loradock.catalog.storages import StorageName
from loradock.config.schema import RunConfig
from loradock.config.sections.model import ModelConfig
from loradock.config.sections.values import NamedPlace, Section, TextLength
from loradock.data.pairs.preparer import PairTask
from loradock.data.pairs.template import EmbeddingTemplate, resolve
from loradock.data.special import of_contents
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ModelError, StorageError
from loradock.files import sidecar
from loradock.training.run_dir import recorded
from loradock.training.run_dir.paths import RECORD

FILE = "embedding.json"


class Base(Section):
    """The model that was trained: as the run named it, and the commit of one from a hub."""

    name: NamedPlace
    revision: str | None


class Template(Section):
    """See `EmbeddingTemplate`."""

    name: str
    source: str
    tokens: dict[str, str]


class Recipe(Section):
    """All that a vector depends on besides weights, tokenizer and text; the keys are those of a configuration."""

    base: Base
    quantization: StorageName
    double_quant: bool
    compute_dtype: Literal["auto", "bfloat16", "float16", "float32"]
    template: Template
    pooling: Literal["mean", "weightedmean", "lasttoken", "cls"]
    attention: Literal["bidirectional", "causal"]
    pool_instruction: bool
    query_length: TextLength
    passage_length: TextLength
    special_tokens: Literal["as_text", "as_control"]

    @classmethod
    def of(cls, config: RunConfig, tokenizer: Any, *, base: Mapping[str, Any]) -> Self:
        """That of a run; `base` as its record has it. Raises what `template.resolve` raises."""
        asked, model = config.embedding, config.model
        found = resolve(asked.template, spec=TokenizerSpec.of(tokenizer))
        return cls(
            base=Base(name=base["name"], revision=base["revision"]),
            quantization=model.quantization,
            double_quant=model.double_quant,
            compute_dtype=model.compute_dtype,
            template=Template(name=found.name, source=found.source, tokens=found.tokens),
            pooling=asked.pooling,
            attention=asked.attention,
            pool_instruction=asked.pool_instruction,
            query_length=asked.query_length,
            passage_length=asked.passage_length,
            special_tokens=of_contents(config.data.special_tokens),
        )

    @classmethod
    def recorded(cls, content: Mapping[str, Any], directory: Path) -> Self:
        """What run.json of the run in a directory keeps of it. StorageError where that is something else."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            file = directory / RECORD
            problems = sidecar.wrong(error, file, "embedding")
            raise StorageError(f"{file} does not say how it embeds", hint=recorded.HINT, problems=problems) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """That of an adapter or model directory. ModelError where it has none, or one that is wrong."""
        content = sidecar.read(folder / FILE, cls, hint=HINT)
        if content is None:
            what = f"{folder} does not say how it embeds: {FILE} is missing"
            hint = f"training with objective embedding or gritlm writes it; if it was lost: cp ADAPTER/{FILE} {folder}/"
            raise ModelError(what, hint=hint)
        return content

    def write(self, folder: Path) -> None:
        """Put it into an adapter or model directory."""
        sidecar.write(folder / FILE, self)

    def task(self, tokenizer: Any) -> PairTask:
        """What is done to each text."""
        return PairTask(
            spec=TokenizerSpec.of(tokenizer),
            template=EmbeddingTemplate(self.template.name, self.template.source, self.template.tokens),
            query_length=self.query_length,
            passage_length=self.passage_length,
            special_tokens=self.special_tokens,
        )

    def model(self, name: str, *, revision: str | None, quantization: str | None = None) -> ModelConfig:
        """The base as it is to be loaded; `quantization` None: as it was trained."""
        kept = {"double_quant": self.double_quant, "compute_dtype": self.compute_dtype}
        chosen = {"quantization": quantization or self.quantization}
        return ModelConfig.model_validate({"name": name, "revision": revision, **kept, **chosen})


HINT = "copy the adapter directory again; loradock writes it when a run ends"
