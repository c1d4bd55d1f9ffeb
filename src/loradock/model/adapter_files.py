"""The files of an adapter directory from outside: `adapter_config.json` and the weights' header, read by one reader.

PEFT makes layers as the settings say before it looks at the weights: a rank that these do not have is refused first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from loradock.errors import InputMissing, ModelError, Problem
from loradock.files import sidecar
from loradock.model import finite
from loradock.model.config_file import MOST_LAYERS
from loradock.model.files import check_readable

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HINT = "copy the adapter directory again"
MOST_BYTES = 4 << 20
MOST_TARGETS, MOST_PATTERNS, MOST_MODULES = 10_000, 1_000, 100
"""PEFT goes through all of them for each module of the base: at most half a minute each of a model of 60 layers. A rank
for each of 80 layers' linear modules are 560 patterns."""


def _replicated(ranges: list[list[int]]) -> list[list[int]]:
    layers = sum(max(0, last - first) for first, last in ranges)
    if layers > MOST_LAYERS:
        raise ValueError(f"makes {layers:,} layers, where {MOST_LAYERS:,} are the most that can be meant")
    return ranges


Rank = Annotated[int, Field(ge=1, le=1_000_000)]
Layer = Annotated[int, Field(ge=0, le=10_000)]
Scale = Annotated[float, Field(ge=-1e6, le=1e6)]
Text = Annotated[str, StringConstraints(max_length=4096)]
Row = Annotated[int, Field(ge=0, le=10_000_000)]
Rows = Annotated[list[Row], Field(max_length=100_000)]
Targets = Annotated[list[Text], Field(max_length=MOST_TARGETS)]
Modules = Annotated[list[Text], Field(max_length=MOST_MODULES)]
Range = Annotated[list[Layer], Field(min_length=2, max_length=2)]
Start = Annotated[str, StringConstraints(pattern=r"^([a-z_]{1,40}|pissa_niter_\d{1,2})$")]
"""Of init_lora_weights: PiSSA counts its iterations in the name."""


class LoftQ(BaseModel):
    """loftq_config: what it repeats."""

    model_config = ConfigDict(extra="allow", strict=True)

    loftq_iter: Annotated[int, Field(ge=0, le=100)] = 1


class Settings(BaseModel):
    """adapter_config.json, as far as it is read here or decides what PEFT allocates. What else it has passes to PEFT.

    `base_model_name_or_path` and `revision`: where the base lay; `modules_to_save`: whole modules beside LoRA. What
    takes time or memory has a range; `megatron_config` would import a module by its name, and has to be absent.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    peft_type: Text
    base_model_name_or_path: Text | None = None
    revision: Text | None = None
    r: Rank = 8
    rank_pattern: Annotated[dict[Text, Rank], Field(max_length=MOST_PATTERNS)] = {}
    lora_alpha: Scale = 8
    alpha_pattern: Annotated[dict[Text, Scale], Field(max_length=MOST_PATTERNS)] = {}
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    init_lora_weights: bool | Start | None = True
    loftq_config: LoftQ | None = None
    target_modules: Text | Targets | None = None
    exclude_modules: Text | Targets | None = None
    target_parameters: Targets | None = None
    modules_to_save: Modules | None = None
    trainable_token_indices: Rows | Annotated[dict[Text, Rows], Field(max_length=MOST_MODULES)] | None = None
    layers_pattern: Text | Modules | None = None
    layers_to_transform: int | Annotated[list[int], Field(max_length=MOST_LAYERS)] | None = None
    layer_replication: Annotated[list[Range], Field(max_length=MOST_LAYERS), AfterValidator(_replicated)] | None = None
    megatron_config: None = None
    use_dora: bool = False

    @property
    def highest_rank(self) -> int:
        """Of any layer."""
        return max([self.r, *self.rank_pattern.values()])

    @property
    def places(self) -> dict[str, set[int]]:
        """Which rows are trained, by the end of the module's name, as PEFT has it: of the embedding where none is."""
        indices = self.trainable_token_indices or {}
        named = indices if isinstance(indices, dict) else {"embed_tokens": indices}
        return {name: set(rows) for name, rows in named.items()}

    @property
    def token_rows(self) -> int:
        """Rows that the embedding has to have for them; 0 without."""
        return max((row + 1 for rows in self.places.values() for row in rows), default=0)


def settings_of(adapter: Path) -> Settings:
    """InputMissing where the file cannot be read, ModelError with each field that is none of PEFT's."""
    file = adapter / SETTINGS
    check_readable([file])
    try:
        size_bytes = file.stat().st_size
    except OSError as error:
        raise InputMissing(f"{file} cannot be read: {error.strerror}", hint=HINT) from error
    if size_bytes > MOST_BYTES:
        raise ModelError(f"{file} has {size_bytes:,} bytes, where {MOST_BYTES:,} are the most", hint=HINT)
    settings = sidecar.read(file, Settings, hint=HINT, what="is damaged, or of a PEFT that is not known")
    if settings is None:
        raise InputMissing(f"{file} does not exist", hint=HINT)
    return settings


def token_rows_of(directory: Path) -> int:
    """Rows of the embedding that the adapter of a directory trains single ones of; 0 where it holds no adapter."""
    return settings_of(directory).token_rows if (directory / SETTINGS).is_file() else 0


def shapes_of(adapter: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of the weights' file by their names; no tensor is read. ModelError where it is none, or is cut."""
    from safetensors import SafetensorError, safe_open

    file = adapter / WEIGHTS
    if not file.is_file():
        raise InputMissing(f"{file} does not exist", hint="name an adapter directory, or its run")
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is truncated, or not a safetensors file: {error}", hint=HINT) from error


def check(adapter: Path) -> Settings:
    """The settings of an adapter whose files are there and belong together, and whose numbers are finite.

    ModelError for a kind other than LoRA (others fetch what they name), for ranks that the weights do not have, and for
    tensors with NaN or infinity.
    """
    settings = settings_of(adapter)
    if settings.peft_type != "LORA":
        what = f"{adapter} is an adapter of PEFT's type {settings.peft_type}: loradock opens LoRA and DoRA"
        raise ModelError(what, hint=f"serve it by PEFT: PeftModel.from_pretrained(base, {str(adapter)!r})")
    widest = max((size for shape in shapes_of(adapter).values() for size in shape), default=0)
    if settings.highest_rank > widest:
        what = f"rank {settings.highest_rank:,} (r, rank_pattern), and no tensor is longer than {widest:,}"
        problem = Problem(what=what, file=str(adapter / SETTINGS))
        raise ModelError(f"the settings of {adapter} are not those of its weights", hint=HINT, problems=[problem])
    finite.check([adapter / WEIGHTS], hint="train again with a lower train.learning_rate, or take another checkpoint")
    return settings


def as_json(settings: Settings) -> dict[str, Any]:
    """As adapter_config.json has it, with what is passed on to PEFT."""
    return settings.model_dump(mode="json", exclude_unset=True)
