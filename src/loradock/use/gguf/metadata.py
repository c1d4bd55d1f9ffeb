"""What GGUF says of an architecture beside its weights, and which architectures there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loradock.catalog.families import FAMILIES
from loradock.errors import ModelError
from loradock.use.gguf.mixtures import MIXTURES, WITHOUT, Mixture

DENSE = {family.model_type: family.gguf_name for family in FAMILIES if family.gguf_name}
ARCHITECTURES = DENSE | {model_type: mixture.name for model_type, mixture in MIXTURES.items()}
"""transformers' model_type of a language model and llama.cpp's name; Mistral and Mixtral are Llamas there."""
OFFSET_NORMS = ("gemma3",)
"""Of these transformers multiplies by 1 + weight, llama.cpp by the weight of the file."""
PERIOD, LOCAL_THETA, LAYERS_OF_27B = 6, 10_000.0, 62
"""Built into llama.cpp for Gemma 3: each sixth layer sees all, the others turn by this base; 27B is told by layers."""
WINDOWED = ("gemma3", "gpt-oss")
"""Of these llama.cpp cuts attention at the window, in the layers that have one."""
PERMUTED = ("llama", "granitemoe", "granitehybrid")
"""Of these llama.cpp rotates neighbours in place of halves, so rows of queries and keys lie in another order."""
WITH_FREQUENCIES = ("llama", "llama4")
"""Of these llama.cpp reads rope_freqs.weight, Llama 3.1's factors; it loads no file of another that has it."""
SCALED_LOGITS = ("deepseek2", "mistral4")
"""Of these llama.cpp scales attention's scores by YaRN's mscale_all_dim, and never the rotary embedding."""
ACTIVATIONS = {"gemma3_text": "gelu_pytorch_tanh", "nemotron_h": "relu2"}
"""Built into llama.cpp by transformers' model_type; of all others SiLU."""
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "mlp_hidden_act")
YARN_BETAS = (32, 1)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The numbers of a decoder. `factors`: divides each rotary frequency, where the model is of Llama 3.1's kind.

    `window`: that of the layers which llama.cpp cuts, where it does; `is_windowed`: it does not, and the model has one.
    `turned`: how many numbers of a head rotary positions turn. `mixture`: how its experts lie, None for a dense one;
    `of_experts`: what the file says of them, by the names of gguf.GGUFWriter.
    """

    architecture: str
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    inner: int | None
    context: int
    epsilon: float
    theta: float
    scaling: dict[str, Any]
    factors: tuple[float, ...]
    is_windowed: bool
    turned: int
    window: int | None = None
    mixture: Mixture | None = None
    of_experts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read(config: Any) -> Shape:
    """That of a transformers config, of a composite one its language model's.

    ModelError for an architecture or a rotary embedding that is not exported.
    """
    config = config.get_text_config(decoder=True)
    if config.model_type not in ARCHITECTURES:
        reason = f" ({WITHOUT[config.model_type]})" if config.model_type in WITHOUT else ""
        what = f"{config.model_type} models are not exported to GGUF here, only {', '.join(ARCHITECTURES)}{reason}"
        raise ModelError(what, hint="llama.cpp's own convert_hf_to_gguf.py DIR knows more")
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    architecture = ARCHITECTURES[config.model_type]
    rope: dict[str, Any] = dict(getattr(config, "rope_parameters", None) or {})
    if architecture == "gemma3":
        refuse_other_gemma(config, rope)
        rope = dict(rope["full_attention"])
    mixture = MIXTURES.get(config.model_type)
    if mixture:
        refuse_other_mixture(config, mixture)
    kind, turned = rope.get("rope_type", "default"), rope.get("partial_rotary_factor", 1.0)
    kinds = ("default", "linear", "yarn", *(["llama3"] if architecture in WITH_FREQUENCIES else []))
    if kind not in kinds or (turned != 1.0 and not (mixture and mixture.turns_part)):
        what = f"rotary embeddings of kind {kind} are not exported to GGUF here for {config.model_type}"
        raise ModelError(what, hint="llama.cpp's converter")
    refuse_other_built_in(config, rope, has_scaled_logits=architecture in SCALED_LOGITS)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    context = config.max_position_embeddings
    cuts = architecture in WINDOWED
    return Shape(
        architecture=architecture,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_width=head_width,
        hidden=config.hidden_size,
        inner=getattr(config, "intermediate_size", None),
        context=min(context, window) if window and not cuts else context,
        epsilon=getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon,
        theta=rope.get("rope_theta", 10_000.0),
        scaling=rope if kind in ("linear", "yarn") else {},
        factors=_factors(rope, head_width=head_width) if kind == "llama3" else (),
        is_windowed=bool(window and window < context and not cuts),
        turned=int(head_width * turned),
        window=window if cuts else None,
        mixture=mixture,
        of_experts=mixture.fields(config) if mixture else {},
    )


def refuse_other_mixture(config: Any, mixture: Mixture) -> None:
    """ModelError where a mixture is not as llama.cpp computes it, which does not read these from the file."""
    if keys := [key for key, differs in mixture.differences(config).items() if differs]:
        what = f"this {config.model_type} is not one that llama.cpp computes: {', '.join(keys)} of config.json"
        raise ModelError(what, hint="serve it by transformers or vLLM")


def refuse_other_built_in(config: Any, rope: Mapping[str, Any], *, has_scaled_logits: bool) -> None:
    """ModelError for an activation or numbers of YaRN that llama.cpp has built in otherwise and reads from no file."""
    activation = ACTIVATIONS.get(config.model_type, "silu")
    keys = [key for key in ACTIVATION_KEYS if getattr(config, key, activation) != activation]
    if rope.get("rope_type") == "yarn":
        keys += other_yarn(rope, has_scaled_logits=has_scaled_logits)
    if keys:
        what = f"llama.cpp has {', '.join(keys)} of config.json built in otherwise, and reads it from no file"
        raise ModelError(what, hint="serve it by transformers or vLLM")


def other_yarn(rope: Mapping[str, Any], *, has_scaled_logits: bool) -> list[str]:
    """The keys of YaRN (Peng et al. 2023) by which transformers turns heads otherwise than llama.cpp."""
    betas = (rope.get("beta_fast") or YARN_BETAS[0], rope.get("beta_slow") or YARN_BETAS[1])
    keys = ["beta_fast", "beta_slow"] if betas != YARN_BETAS else []
    if rope.get("factor") is None:
        return [*keys, "factor"]
    whole, scale, scale_of_all = mscale(rope["factor"], 1.0), rope.get("mscale"), rope.get("mscale_all_dim")
    implied = whole
    if scale and scale_of_all:
        implied = mscale(rope["factor"], scale) / mscale(rope["factor"], scale_of_all)
    factor = rope.get("attention_factor")
    if not math.isclose(implied if factor is None else factor, 1.0 if has_scaled_logits else whole, rel_tol=1e-6):
        keys += ["mscale", "mscale_all_dim"] if factor is None else ["attention_factor"]
    return keys


def mscale(factor: float, scale: float) -> float:
    """What YaRN multiplies the rotary embedding with."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def refuse_other_gemma(config: Any, rope: dict[str, Any]) -> None:
    """ModelError where a Gemma 3 is not as llama.cpp computes it, which reads neither of these from the file."""
    layers = range(1, config.num_hidden_layers + 1)
    kinds = ["full_attention" if number % PERIOD == 0 else "sliding_attention" for number in layers]
    is_27b = config.num_hidden_layers == LAYERS_OF_27B
    scale = config.hidden_size // config.num_attention_heads if is_27b else config.head_dim
    local = rope["sliding_attention"]
    differences = [
        *(["layer_types"] if list(config.layer_types) != kinds else []),
        *(["query_pre_attn_scalar"] if config.query_pre_attn_scalar != scale else []),
        *(["sliding_attention"] if (local["rope_type"], local["rope_theta"]) != ("default", LOCAL_THETA) else []),
        *(["softcapping"] if config.attn_logit_softcapping or config.final_logit_softcapping else []),
    ]
    if differences:
        what = f"this Gemma 3 is not one that llama.cpp computes: {', '.join(differences)} of config.json"
        raise ModelError(what, hint="serve it by transformers or vLLM")


