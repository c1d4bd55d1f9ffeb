"""Which training loop: the fast engine where it serves the model and all that was asked, else TRL with the reason."""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.optimizations.base import Decision, Question, asked

FAST_ARCHITECTURES = (
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
FAST_OPTIMIZERS = ("auto", "adamw_fused")


def decide(question: Question) -> Decision:
    """fast wherever it serves. Raises ConfigError where it was asked for and does not."""
    wanted = question.config.engine
    if wanted == "trl":
        return asked("engine", "trl")
    obstacle = fast_obstacle(question)
    if obstacle and wanted == "fast":
        raise ConfigError(f"engine fast cannot be used: {obstacle}", hint="--set engine=auto")
    if obstacle:
        return Decision(name="engine", value="trl", why=f"the fast engine cannot be used: {obstacle}")
    if wanted == "fast":
        return asked("engine", "fast")
    return Decision(name="engine", value="fast", why=f"it serves {question.model.architecture} and all that was asked")


def fast_obstacle(question: Question) -> str | None:
    """Why the fast engine cannot be used, or None."""
    config, model = question.config, question.model
    obstacles = {
        f"no family of it serves {model.architecture}": model.architecture not in FAST_ARCHITECTURES,
        "the model runs code of its own": config.model.trust_remote_code is not None,
        model.peculiarity or "": model.peculiarity is not None,
        "its matrices are NF4 or whole, not int8": config.model.quantization == "int8",
        "it has no DoRA": config.lora.dora,
        "it trains adapters only, no modules_to_save": bool(config.lora.modules_to_save),
        "it has no NEFTune noise": config.train.neftune_alpha > 0,
        "its own kernels leave nothing to compile": config.train.compile != "off",
        f"its optimiser is adamw_fused, not {config.train.optimizer}": config.train.optimizer not in FAST_OPTIMIZERS,
    }
    return next((text for text, holds in obstacles.items() if holds), None)
