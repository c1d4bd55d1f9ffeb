"""GEMM: large matrix products, in the 16-bit formats on a card and in float32 on the CPU."""

from __future__ import annotations

from loradock.checks.base import Check, Finding, Intent
from loradock.checks.known import peak
from loradock.checks.seen import used_cards
from loradock.checks.speeds import judge, medians
from loradock.facts import Facts
from loradock.host import Host

CARD_SIZE, CPU_SIZE = 8192, 2048


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """One square product of each format a round: 2 n^3 operations."""
    import torch

    on_card = facts.has_gpu and not plan.refuses_gpu
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16} if on_card else {"float32": torch.float32}
    if on_card and facts.gpu.capability < (8, 0):
        del formats["bf16"]  # computed there without tensor cores
    device, size = (torch.device("cuda"), CARD_SIZE) if on_card else (torch.device("cpu"), CPU_SIZE)
    pairs = {name: [torch.randn(size, size, device=device, dtype=kind) for _ in "ab"] for name, kind in formats.items()}
    seconds = medians(
        {name: lambda pair=pair: pair[0] @ pair[1] for name, pair in pairs.items()},
        settle=torch.cuda.synchronize if on_card else lambda: None,
    )
    rates = {f"{name}_tflops": 2 * size**3 / each / 1e12 for name, each in seconds.items()}
    known = peak(facts.gpu.name) if on_card else None
    return [
        judge(
            "gemm",
            rates,
            subject=f"{' and '.join(formats)} products on {facts.gpu.name if on_card else 'the CPU'}",
            peak=known,
            published=known and known.tflops,
            cards=used_cards(host, afresh=True) if on_card else (),
        )
    ]


CHECK = Check(
    name="gemm",
    group="bench",
    proves="Large matrix products reach their share of the published TFLOP/s of the card.",
    look=look,
    level="bench",
    limit_seconds=120,
)
