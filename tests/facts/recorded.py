"""Recorded facts as types: machines with named GPUs, models by their public configs, and data sets of a shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loradock.config.schema import RunConfig
from loradock.facts import DataFacts, Facts, Gpu, LinearShape, ModelFacts
from loradock.plan import gpu_table as named
from loradock.plan import planner
from loradock.plan.context import Decision
from loradock.plan.plan import Plan

HERE = Path(__file__).parent
STACK = {"torch": "2.10.0", "transformers": "5.23.0", "trl": "1.16.0", "peft": "0.21.2", "bitsandbytes": "0.50.2"}
FLASH = {**STACK, "flash-attn": "2.8.3"}


def gpus() -> dict[str, Gpu]:
    """Every named GPU by its key."""
    return {gpu.key: gpu.as_gpu() for gpu in named.table()}


def models() -> dict[str, ModelFacts]:
    """Every recorded model by its key, with an adapter on each of its linear layers."""
    recorded = json.loads((HERE / "models.json").read_text(encoding="utf-8"))["models"]
    return {record["key"]: model(**{k: v for k, v in record.items() if k != "weights"}) for record in recorded}


def stated_weights() -> dict[str, int]:
    """The published count of weights by the model's key."""
    recorded = json.loads((HERE / "models.json").read_text(encoding="utf-8"))["models"]
    return {record["key"]: record["weights"] for record in recorded}


def model(
    *,
    key: str = "some-llama",
    architecture: str = "LlamaForCausalLM",
    layers: int,
    hidden: int,
    inner: int,
    key_value: int,
    vocabulary: int,
    positions: int = 4096,
) -> ModelFacts:
    """ModelFacts of a Llama- or Phi-3-like model from the numbers in its config."""
    if architecture == "Phi3ForCausalLM":
        block = {
            "self_attn.qkv_proj": (hidden + 2 * key_value, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_up_proj": (2 * inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
    else:
        block = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (key_value, hidden),
            "self_attn.v_proj": (key_value, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
    linears = tuple(
        LinearShape(name=f"model.layers.{index}.{name}", rows=rows, columns=columns)
        for index in range(layers)
        for name, (rows, columns) in block.items()
    )
    inside = sum(layer.rows * layer.columns for layer in linears)
    return ModelFacts(
        name=key,
        architecture=architecture,
        decoder=architecture.replace("ForCausalLM", "Model"),
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        parameters=inside + 2 * vocabulary * hidden + (2 * layers + 1) * hidden,
        linears=linears,
        targets=tuple(layer.name for layer in linears),
        unreachable_parameters=0,
        context_length=positions,
    )


def machine(gpu: str | None = None, *, flash: bool = False, **known: Any) -> Facts:
    """A machine of 16 CPUs and 64 GiB with this GPU, or without one."""
    settings: dict[str, Any] = {
        "platform": "Linux-6.1-x86_64",
        "python": "3.11.9",
        "cpus": 16,
        "memory_bytes": 64 << 30,
        "in_container": True,
        "gpus": (gpus()[gpu],) if gpu else (),
        "packages": FLASH if flash else STACK,
    }
    return Facts(**{**settings, **known})


def data(
    *, rows: int = 10_000, mean: int = 166, longest: int = 1024, limit: int = 1024, held_out: int = 0
) -> DataFacts:
    """A data set of `rows` rows, by default as short and uneven as instruction data are."""
    return DataFacts(
        train_rows=rows,
        validation_rows=held_out,
        tokens=rows * mean,
        supervised_tokens=rows * mean // 2,
        limit_tokens=limit,
        longest_tokens=longest,
        samples_per_epoch=rows,
    )


def config(**sections: dict[str, Any] | Any) -> RunConfig:
    """A configuration: config(train={"global_batch": 32}, device="cpu")."""
    return RunConfig.model_validate(sections)


def planned(
    *,
    facts: Facts | None = None,
    model: ModelFacts | None = None,
    data: DataFacts | None = None,
    config: RunConfig | None = None,
) -> Plan:
    """The plan for these facts; by default Mistral-7B on short rows on an A10."""
    return planner.make(
        config or RunConfig(),
        facts=facts or machine("a10"),
        model=model or models()["mistral-7b"],
        data=data or globals()["data"](),
    )


def decision(plan: Plan, name: str) -> Decision[Any]:
    """The decision of this name."""
    return next(found for found in plan.decisions if found.name == name)
