"""The class that a base is built of: the one that its config.json names, of which the language model alone is kept.

A base that also sees or hears has parts beside its language model (vision tower, audio tower, projectors). Rows are
text, so they are left out: each is built nowhere but on the meta device, and its weights are not read. What remains has
the published class's own module names, so that adapters and merged models fit that class wherever it is served.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.facts import LeftOut

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

OTHER_CLASS = "is the directory whole, and of a release that transformers 5 knows?"


def is_wrapper(config: Any) -> bool:
    """Whether a transformers config describes more than a language model, which is a part of it then."""
    return config.get_text_config(decoder=True) is not config


def parts_inside(config: Any) -> tuple[str, ...]:
    """The configs of towers that a language model's own config has, whose decoder holds them then."""
    if is_wrapper(config):
        return ()
    return tuple(
        key for key in config.sub_configs if key.startswith(("vision", "audio")) and getattr(config, key, None)
    )


def published(config: Any) -> Any:
    """The class of transformers for a config: the one that it names, else the one that its kind is mapped to.

    None where transformers generates no text with this kind of config. Code that a model ships is not looked at.
    """
    import transformers
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM

    if not is_wrapper(config):
        return AutoModelForCausalLM._model_mapping.get(type(config), None)
    for name in getattr(config, "architectures", None) or ():
        model_class = getattr(transformers, name, None)
        if getattr(model_class, "config_class", None) is type(config) and hasattr(model_class, "generate"):
            return model_class
    autos = (AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoModelForCausalLM)
    return next((auto._model_mapping[type(config)] for auto in autos if type(config) in auto._model_mapping), None)


def build(config: Any, *, trust_remote_code: bool, **options: Any) -> Any:
    """The model that a config describes, without weights of its own. `options`: dtype, attn_implementation."""
    from transformers import AutoModelForCausalLM

    if not is_wrapper(config):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code, **options)
    return language_model_of(_published(config))._from_config(config, **_of_text(config, options))


def whole(config: Any) -> Any:
    """The published model with all its parts, without weights: what the adapter of a language model is served on."""
    return _published(config)._from_config(config)


def loaded(directory: Path, config: Any, *, trust_remote_code: bool, is_changed: bool = False, **options: Any) -> Any:
    """The model with the weights of its directory. `options`: those of transformers' `from_pretrained`.

    `is_changed`: the config is another than that in the directory.
    """
    from transformers import AutoModelForCausalLM

    local = {"local_files_only": True, **options}
    if is_changed:
        local |= {"config": config}
    if not is_wrapper(config):
        return AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=trust_remote_code, **local)
    return language_model_of(_published(config)).from_pretrained(directory, **_of_text(config, local))


def _of_text(config: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the attention that was asked for meant of the language model: a tower may not have it."""
    implementation = options.get("attn_implementation")
    if implementation is None:
        return options
    text = config.get_text_config(decoder=True)
    key = next(key for key in config.sub_configs if getattr(config, key, None) is text)
    return {**options, "attn_implementation": {key: implementation}}


def _published(config: Any) -> Any:
    if (model_class := published(config)) is None:
        raise ModelError(f"transformers builds no language model of {config.model_type}", hint=OTHER_CLASS)
    return model_class


def language_model_of(published_class: Any) -> Any:
    """The same class, by the same name, whose models have no parts beside the language model.

    transformers finds its rules for weights by the name of a class, so it has to stay.
    """

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807  (of the class that is made here)
        super(language_model, self).__init__(*arguments, **options)
        leave_out(self)

    members = {"__init__": __init__, "__module__": published_class.__module__}
    language_model: Any = type(published_class.__name__, (published_class,), members)
    return language_model


def leave_out(model: Any) -> None:
    """Put a stand-in into the place of every part that is neither decoder nor output head, nor holds one of them."""
    ids = {id(model.get_decoder()), id(model.get_output_embeddings())}
    for holder, key, part in list(_parts_beside(model, ids)):
        holder._modules[key] = _stand_in(part)
    unread = {rf"^{re.escape(part.name)}\." for part in left_out(model)}
    model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), *unread}


def _parts_beside(module: Any, ids: set[int]) -> Iterator[tuple[Any, str, Any]]:
    """(holder, key, part) of the highest modules in which none of `kept` lies."""
    for key, part in module.named_children():
        if id(part) in ids:
            continue
        if any(id(module) in ids for module in part.modules()):
            yield from _parts_beside(part, ids)
        else:
            yield module, key, part


def _stand_in(part: nn.Module) -> Any:
    from torch import nn

    class Absent(nn.Module):
        """A part that was left out, and how many weights it would have had."""

        parameter_count = sum(parameter.numel() for parameter in part.parameters())

        def forward(self, *_: Any, **__: Any) -> Any:
            raise ModelError("the model was opened without the parts for images, audio and video", hint="give it text")

    return Absent()


def left_out(model: Any) -> tuple[LeftOut, ...]:
    """The parts that `leave_out` took from a model, in its order."""
    return tuple(
        LeftOut(name=name, parameters=module.parameter_count)
        for name, module in model.named_modules()
        if hasattr(module, "parameter_count")
    )


def decoder_name(model: Any) -> str:
    """The dotted name of the decoder in a model without adapters; empty where the model is one itself."""
    decoder = model.get_decoder()
    return next(name for name, module in model.named_modules() if module is decoder)