def put(writer: Any, shape: Shape, *, rows: int) -> None:
    """Write them; `writer` is a gguf.GGUFWriter."""
    from gguf import RopeScalingType

    numbers: dict[str, Any] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "head_count": shape.heads,
        "head_count_kv": shape.key_heads,
        "rope_freq_base": shape.theta,
        "layer_norm_rms_eps": shape.epsilon,
        "vocab_size": rows,
        "rope_dimension_count": shape.turned,
    }
    if shape.inner:
        numbers["feed_forward_length"] = shape.inner
    if shape.window:
        numbers["sliding_window"] = shape.window
    is_stated = shape.mixture or shape.architecture in ("qwen3", "gemma3")
    if is_stated or shape.head_width * shape.heads != shape.hidden:
        numbers |= {"key_length": shape.head_width, "value_length": shape.head_width}
    if shape.scaling:
        numbers |= {
            "rope_scaling_type": RopeScalingType(shape.scaling["rope_type"]),
            "rope_scaling_factor": shape.scaling["factor"],
        }
        if original := shape.scaling.get("original_max_position_embeddings"):
            numbers["rope_scaling_orig_ctx_len"] = original
    for key, value in {**numbers, **shape.of_experts}.items():
        getattr(writer, f"add_{key}")(value)


def _factors(rope: dict[str, Any], *, head_width: int) -> tuple[float, ...]:
    """By what Llama 3.1 divides each rotary frequency: long waves by the factor, short ones by one, and between."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    trained = rope["original_max_position_embeddings"]
    factors: list[float] = []
    for index in range(0, head_width, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_width)
        turns = trained / wavelength
        share = min(1.0, max(0.0, (turns - low) / (high - low))) if high > low else float(turns >= low)
        factors.append(1 / ((1 - share) / factor + share))
    return tuple(factors)
