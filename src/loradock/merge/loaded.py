"""A program: the log-probabilities of a model directory as plain transformers loads it: DIR IDS.pt OUT.pt.

It is a process of its own, so that nothing that loradock puts right in transformers can hide a fault of the directory.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM


def main(directory: str, ids: str, output: str) -> None:
    """Write the log-probabilities, float32 [rows, tokens, vocabulary], of the ids."""
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True).eval()
    torch.save(model(torch.load(ids), return_dict=True).logits.float().log_softmax(dim=-1), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
