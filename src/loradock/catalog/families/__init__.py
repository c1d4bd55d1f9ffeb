"""The table of families: decoders that something here knows by name, and what each of them is.

To add one: its line here, and a module in `training/backends/fast/families/` where none reads decoders of its build.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of decoder, which the fast engine serves: `module` of `training/backends/fast/families/` reads its parts.

    `decoder`: its class in transformers, `model_type` that of its configuration. `has_out_norms`: its layers have a
    norm after each half, too. `gguf_name`: llama.cpp's name for a dense one, None where it is not
    exported (`use/gguf/mixtures/` has those of mixtures). `is_recurrent`: `module` reads its recurrent layers, too.
    """

    decoder: str
    model_type: str
    module: str
    has_out_norms: bool = False
    is_recurrent: bool = False
    gguf_name: str | None = None


FAMILIES = (
    Family(decoder="LlamaModel", model_type="llama", module="llama", gguf_name="llama"),
    Family(decoder="MistralModel", model_type="mistral", module="mistral", gguf_name="llama"),
    Family(decoder="Qwen2Model", model_type="qwen2", module="qwen", gguf_name="qwen2"),
    Family(decoder="Qwen3Model", model_type="qwen3", module="qwen", gguf_name="qwen3"),
    Family(decoder="Qwen3MoeModel", model_type="qwen3_moe", module="qwen"),
    Family(decoder="MixtralModel", model_type="mixtral", module="mistral"),
    Family(decoder="Qwen2MoeModel", model_type="qwen2_moe", module="qwen"),
    Family(decoder="Glm4MoeModel", model_type="glm4_moe", module="glm"),
    Family(decoder="Dots1Model", model_type="dots1", module="glm"),
    Family(decoder="MiniMaxM2Model", model_type="minimax_m2", module="minimax"),
    Family(decoder="Ernie4_5Model", model_type="ernie4_5", module="ernie"),
    Family(decoder="Ernie4_5_MoeModel", model_type="ernie4_5_moe", module="ernie"),
    Family(decoder="OlmoeModel", model_type="olmoe", module="olmoe"),
    Family(decoder="Qwen3NextModel", model_type="qwen3_next", module="delta", is_recurrent=True),
    Family(decoder="Qwen3_5TextModel", model_type="qwen3_5_text", module="delta", is_recurrent=True),
    Family(decoder="Qwen3_5MoeTextModel", model_type="qwen3_5_moe_text", module="delta", is_recurrent=True),
    Family(decoder="GptOssModel", model_type="gpt_oss", module="gptoss"),
    Family(decoder="Phi3Model", model_type="phi3", module="phi3"),
    Family(decoder="GraniteModel", model_type="granite", module="granite"),
    Family(decoder="GraniteMoeModel", model_type="granitemoe", module="granite"),
    Family(decoder="GraniteMoeSharedModel", model_type="granitemoeshared", module="granite"),
    Family(decoder="GraniteMoeHybridModel", model_type="granitemoehybrid", module="granite", is_recurrent=True),
    Family(decoder="Lfm2Model", model_type="lfm2", module="lfm2", is_recurrent=True),
    Family(decoder="Llama4TextModel", model_type="llama4_text", module="llama4"),
    Family(decoder="GemmaModel", model_type="gemma", module="gemma"),
    Family(decoder="Gemma2Model", model_type="gemma2", module="gemma", has_out_norms=True),
    Family(decoder="Gemma3TextModel", model_type="gemma3_text", module="gemma", has_out_norms=True, gguf_name="gemma3"),
)
BY_DECODER = {family.decoder: family for family in FAMILIES}
