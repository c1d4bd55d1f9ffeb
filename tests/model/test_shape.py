"""What is read of a model's config without its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import make_model

from loradock.config.schema import RunConfig
from loradock.model import shape, source


@pytest.mark.parametrize(
    ("family", "settings", "heads"),
    [("gemma2", {}, 4), ("gemma2", {"attn_logit_softcapping": None}, 0), ("gemma3_text", {}, 0), ("llama", {}, 0)],
)
def test_heads_are_soft_capped_where_the_config_says_so(
    family: str, settings: dict[str, None], heads: int, tmp_path: Path
) -> None:
    config = RunConfig.model_validate({"model": {"name": str(make_model(tmp_path, family, **settings))}})
    assert shape.inspect(source.find(config.model), config).capped_heads == heads
