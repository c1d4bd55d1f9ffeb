"""Tokens that a run adds to its base (`tokenizer.add_tokens`): their ids, their rows, and how the rows begin.

A row begins as the mean of the rows of the pieces that its text was before (Gee et al. 2022, Fast Vocabulary Transfer):
new tokens differ from the first step on, and none is likelier than the likeliest of its pieces. PEFT trains these rows
alone (`trainable_token_indices`) and saves them beside LoRA's tensors. A head that is tied to the embedding reads the
same rows; a head of its own gets rows of its own, or it could not tell new tokens apart when it writes them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError, Problem
from loradock.model import architecture

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from loradock.config.schema import RunConfig
    from loradock.model.adapter_files import Settings
    from loradock.model.source import BaseModel

KEY = "tokenizer.add_tokens"
RESIZED = """rows = max(len(AutoTokenizer.from_pretrained(adapter)), base.get_input_embeddings().num_embeddings)
base.resize_token_embeddings(rows)  # for new tokens; the adapter has their rows
"""
"""How plain transformers gives a base the rows of an adapter's tokens, in Python."""


def add(tokenizer: Any, tokens: Sequence[str]) -> dict[str, int]:
    """Add tokens to an opened tokenizer; {text: id}. ModelError for each that its vocabulary has, or does not read."""
    from tokenizers import AddedToken

    if known := _known(tokenizer, tokens):
        problems = [Problem(what=f"{token!r} is token {number}") for token, number in known.items()]
        remaining = json.dumps([token for token in tokens if token not in known], ensure_ascii=False)
        what = f"{KEY}: {len(known)} of {len(tokens)} are in the vocabulary, and have rows that the base trained"
        raise ModelError(what, hint=f"--set {shlex.quote(f'{KEY}={remaining}')}", problems=problems)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in tokens])
    ids = ids_of(tokenizer, tokens)
    if wrong := [
        token for token in tokens if ids[token] not in tokenizer(token, add_special_tokens=False)["input_ids"]
    ]:
        raise ModelError(f"{KEY}: the tokenizer does not read {wrong[0]!r} as one token", hint="choose another text")
    return ids


def _known(tokenizer: Any, tokens: Sequence[str]) -> dict[str, int]:
    """{text: id} of those that the vocabulary has, or reads as one token under another name (byte-level ones)."""
    vocabulary, pieces = tokenizer.get_vocab(), pieces_of(tokenizer, tokens)
    single = {token: each[0] for token, each in zip(tokens, pieces, strict=True) if len(each) == 1}
    known = {token: vocabulary.get(token, single.get(token)) for token in tokens}
    return {token: number for token, number in known.items() if number not in (None, tokenizer.unk_token_id)}


def ids_of(tokenizer: Any, tokens: Sequence[str]) -> dict[str, int]:
    """{text: id} of tokens that a tokenizer has."""
    return {token: int(tokenizer.convert_tokens_to_ids(token)) for token in tokens}


