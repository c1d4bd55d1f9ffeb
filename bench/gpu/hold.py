"""Takes all of the GPU's memory but some, until it is killed: `python -m bench.gpu.hold BYTES`."""

from __future__ import annotations

import sys


def main() -> None:
    """Take it in pieces, say so, wait for the end of stdin."""
    import torch

    kept: list[torch.Tensor] = []
    piece_bytes = 1 << 30
    while torch.cuda.mem_get_info()[0] - piece_bytes > int(sys.argv[1]):
        kept.append(torch.empty(piece_bytes, dtype=torch.uint8, device="cuda"))
    print(f"{len(kept)} GiB taken", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
