"""What keeps an engine from a run, or a base from being read part by part: the first reason that holds, in words."""

from __future__ import annotations

from collections.abc import Mapping

from loradock.catalog import optimizers
from loradock.config.schema import RunConfig
from loradock.facts import ModelFacts

FAST_DECODERS = (
    "Gemma2Model",
    "Gemma3TextModel",
    "GemmaModel",
    "LlamaModel",
    "MistralModel",
    "Phi3Model",
    "Qwen2Model",
    "Qwen3Model",
)


def of_fast(config: RunConfig, model: ModelFacts) -> str | None:
    """Why the fast engine cannot be used, or None."""
    return _first(
        {
            f"it has no family for {model.decoder}": model.decoder not in FAST_DECODERS,
            "the model runs code of its own": config.model.trust_remote_code is not None,
            model.peculiarity or "": model.peculiarity is not None,
            "its matrices are NF4 or unquantised, not int8": config.model.quantization == "int8",
            "its own kernels leave nothing to compile": config.train.compile != "off",
        }
        | _not_plain(config, "fast")
    )


def of_sharded(config: RunConfig, *, compute_dtype: str) -> str | None:
    """Why the fsdp backend cannot be used, or None."""
    obstacles = {
        "float16 needs a loss scale, which it does not keep": compute_dtype == "float16",
        "its layers are not compiled": config.train.compile != "off",
        f"objective {config.objective} needs the whole model on each GPU": config.objective != "supervised",
    }
    return _first(_needs_whole_weights(config) | obstacles | _not_plain(config, "fsdp"))


def of_parts(config: RunConfig) -> str | None:
    """Why a base cannot be read part by part and adapted as any engine but the sharded one does it, or None."""
    lora = config.lora
    obstacles = {
        "DoRA takes the norms of unquantised base weights": lora.dora,
        "modules_to_save copies unquantised base weights": bool(lora.modules_to_save),
    }
    return _first(_needs_whole_weights(config) | obstacles)


def _first(obstacles: Mapping[str, bool]) -> str | None:
    return next((text for text, holds in obstacles.items() if holds), None)


def _needs_whole_weights(config: RunConfig) -> dict[str, bool]:
    """What no base gives whose weights are read part by part."""
    return {
        "int8 layers keep statistics that are not cut": config.model.quantization == "int8",
        f"lora.init {config.lora.init} takes unquantised base weights apart": config.lora.init in ("pissa", "olora"),
    }


def _not_plain(config: RunConfig, engine: str) -> dict[str, bool]:
    """What neither the fast nor the fsdp backend does."""
    lora, train = config.lora, config.train
    has = " or ".join(optimizers.of_engine(engine))
    is_there = engine in optimizers.named(train.optimizer).engines
    return {
        "it has no DoRA": lora.dora,
        "it trains adapters only, no modules_to_save": bool(lora.modules_to_save),
        "it has no NEFTune noise": train.neftune_alpha > 0,
        f"its optimiser is {has}, not {train.optimizer}": not is_there,
    }
