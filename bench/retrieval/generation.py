"""The loss of held-out rows to answer from, by the base or with an adapter, in float32 and unquantised."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.config.load import load
from loradock.data.corpus import prepare_corpus
from loradock.machine import Host, probe

LONGEST = 512


def held_out_loss(base: Path, adapter: Path | None, rows: Path) -> float:
    """Mean negative log-likelihood of the learned tokens, in nats."""
    shortcuts = {"--model": str(base), "--data": [str(rows)]}
    config = load(None, overrides=[f"data.cache={rows.parent / 'cache'}"], shortcuts=shortcuts).config
    tokenizer = AutoTokenizer.from_pretrained(base)
    corpus = prepare_corpus(config, tokenizer=tokenizer, max_length=LONGEST, facts=probe.gather(Host()))
    prepared = corpus.leading.train.prepared
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter) if adapter else model
    total, count = 0.0, 0
    with torch.no_grad():
        for index in range(prepared.rows):
            ids, learned = (torch.from_numpy(each.copy()) for each in prepared.row(index))
            logits = model(input_ids=ids.long()[None]).logits[0, :-1].float()
            losses = torch.nn.functional.cross_entropy(logits, ids[1:].long(), reduction="none")
            total += float(losses[learned[1:]].sum())
            count += int(learned[1:].sum())
    return total / count
