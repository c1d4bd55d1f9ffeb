"""4-bit weights of every width are what NF4 defines, and a loaded model is compared with that definition."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes import functional, nn
from env_check.damage import damaged
from tiny import make_llama
from transformers import AutoModelForCausalLM
from whole_runs import train

from loradock.model import dequantised, nf4
from loradock.model.patches import PATCHES

pytestmark = pytest.mark.thin(1)

WIDTHS = (16, 32, 48, 64, 72, 80, 96, 100, 112, 128, 144, 160, 176, 192, 200, 1568)


class Layers(torch.nn.Module):
    """4-bit layers of these widths, quantised as a run does it, fixed as a run fixes them."""

    def __init__(self, *widths: int, rows: int, dtype: torch.dtype, is_double: bool) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.exact = [nf4.clear_of_ties(torch.randn(rows, width, generator=draw).to(dtype)) for width in widths]
        self.layers = torch.nn.ModuleList()
        for weight in self.exact:
            layer = nn.Linear4bit(
                weight.shape[1],
                rows,
                bias=False,
                compute_dtype=dtype,
                compress_statistics=is_double,
                quant_type="nf4",
            )
            packed: Any = nn.Params4bit
            layer.weight = packed(
                weight, requires_grad=False, compress_statistics=is_double, quant_type="nf4", blocksize=nf4.BLOCK
            )
            self.layers.append(layer.to("cpu"))
        for patch in PATCHES:
            patch(self)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 64, 130])
def test_weights_of_every_width_are_dequantised_as_nf4_defines(rows: int, dtype: torch.dtype) -> None:
    made = Layers(*WIDTHS, rows=rows, dtype=dtype, is_double=False)
    layer: Any
    for layer, weight in zip(made.layers, made.exact, strict=True):
        found = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).double()
        rebuilt = nf4.rebuilt(weight)
        off = (found - rebuilt).abs().max() / rebuilt.abs().max()
        assert found.shape == rebuilt.shape
        assert off <= (1e-6 if dtype == torch.float32 else 2**-8), tuple(weight.shape)


@pytest.mark.parametrize("is_double", [False, True])
def test_one_layer_of_each_shape_is_held_against_the_definition(is_double: bool) -> None:
    made = Layers(*WIDTHS, 64, 160, rows=130, dtype=torch.float32, is_double=is_double)
    assert dequantised.check(made) == len(WIDTHS)


ALONE = """
import torch
from bitsandbytes import nn
from loradock.model import dequantised
layer = torch.nn.Sequential(nn.Linear4bit({width}, 64, bias=False, quant_type="nf4").to("cpu"))
{fault}
dequantised.check(layer)
"""
# As bitsandbytes 0.50.2 does on CPUs with AVX-512 where rows are no whole blocks; here on every CPU.
A_BLOCK_BEGINS_WITH_EACH_ROW = """
own = torch.library.get_kernel("bitsandbytes::dequantize_4bit", "CPU")
def by_rows(keys, packed, scales, blocksize, kind, shape, dtype):
    rows, columns = shape
    blocks = (rows * columns // blocksize, blocksize)
    codes = own.call_boxed(keys, packed, torch.ones_like(scales), blocksize, kind, blocks, dtype).reshape(rows, columns)
    places = torch.arange(rows)[:, None] * (columns // blocksize) + torch.arange(columns) // blocksize
    return codes * scales[places].to(dtype)
library = torch.library.Library("bitsandbytes", "IMPL")
library.impl("dequantize_4bit", by_rows, "CPU", with_keyset=True, allow_override=True)
"""


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("width", "fault", "environment"),
    [(160, A_BLOCK_BEGINS_WITH_EACH_ROW, {}), (64, "", damaged("nf4_table"))],
    ids=["a block begins with each row", "a wrong table"],
)
def test_a_layer_that_is_dequantised_wrongly_is_refused_by_its_name(
    width: int, fault: str, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ALONE.format(width=width, fault=fault)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    assert f"0 (64 x {width}) is dequantised incorrectly on cpu: off by " in done.stderr


def test_a_model_whose_rows_are_no_whole_blocks_is_computed_as_its_nf4_weights_say(tmp_path: Path, rows: Path) -> None:
    odd = make_llama(tmp_path / "odd", hidden_size=96, intermediate_size=160, num_attention_heads=6)
    ids = torch.arange(5, 45)[None]

    def exam(model: torch.nn.Module, _: object) -> dict[str, list[float]]:
        with torch.no_grad():
            return {"logits": model(input_ids=ids).logits[0, -1].tolist()}

    result = train(tmp_path / "run", "train.max_steps=2", "model.double_quant=false", model=odd, data=rows, exam=exam)
    reference = AutoModelForCausalLM.from_pretrained(odd, dtype=torch.float32)
    for module in reference.model.layers.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = nf4.rebuilt(module.weight).float()
    with torch.no_grad():
        expected = reference(input_ids=ids).logits[0, -1]
    found = torch.tensor(result.record["exam"]["before"]["logits"])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
