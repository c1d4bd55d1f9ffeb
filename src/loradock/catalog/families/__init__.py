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
    Family(decoder="SmolLM3Model", model_type="smollm3", module="llama"),
    Family(decoder="MistralModel", model_type="mistral", module="mistral", gguf_name="llama"),
    Family(decoder="Ministral3Model", model_type="ministral3", module="mistral"),
    Family(decoder="Qwen2Model", model_type="qwen2", module="qwen", gguf_name="qwen2"),
    Family(decoder="CwmModel", model_type="cwm", module="qwen"),
    Family(decoder="MinistralModel", model_type="ministral", module="qwen"),
    Family(decoder="Qwen3Model", model_type="qwen3", module="qwen", gguf_name="qwen3"),
    Family(decoder="Qwen3MoeModel", model_type="qwen3_moe", module="qwen"),
    Family(decoder="Qwen2VLTextModel", model_type="qwen2_vl_text", module="qwen"),
    Family(decoder="Qwen2_5_VLTextModel", model_type="qwen2_5_vl_text", module="qwen"),
    Family(decoder="Qwen3VLTextModel", model_type="qwen3_vl_text", module="qwen"),
    Family(decoder="Qwen3VLMoeTextModel", model_type="qwen3_vl_moe_text", module="qwen"),
    Family(decoder="MixtralModel", model_type="mixtral", module="mistral"),
    Family(decoder="Qwen2MoeModel", model_type="qwen2_moe", module="qwen"),
    Family(decoder="Glm4MoeModel", model_type="glm4_moe", module="glm"),
    Family(decoder="SolarOpenModel", model_type="solar_open", module="glm"),
    Family(decoder="Glm4vMoeTextModel", model_type="glm4v_moe_text", module="glm"),
    Family(decoder="GlmModel", model_type="glm", module="glm4"),
    Family(decoder="Glm4Model", model_type="glm4", module="glm4", has_out_norms=True),
    Family(decoder="Glm4vTextModel", model_type="glm4v_text", module="glm4", has_out_norms=True),
    Family(decoder="DeepseekV2Model", model_type="deepseek_v2", module="latent"),
    Family(decoder="DeepseekV3Model", model_type="deepseek_v3", module="latent"),
    Family(decoder="YoutuModel", model_type="youtu", module="latent"),
    Family(decoder="Glm4MoeLiteModel", model_type="glm4_moe_lite", module="latent"),
    Family(decoder="Mistral4Model", model_type="mistral4", module="latent"),
    Family(decoder="Dots1Model", model_type="dots1", module="glm"),
    Family(decoder="MiniMaxM2Model", model_type="minimax_m2", module="minimax"),
    Family(decoder="Ernie4_5Model", model_type="ernie4_5", module="ernie"),
    Family(decoder="Ernie4_5_MoeModel", model_type="ernie4_5_moe", module="ernie"),
    Family(decoder="OlmoeModel", model_type="olmoe", module="olmoe"),
    Family(decoder="Olmo2Model", model_type="olmo2", module="olmo", has_out_norms=True),
    Family(decoder="Olmo3Model", model_type="olmo3", module="olmo", has_out_norms=True),
    Family(decoder="Exaone4Model", model_type="exaone4", module="olmo", has_out_norms=True),
    Family(decoder="HunYuanDenseV1Model", model_type="hunyuan_v1_dense", module="hunyuan"),
    Family(decoder="HunYuanVLTextModel", model_type="hunyuan_vl_text", module="hunyuan"),
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
    Family(decoder="Gemma4TextModel", model_type="gemma4_text", module="gemma4", has_out_norms=True),
    Family(decoder="Gemma4UnifiedTextModel", model_type="gemma4_unified_text", module="gemma4", has_out_norms=True),
)
BY_DECODER = {family.decoder: family for family in FAMILIES}
