"""A program: the log-probabilities of a model directory as plain transformers loads it: DIR IDS.pt OUT.pt.

It is a process of its own, so that nothing that loradock puts right in transformers can hide a fault of the directory.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers


def main(directory: str, ids: str, output: str) -> None:
    """Write the log-probabilities, float32 [rows, tokens, vocabulary], of the ids; of a reward model [rows, 1]."""
    torch.set_grad_enabled(False)
    config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    cls_named = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0], None)
    cls: Any = cls_named or transformers.AutoModelForCausalLM
    model, report = cls.from_pretrained(directory, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    if report["missing_keys"]:
        raise SystemExit(
            f"the files lack {sorted(report['missing_keys'])[0]} ({len(report['missing_keys'])} are missing)"
        )
    logits = model.eval()(torch.load(ids), return_dict=True).logits.float()
    torch.save(logits if logits.shape[-1] == 1 else logits.log_softmax(dim=-1), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
