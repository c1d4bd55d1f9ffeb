"""Published shapes, mixtures of experts, hybrids and others: NF4 layers and experts without content, adapters on each.

Which expert a token goes to decides no tensor's size but those of single products; it is drawn here on the host, since
a stand-in computes no router's choice.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.floor.machine import ROOT
from bench.memory.models import nf4_state, quantise
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.facts import ModelFacts
from loradock.model import adapters, shape, source
from loradock.model.experts import layout
from loradock.model.experts.storage import NF4Experts
from loradock.model.patches import PATCHES

PUBLISHED = ROOT / "tests" / "published" / "models.json"
NAMES = {
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "gpt-oss-20b": "unsloth/gpt-oss-20b-BF16",
    "glm-4.5-air": "zai-org/GLM-4.5-Air",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
}
LATENTS = {
    "glm-4.7-flash": "zai-org/GLM-4.7-Flash",
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
}
"""With attention over latents; of the second one values are narrower than keys."""
HYBRIDS = {
    "qwen3.5-4b": "Qwen/Qwen3.5-4B",
    "granite-4.0-h-micro": "ibm-granite/granite-4.0-h-micro",
    "lfm2.5-1.2b": "LiquidAI/LFM2.5-1.2B-Instruct",
    "qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
}
"""By each mechanism of recurrent layers that the fast engine serves, and one with experts."""
FAMILIES = {
    "qwen3-8b": "Qwen/Qwen3-8B",
    "olmo-3-7b": "allenai/Olmo-3-1025-7B",
    "glm-4-9b": "zai-org/GLM-4-9B-0414",
    "gemma-4-31b": "google/gemma-4-31B-it",
    "gemma-4-e2b": "google/gemma-4-E2B-it",
    "gemma-4-26b-a4b": "google/gemma-4-26B-A4B-it",
    "exaone-4.0-1.2b": "LGAI-EXAONE/EXAONE-4.0-1.2B",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B",
    "ministral-3-8b": "mistralai/Ministral-3-8B-Base-2512",
}
"""Of another build than a Llama's: norms after each half, of values, heads of two sizes, keys of other layers, experts
beside an MLP, no positions."""
SHARED_LAYERS = 3
"""Of the first layers, those that read the keys of others, where the model has such."""
PUBLISHED_NAMES = NAMES | LATENTS | HYBRIDS | FAMILIES


def made(name: str, *, rank: int, layers: int | None = None, targets: str | None = None) -> tuple[Any, Any]:
    """(PeftModel, its facts) on the CUDA device, with fewer layers where asked for."""
    config = published(name)
    targets = targets or ("[all-linear,experts]" if has_experts(config) else "[all-linear]")
    config |= {"num_hidden_layers": layers or config["num_hidden_layers"]}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
    if layers and config.get("num_kv_shared_layers"):
        config["num_kv_shared_layers"] = SHARED_LAYERS
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        asked = run_config(folder, rank=rank, targets=targets)
        config_read = source.read_config(Path(folder), name=name, trusted=False)
        base = source.BaseModel(
            name=name,
            directory=Path(folder),
            revision=None,
            config=config_read,
            trust_remote_code=False,
            weight_files=(),
        )
        facts = shape.inspect(base, asked)
        model = source.on_meta(base)
        fill(model.to(torch.bfloat16))
        for patch in PATCHES:
            patch(model)
        with torch.device("cuda"):
            return adapters.attach(model, asked, base=base), facts


def published(name: str) -> dict[str, Any]:
    """The config.json of a model by our short name; of a wrapper, that of its text."""
    models = json.loads(PUBLISHED.read_text(encoding="utf-8"))["models"]
    config = next(each["config"] for each in models if each["model"] == PUBLISHED_NAMES[name])
    return dict(config.get("text_config", config))


def has_experts(config: dict[str, Any]) -> bool:
    """Whether these values of a config.json are a mixture's."""
    return any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def run_config(folder: str, *, rank: int, targets: str) -> RunConfig:
    """The configuration of a run on that model."""
    settings = [f"model.name={folder}", f"lora.rank={rank}", f"lora.targets={targets}", "lora.dropout=0"]
    return load(None, overrides=settings, needs_inputs=False).config


def fill(model: Any) -> None:
    """Put tensors of the device, without content, in the place of those on the meta device; NF4 where a run has it."""
    routers = set(layout.routers(model))
    quantise(model, dtype=torch.bfloat16, device="cuda", but=routers)
    for matrices in list(layout.matrices(model)):
        weights = nf4_experts(matrices.parameter.shape)
        setattr(matrices.module, matrices.key, torch.nn.Parameter(weights, requires_grad=False))
    for module in model.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                empty = torch.empty_like(parameter, device="cuda")
                setattr(module, key, torch.nn.Parameter(empty, requires_grad=False))
        for key, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                setattr(module, key, torch.empty_like(buffer, device="cuda"))
    model.tie_weights()
    model.is_loaded_in_4bit = True


def nf4_experts(shape_of_all: torch.Size) -> NF4Experts:
    """Experts as they lie after loading, without content."""
    count, *matrix = shape_of_all
    one = nf4_state(torch.Size(matrix), dtype=torch.bfloat16, device=torch.device("cuda"))
    each = {"packed": torch.empty(torch.Size(matrix).numel() // 2, dtype=torch.uint8), "scales": one.absmax}
    each |= {"outer": one.state2.absmax, "offset": one.offset}
    parts: dict[str, torch.Tensor | None] = {
        key: torch.empty((count, *value.shape), dtype=value.dtype, device="cuda") for key, value in each.items()
    }
    return NF4Experts.of_parts({**parts, "code": one.state2.code}, shape=shape_of_all, dtype=torch.bfloat16)


class Solved(torch.autograd.Function):
    """A solved triangular system without its content: bytes in and out are its own, those of its backward about so."""

    @staticmethod
    def forward(ctx: Any, system: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """What is kept is the system and the solution."""
        solution = torch.empty_like(right)
        ctx.save_for_backward(system, solution)
        return solution

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient to the right side, and by a product that to the system."""
        _, solution = ctx.saved_tensors
        right = torch.empty_like(gradients[0])
        return right @ solution.transpose(-1, -2), right


@contextmanager
def solved() -> Iterator[None]:
    """Inside, the delta rule's triangular systems are not solved, for which a stand-in takes minutes each."""
    real = torch.linalg.solve_triangular
    torch.linalg.solve_triangular = lambda system, right, **_: Solved.apply(system, right)
    try:
        yield
    finally:
        torch.linalg.solve_triangular = real


@contextmanager
def routed(facts: ModelFacts) -> Iterator[None]:
    """Inside, tokens are spread over experts as by chance, whatever the device holds as the routers' choice.

    In the same way for all layers, so that a layer that is recomputed has what it had.
    """
    counted = torch.bincount

    def spread(chosen: torch.Tensor, *, minlength: int) -> torch.Tensor:
        shares = np.full(minlength, 1 / minlength)
        return torch.from_numpy(np.random.default_rng(0).multinomial(chosen.numel(), shares))

    torch.bincount = spread if facts.experts else counted
    try:
        yield
    finally:
        torch.bincount = counted
