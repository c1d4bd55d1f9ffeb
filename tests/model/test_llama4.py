"""What Llama 4's code does in a way of its own: its decoder's name, its router, and how it counts positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch

from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.errors import ModelError
from loradock.model import lengths, shape, source
from loradock.model.load import load_whole
from loradock.training.packing_check import logits

EXACT = 1e-5


def model_of(directory: Path, **settings: Any) -> Any:
    config = of(mixtures.make(directory, "llama4_text", **settings), "model.quantization=none").model
    return load_whole(source.find(config), config, dtype=torch.float32, device="cpu").eval()


def of(directory: Path, *settings: str) -> RunConfig:
    return load(None, overrides=[f"model.name={directory}", *settings], needs_inputs=False).config


def test_documents_in_a_pack_are_computed_as_alone_up_to_its_limit(tmp_path: Path) -> None:
    """Attention in chunks is, which end within both; the scale of layers without rotary positions grows with a pack."""
    model = model_of(tmp_path, floor_scale=65, attn_scale=5.0)
    limit = lengths.pack_limit(model.config)
    assert limit == 64
    differing = []
    for length in (limit, limit + 12):
        documents = [list(range(3, 27)), list(range(100, 100 + length - 24))]
        with torch.no_grad():
            packed, alone = logits(model, documents), torch.cat([logits(model, [each]) for each in documents])
        differing.append(float((packed - alone).abs().max()))
    assert differing[0] < EXACT < 100 * EXACT < differing[1]


def test_a_decoder_is_the_part_without_the_head(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    assert type(model.get_decoder()).__name__ == type(model.base_model).__name__ == "Llama4TextModel"


def test_an_adapter_on_its_router_is_refused(tmp_path: Path) -> None:
    base = mixtures.make(tmp_path, "llama4_text")
    config = of(base, "lora.targets=[q_proj,router]")
    with pytest.raises(ModelError, match=r"LoRA target model\.layers\.1\.feed_forward\.router: this router") as refused:
        shape.inspect(source.find(config.model), config)
    assert refused.value.hint == "--set lora.targets=[down_proj,gate_proj,k_proj,o_proj,q_proj,up_proj,v_proj]"
