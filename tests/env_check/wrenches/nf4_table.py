"""Two neighbouring values of the NF4 table are swapped where 4-bit weights are unpacked."""

from __future__ import annotations

AFTER = "bitsandbytes"
SWAPPED = (11, 12)


def apply() -> None:
    import torch
    from bitsandbytes.backends.utils import CODE

    library = torch.library.Library("bitsandbytes", "IMPL")
    book = CODE["nf4"].clone()
    order = list(range(16))
    order[SWAPPED[0]], order[SWAPPED[1]] = order[SWAPPED[1]], order[SWAPPED[0]]
    book = book[order]

    def dequantise(packed, absmax, blocksize, quant_type, shape, dtype):
        flat = packed.reshape(-1).view(torch.uint8)
        values = book[torch.stack([flat >> 4, flat & 15], dim=1).reshape(-1).long()]
        scales = absmax.float().repeat_interleave(blocksize)[: len(values)]
        return (values * scales).reshape(tuple(shape)).to(dtype)

    library.impl("dequantize_4bit", dequantise, "CPU", allow_override=True)
    apply.library = library  # what it registered lasts as long as it does
