"""The table of families: decoders that something here knows by name, and what each of them is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of decoder, which the fast engine serves (`training/backends/fast/families/`).

    `decoder`: its class in transformers, `model_type` that of its configuration. `has_out_norms`: its layers have a
    norm after each half, too. `gguf_name`: llama.cpp's name for it, None where it is not exported.
    """

    decoder: str
    model_type: str
    has_out_norms: bool = False
    gguf_name: str | None = None


FAMILIES = (
    Family(decoder="LlamaModel", model_type="llama", gguf_name="llama"),
    Family(decoder="MistralModel", model_type="mistral", gguf_name="llama"),
    Family(decoder="Qwen2Model", model_type="qwen2", gguf_name="qwen2"),
    Family(decoder="Qwen3Model", model_type="qwen3", gguf_name="qwen3"),
    Family(decoder="Phi3Model", model_type="phi3"),
    Family(decoder="GemmaModel", model_type="gemma"),
    Family(decoder="Gemma2Model", model_type="gemma2", has_out_norms=True),
    Family(decoder="Gemma3TextModel", model_type="gemma3_text", has_out_norms=True, gguf_name="gemma3"),
)
BY_DECODER = {family.decoder: family for family in FAMILIES}
