"""The machine's ceilings: `python -m bench.floor`, in the repository's root.

    .venv/bin/python -m bench.floor    a minute; writes bench/results/floor/DEVICE.{json,md}
    .venv/bin/python -m bench.floor --seconds 5 --tokens 256 --shrink 4 --results DIRECTORY

Products of T x 4096 x 14336 and of the other linear layers of a 7-8B model (bfloat16 on a card, float32 on a CPU),
copies within the device's memory, and NF4 dequantisation by bitsandbytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.floor.machine import described, write
from bench.floor.rates import Device, measure

RESULTS = Path(__file__).parents[1] / "results" / "floor"


def table(record: dict[str, Any]) -> str:
    """The rates as Markdown."""
    rates, machine = record["rates"], record["machine"]
    lines = [
        f"{machine['device']}, {rates['dtype']}, torch {machine['stack']['torch']}; slowest .. fastest round.",
        "",
        "| what | tokens | TFLOP/s |",
        "| --- | ---: | ---: |",
    ]
    for name, by_tokens in rates["product_flops"].items():
        shape = " x ".join(map(str, rates["shapes"][name]))
        for tokens, each in by_tokens.items():
            span = f"{each['median'] / 1e12:.3g} ({each['min'] / 1e12:.3g} .. {each['max'] / 1e12:.3g})"
            lines.append(f"| product with {shape} | {tokens} | {span} |")
    for name, what in (("copy_bytes", "copy"), ("dequantise_bytes", "NF4 dequantisation")):
        each = rates[name]
        span = f"{each['median'] / 1e9:.3g} ({each['min'] / 1e9:.3g} .. {each['max'] / 1e9:.3g})"
        lines += ["", f"{what}: {span} GB/s, read and written."]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seconds", type=float, default=60.0, help="for everything together")
    parser.add_argument("--tokens", type=int, nargs="+", help="rows of the products; default 512 4096 16384, CPU 256")
    parser.add_argument("--shrink", type=int, default=1, help="divide the layers' sizes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = described(options.device)
    device = Device.of(machine["kind"])
    tokens = options.tokens or ([512, 4096, 16384] if device.kind == "cuda" else [256])
    rates = measure(device, tokens=tokens, seconds=options.seconds, shrink=options.shrink)
    record = {"machine": machine, "rates": rates}
    write(record, table(record), folder=options.results)


if __name__ == "__main__":
    main()
