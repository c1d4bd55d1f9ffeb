"""A mixture of experts by the fast engine and by PEFT: `python -m bench.mixture`, in the repository's root.

    .venv/bin/python -m bench.mixture       Qwen3-MoE: 4 layers of 512, 16 experts of 256 each, 4 of them for a token
    .venv/bin/python -m bench.mixture --family glm4_moe      a shared expert beside them, and the first layer dense
    .venv/bin/python -m bench.mixture --family qwen3_next --least-words 16      three of four layers keep a state

The model (random weights, NF4, an adapter on attention and experts) is really trained, one run after another, the order
turned from round to round. What counts are tokens for a CPU second of the process in the best step of each run, to
which other programs on the machine add least. A first round, in which a process is slower, is shown and not counted.
The losses of both engines are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.floor.machine import described
from bench.monitoring.runs import WARMUP_STEPS, WORDS, Subject, trained

ENGINES = ("fast", "peft")
ROWS, HEADS = 64, 8
FAMILIES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "qwen3_moe": lambda experts, inner: {
        "num_experts": experts,
        "moe_intermediate_size": inner,
        "norm_topk_prob": True,
    },
    "qwen2_moe": lambda experts, inner: {
        "num_experts": experts,
        "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": 2 * inner,
    },
    "glm4_moe": lambda experts, inner: {
        "n_routed_experts": experts,
        "moe_intermediate_size": inner,
        "intermediate_size": 4 * inner,
    },
    "qwen3_next": lambda experts, inner: {
        "num_experts": experts,
        "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": inner,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "glm4_moe_lite": lambda experts, inner: {
        "n_routed_experts": experts,
        "moe_intermediate_size": inner,
        "intermediate_size": 4 * inner,
        "num_key_value_heads": HEADS,
        "head_dim": 32,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    },
    "gpt_oss": lambda experts, inner: {"num_local_experts": experts, "intermediate_size": inner},
}
"""A model_type, and what its configuration calls experts and their inner width."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=WARMUP_STEPS + 6, help="of each run")
    parser.add_argument("--samples", type=int, default=8, help="rows of a step")
    parser.add_argument("--words", type=int, default=96, help="of a row")
    parser.add_argument("--least-words", type=int, help="rows have from so many to --words words, not all --words")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3_moe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of both engines")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        subject = made(Path(folder), options)
        rates: list[dict[str, float]] = []
        for number in range(options.rounds + 1):
            order = ENGINES if number % 2 else ENGINES[::-1]
            runs = {engine: speed(subject, f"engine={engine}", *settings(options)) for engine in order}
            rates.append({engine: rate for engine, (rate, _) in runs.items()})
            moved = max(abs(a - b) for a, b in zip(*(losses for _, losses in runs.values()), strict=True))
            print({engine: round(rate) for engine, rate in rates[-1].items()}, f"losses within {moved:.0e}", flush=True)
    means = {engine: statistics.mean(each[engine] for each in rates[1:]) for engine in ENGINES}
    words = f"{options.least_words} to {options.words}" if options.least_words else f"{options.words}"
    print(
        f"{described()['device']}, {options.family}, hidden {options.hidden}, {options.experts} experts, "
        f"{options.samples} rows of {words} words a step: {means['fast']:.0f} tokens a CPU second "
        f"against {means['peft']:.0f} of PEFT, "
        f"{means['fast'] / means['peft']:.2f} times"
    )


def settings(options: Any) -> list[str]:
    """Those of the command."""
    return [f"train.global_batch={options.samples}", "lora.targets=[all-linear,experts]", *options.set]


def speed(subject: Subject, *more: str) -> tuple[float, list[float]]:
    """Tokens for a CPU second in the best step of a run after the first ones, and the losses of all steps."""
    lines, ends = trained(subject, *more)
    steps = [line for line in lines if "loss" in line]
    rates = [line["tokens"] / (end - start) for line, (start, end) in zip(steps[1:], pairwise(ends), strict=True)]
    return max(rates[WARMUP_STEPS - 1 :]), [line["loss"] for line in steps]


def made(folder: Path, options: Any) -> Subject:
    """The model and rows that it trains on."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from loradock import demo

    tokenizer = AutoTokenizer.from_pretrained(Path(demo.__file__).parent / "base")
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        options.family,
        vocab_size=len(tokenizer),
        hidden_size=options.hidden,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_experts_per_tok=4,
        max_position_embeddings=1024,
        **{"num_key_value_heads": 2, **FAMILIES[options.family](options.experts, options.hidden // 2)},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    draw = random.Random(0)
    least = options.words if options.least_words is None else options.least_words
    lengths = [least + (options.words - least) * number // (ROWS - 1) for number in range(ROWS)]
    rows = [{"instruction": "Repeat.", "output": " ".join(draw.choices(WORDS, k=length))} for length in lengths]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Subject(folder=folder, steps=options.steps, model=folder / "model")


if __name__ == "__main__":
    main()
