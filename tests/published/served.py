"""A program: an adapter as plain peft serves it on its base's published class: BASE ADAPTER IDS.pt OUT.pt.

Nothing of loradock is in the process. It writes the logits, float32 [rows, tokens, vocabulary], and prints, as JSON,
the tensors of the file that no module holds, the layers with LoRA, and those of them that lie outside the decoder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file


def main(base: str, adapter: str, ids: str, output: str) -> None:
    config: Any = transformers.AutoConfig.from_pretrained(base)
    cls = getattr(transformers, config.architectures[0])
    model = cls.from_pretrained(base, dtype=torch.float32).eval()
    served: Any = PeftModel.from_pretrained(model, adapter).eval()
    decoder = next(name for name, module in served.named_modules() if module is model.get_decoder())
    layers = [name for name, module in served.named_modules() if isinstance(module, LoraLayer)]
    held = {name.replace(".default.", "."): each for name, each in served.named_parameters()}
    tensors = load_file(Path(adapter) / "adapter_model.safetensors")
    with torch.no_grad():
        torch.save(served(input_ids=torch.load(ids)).logits.float(), output)
    found = {
        "lost": [key for key, each in tensors.items() if key not in held or not torch.equal(held[key], each)],
        "layers": len(layers),
        "outside": [name for name in layers if not name.startswith(f"{decoder}.")],
        "tensors": len(tensors),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
