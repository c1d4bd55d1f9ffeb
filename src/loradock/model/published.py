"""Proof that an adapter fits the class that its base's publisher saves, before anybody serves it there.

A server that finds no module for a tensor's name passes it by, and answers as the base does, without a word.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.model import architecture
from loradock.model.adapter_tensors import PREFIX

if TYPE_CHECKING:
    from loradock.model.source import BaseModel

REPORT = "please report the model: its adapter would have no effect where it is served"


def check(base: BaseModel, settings: Any, keys: Collection[str]) -> None:
    """Put PEFT's layers on the whole published class, on the meta device, and compare the names of tensors.

    `settings`: the adapter's PeftConfig; `keys`: the tensors of its file. ModelError where one finds no module, a
    module finds none, or one lies outside the language model. Nothing is done where the class is the language model.
    """
    import torch
    from peft import get_peft_model, get_peft_model_state_dict

    if not architecture.is_wrapper(base.config):
        return
    with torch.device("meta"):
        model = architecture.whole(base.config)
    part = architecture.decoder_name(model)
    head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    layered: Any = get_peft_model(model, copy.deepcopy(settings), low_cpu_mem_usage=True)
    tensors = dict(layered.named_parameters(remove_duplicate=False))
    expected = get_peft_model_state_dict(layered, state_dict=tensors, save_embedding_layers=False).keys()
    inside = tuple(f"{PREFIX}{name}." for name in (part, head))
    wrong = [
        *(f"{key} finds no module" for key in sorted(set(keys) - expected)),
        *(f"{key} is missing" for key in sorted(expected - set(keys))),
        *(f"{key} lies outside the language model" for key in sorted(keys) if not key.startswith(inside)),
    ]
    if wrong:
        what = f"the adapter does not fit {type(model).__name__}, the class of {base.name}: {len(wrong)} names differ"
        raise ModelError(f"{what}, first: {wrong[0]}", hint=REPORT)
