"""The scalar head of a reward model: one row of weights over the last token's state, trained whole beside the adapter.

It lies where transformers' sequence classification has it (`score`), so that `AutoModelForSequenceClassification` with
one label and PEFT read base and adapter as they are. In training the base keeps its class; its output head is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError, UsageError
from loradock.model import architecture

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from loradock.config.schema import RunConfig
    from loradock.model.adapter_files import Settings
    from loradock.model.source import BaseModel

NAME, WEIGHT = "score", "score.weight"
TASK = "SEQ_CLS"
"""PEFT's word for an adapter of sequence classification, which says of a file that it scores."""


def check(config: RunConfig, base: BaseModel, model: Any) -> int:
    """Weights of the head; 0 where none is trained. ModelError for a base of which no reward model can be read.

    `model`: bare, on any device.
    """
    if not config.objective_spec.has_head:
        return 0
    hint = "another base, or --set objective=preference, which needs no head"
    if architecture.is_wrapper(base.config):
        what = f"{base.name} also reads images, audio or video, and reward models are read of models of text alone"
        raise ModelError(f"objective {config.objective}: {what}", hint=hint)
    classifying = class_of(base.config)
    if config.model.trust_remote_code is not None or classifying is None:
        what = f"transformers has no sequence classification of {base.config.model_type}"
        raise ModelError(f"objective {config.objective}: {what}", hint=hint)
    expected = _shapes(classifying, base.config)
    hidden = base.config.get_text_config().hidden_size
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    if expected.pop(WEIGHT, None) != (1, hidden) or not expected.items() <= shapes.items():
        what = f"{classifying.__name__} has other weights than {type(model).__name__} and a head called {NAME}"
        raise ModelError(f"objective {config.objective}: {what}", hint=hint)
    return hidden


def class_of(config: Any) -> Any:
    """transformers' class for sequence classification with a config; None where there is none."""
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification._model_mapping.get(type(config), None)


def _shapes(classifying: Any, config: Any) -> dict[str, tuple[int, ...]]:
    import copy

    import torch

    labelled = copy.deepcopy(config)
    labelled.num_labels = 1
    with torch.device("meta"):
        model = classifying._from_config(labelled)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}


def put(model: Any) -> None:
    """Give a bare model a head in float32, of random values as transformers draws them; in place."""
    import torch

    from loradock.model.score_layer import ScoreLayer

    config = model.config.get_text_config()
    device = model.get_input_embeddings().weight.device
    head = ScoreLayer(config.hidden_size, 1, bias=False, dtype=torch.float32)
    torch.nn.init.normal_(head.weight, std=getattr(config, "initializer_range", 0.02))
    setattr(model, NAME, head.to(device).requires_grad_(requires_grad=False))


def of(model: Any) -> Any:
    """The head of a model with or without PEFT's layers; None where it has none."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    return getattr(whole, NAME, None)


def rewards(model: Any, vectors: torch.Tensor) -> torch.Tensor:
    """What the head makes of states: float32 [documents, hidden] -> [documents, 1]."""
    return of(model)(vectors)


def is_head_of(settings: Settings) -> bool:
    """Whether an adapter is that of a reward model."""
    return (settings.model_extra or {}).get("task_type") == TASK


def refuse(settings: Settings, adapter: Path) -> None:
    """UsageError for a reward model where answers are asked for."""
    if is_head_of(settings):
        what = f"{adapter} is a reward model: it scores answers, and writes none"
        raise UsageError(what, hint=f"loradock evaluate {adapter} --data PAIRS --metric choice")


def last_place(ids: Any, *, pad_token_id: int | None) -> int:
    """Where transformers reads the score of a document: its last token that is not the padding's."""
    place = len(ids) - 1
    while place > 0 and ids[place] == pad_token_id:
        place -= 1
    return place
