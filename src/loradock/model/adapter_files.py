"""The files of an adapter directory from outside: `adapter_config.json` and the weights' header, read by one reader.

PEFT makes layers as the settings say before it looks at the weights: a rank that these do not have is refused first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from loradock import foreign_json
from loradock.errors import InputMissing, ModelError, Problem

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HINT = "copy the adapter directory again"
Rank = Annotated[int, Field(ge=1, le=1_000_000)]
Layer = Annotated[int, Field(ge=0, le=10_000)]
Scale = Annotated[float, Field(ge=-1e6, le=1e6)]
Text = Annotated[str, StringConstraints(max_length=4096)]


class Settings(BaseModel):
    """adapter_config.json, as far as it is read here or decides what PEFT allocates. What else it has passes to PEFT.

    `base_model_name_or_path` and `revision`: where the base lay; `modules_to_save`: whole modules beside LoRA.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    peft_type: Text
    base_model_name_or_path: Text | None = None
    revision: Text | None = None
    r: Rank = 8
    rank_pattern: dict[str, Rank] = {}
    lora_alpha: Scale = 8
    alpha_pattern: dict[str, Scale] = {}
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Text | list[Text] | None = None
    modules_to_save: list[Text] | None = None
    layers_to_transform: int | list[int] | None = None
    layer_replication: list[list[Layer]] | None = None
    use_dora: bool = False

    @property
    def highest_rank(self) -> int:
        """Of any layer."""
        return max([self.r, *self.rank_pattern.values()])


def settings_of(adapter: Path) -> Settings:
    """InputMissing where the file cannot be read, ModelError with each field that is none of PEFT's."""
    file = adapter / SETTINGS
    try:
        return Settings.model_validate(foreign_json.read(file))
    except OSError as error:
        raise InputMissing(f"{file} cannot be read: {error.strerror}", hint=HINT) from error
    except ValidationError as error:
        problems = [
            Problem(what=f"{'.'.join(str(part)[:60] for part in each['loc'])}: {each['msg']}", file=str(file))
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise ModelError(f"{file} is damaged, or of a PEFT that is not known", hint=HINT, problems=problems) from error
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}", hint=HINT) from error


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
    """The settings, whose ranks the weights have. ModelError where they have not."""
    settings = settings_of(adapter)
    widest = max((size for shape in shapes_of(adapter).values() for size in shape), default=0)
    if settings.highest_rank > widest:
        what = f"rank {settings.highest_rank:,} (r, rank_pattern), and no tensor is longer than {widest:,}"
        problem = Problem(what=what, file=str(adapter / SETTINGS))
        raise ModelError(f"the settings of {adapter} are not those of its weights", hint=HINT, problems=[problem])
    return settings


def first_line(error: Exception) -> str:
    """What a library says of a file, in a line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def as_json(settings: Settings) -> dict[str, Any]:
    """As adapter_config.json has it, with what is passed on to PEFT."""
    return settings.model_dump(mode="json", exclude_unset=True)