def pieces_of(tokenizer: Any, tokens: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ids that each text has in a tokenizer to which it is not added yet."""
    return tuple(tuple(tokenizer(token, add_special_tokens=False)["input_ids"]) for token in tokens)


def put_rows(model: Any, tokenizer: Any, tokens: Sequence[str]) -> dict[str, list[int]]:
    """Give a base in memory its rows of new tokens, in place: PEFT's trainable_token_indices, by module.

    `tokenizer`: the base's; it has the tokens from here on.
    """
    pieces = pieces_of(tokenizer, tokens)
    ids = list(add(tokenizer, tokens).values())
    widen(model, max(ids) + 1)
    for module in ends(model).values():
        weight = module.weight.data
        rows = [weight[list(each)] if each else weight[: min(ids)] for each in pieces]
        weight[ids] = _means(rows, weight.dtype)
    return dict.fromkeys(ends(model), ids)


def ends(model: Any) -> dict[str, Any]:
    """The modules of a bare model that have a row a token, by name: the embedding, and a head that is not tied."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    modules = [embedding] if head is None or head.weight is embedding.weight else [embedding, head]
    names = {id(module): name for name, module in model.named_modules()}
    return {names[id(module)]: module for module in modules}


def names_of_ends(model: Any) -> list[str]:
    """The names of a bare model's embedding and head, tied or not."""
    ends_of_model = (model.get_input_embeddings(), model.get_output_embeddings())
    return [name for name, module in model.named_modules() if any(module is end for end in ends_of_model)]


def check(config: RunConfig, base: BaseModel, model: Any) -> int:
    """Weights of the rows that are trained; 0 without new tokens. ModelError for a model that cannot have them.

    `model`: bare, on any device.
    """
    tokens = config.tokenizer.add_tokens
    if not tokens:
        return 0
    hint = f"--set {KEY}=[]"
    if architecture.is_wrapper(base.config):
        what = f"{KEY}: {base.name} also reads images, audio or video, and rows are trained of models of text alone"
        raise ModelError(what, hint=hint)
    names, modules = names_of_ends(model), ends(model)
    saved = config.lora.modules_to_save
    if whole := [each for each in saved if any(f".{name}".endswith(f".{each}") for name in names)]:
        what = f"{KEY} trains single rows of {' and '.join(names)}, and lora.modules_to_save all of {', '.join(whole)}"
        remaining = ", ".join(each for each in saved if each not in whole)
        raise ModelError(what, hint=f"--set lora.modules_to_save=[{remaining}], or leave out {KEY}")
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        what = f"{KEY}: the head of {base.name} has a bias, which PEFT leaves out where it trains rows of the head"
        raise ModelError(what, hint=hint)
    return sum(len(tokens) * module.weight.shape[1] for module in modules.values())


def served(tokens: Sequence[str]) -> list[str]:
    """What is told of who opens the adapter, where it has rows of new tokens."""
    if not tokens:
        return []
    saved = f"new tokens: {len(tokens)}, whose rows are trained and saved in the adapter, which PEFT reads"
    refused = "vLLM and llama.cpp refuse an adapter with them: loradock merge makes a model that they take"
    return [f"{saved}; {refused}"]


def settle(adapted: Any) -> None:
    """Put right what PEFT's wrapper of a head lacks: who computes the head's product alone asks for its bias.

    ModelError where a head that is tied to the embedding was left without the rows.
    """
    from peft.utils.other import TrainableTokensWrapper

    head = adapted.get_output_embeddings()
    if not isinstance(head, TrainableTokensWrapper):
        what = f"{KEY}: PEFT does not tie rows of this model's head, whose config does not say that it is tied"
        raise ModelError(what, hint="--set " + KEY + "=[], and please report the model")
    head.bias = None  # pyright: ignore[reportArgumentType]  modules type what is set by what they register


def widen(model: Any, count: int) -> None:
    """Give a bare model so many rows, where it has fewer; the mean of its own until they are filled."""
    before = model.get_input_embeddings().weight.shape[0]
    if count <= before:
        return
    model.resize_token_embeddings(count, mean_resizing=False)
    for module in ends(model).values():
        module.weight.data[before:] = _means([module.weight.data[:before]], module.weight.dtype)
        module.requires_grad_(requires_grad=False)


def fit(model: Any, settings: Settings, *, adapter: Path) -> int:
    """Give a bare model the rows that an adapter's settings name; how many it has then.

    ModelError for rows beyond the model's that are not all the adapter's: nobody would know their values.
    """
    rows: int = model.get_input_embeddings().weight.shape[0]
    count = settings.token_rows
    if count <= rows:
        return rows
    for name, places in settings.places.items():
        if missing := set(range(rows, count)) - places:
            what = f"{adapter} needs {count:,} rows of the embedding, the base has {rows:,}"
            hint = "save it again where it was trained: model.save_pretrained(DIR, save_embedding_layers=True)"
            raise ModelError(f"{what}, and the adapter lacks row {min(missing):,} of {name}", hint=hint)
    if without := [name for name in ends(model) if not any(f".{name}".endswith(f".{key}") for key in settings.places)]:
        what = f"{adapter} needs {count:,} rows of {without[0]}, and holds none of those beyond the base's {rows:,}"
        raise ModelError(what, hint="train the head's rows, too: trainable_token_indices names both modules")
    widen(model, count)
    return count


def widened(weight: torch.Tensor, count: int) -> torch.Tensor:
    """A weight with so many rows, those that are new of any value."""
    import torch

    missing = count - weight.shape[0]
    return weight if missing <= 0 else torch.cat([weight, weight.new_zeros((missing, *weight.shape[1:]))])


def _means(rows: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    import torch

    return torch.stack([each.float().mean(dim=0) for each in rows]).to(dtype)
