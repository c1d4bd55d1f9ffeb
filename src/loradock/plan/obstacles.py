"""What keeps an engine, or a way of sharing a model, from a run: the first reason that holds, in words."""

from __future__ import annotations

from loradock.catalog.engines import PREFERRED, ZERO, Cannot, Limit
from loradock.catalog.families import BY_DECODER
from loradock.config.schema import RunConfig
from loradock.facts import ModelFacts


def first(cannot: Cannot, config: RunConfig, model: ModelFacts, *, compute_dtype: str) -> str | None:
    """The first of these reasons that holds, or None."""
    limits = met(config, model, compute_dtype=compute_dtype)
    return next((why.format(config=config, model=model) for limit, why in cannot.items() if limits[limit]), None)


def met(config: RunConfig, model: ModelFacts, *, compute_dtype: str) -> dict[Limit, bool]:
    """Of what not everyone has, whether the run asks for it."""
    lora, train = config.lora, config.train
    return {
        "decoder": model.decoder not in BY_DECODER,
        "recurrence": model.recurrence is not None and not _is_read(model),
        "remote code": config.model.trust_remote_code is not None,
        "peculiarity": model.peculiarity is not None,
        "outlier columns": config.model.storage.has_outlier_columns,
        "changed base": lora.init in ("pissa", "olora"),
        "float16": compute_dtype == "float16",
        "compile": train.compile != "off",
        "whole model": config.objective_spec.needs_whole_model,
        "loss_sum": "loss_sum" in config.objective_spec.passes,
        "dora": lora.dora,
        "modules_to_save": bool(lora.modules_to_save),
        "new tokens": bool(config.tokenizer.add_tokens),
        "prequantised": model.is_prequantised,
        "neftune": train.neftune_alpha > 0,
        "several ranks": lora.dropout > 0 and _has_several_ranks_in_a_block(model, rank=lora.rank),
        "loraplus": train.loraplus_lr_ratio != 1,
        "optimizer": train.optimizer not in ("auto", *PREFERRED.optimizers),
        "other states": train.optimizer not in ("auto", *ZERO.optimizers),
    }


def _is_read(model: ModelFacts) -> bool:
    """Whether the fast engine reads recurrent layers of this family."""
    family = BY_DECODER.get(model.decoder)
    return family is not None and family.is_recurrent


def _has_several_ranks_in_a_block(model: ModelFacts, *, rank: int) -> bool:
    """Whether layers of one module, which may read one input, have adapters of several ranks."""
    ranks: dict[str, set[int]] = {}
    for layer in model.linears:
        if layer.name in set(model.targets):
            ranks.setdefault(layer.name.rpartition(".")[0], set()).add(layer.own_rank or rank)
    return any(len(each) > 1 for each in ranks.values())
