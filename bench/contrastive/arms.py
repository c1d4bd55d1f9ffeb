"""One arm in a process of its own: `python -m bench.contrastive.arms FOLDER ARM`.

It says that it is ready; then, for each line on stdin, it makes a whole optimiser step (forward, backward, clipping,
update) and answers with one line of JSON: loss, gradient norm before clipping, CPU and wall seconds. Batches were
tokenised and laid out before.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.contrastive.subject import BASE, CAUSAL_BASE, LEARNING_RATE, LORA, TARGETS, TEMPERATURE, Subject, set_values
from bench.train.arithmetic import linear_layers

Step = Callable[[], tuple[float, float]]
"""One optimiser step: the loss, and the gradient's norm before it was clipped."""
OURS = ("ours-cached", "ours-direct", "ours-auto")
MNRL, CACHED_MNRL = "mnrl", "cached-mnrl"
SORTED = "sorted-"
PRODUCTS = "products"
CLIPPED_AT = 1.0
MANY_STEPS = 100_000


def step_of(subject: Subject, arm: str, around: ExitStack) -> Step:
    """The step of an arm; what it opens ends with `around`."""
    if arm in OURS:
        return ours(subject, arm.removeprefix("ours-"), around)
    if arm == PRODUCTS:
        return products(subject)
    return sentence_transformers(subject, arm)


def ours(subject: Subject, passes: str, around: ExitStack) -> Step:
    """`loradock train` up to its loop, whose steps are made one by one; all that is not asked for the plan decides."""
    from bench.monitoring.runs import Silent
    from loradock.config.load import load
    from loradock.machine import Host, probe
    from loradock.training.context import opened
    from loradock.training.loop import Loop
    from loradock.training.preparation import ready
    from loradock.training.saving import Saver

    scratch = Path(around.enter_context(tempfile.TemporaryDirectory()))
    settings = {
        "objective": "embedding",
        "device": "cpu",
        "engine": "fast",
        "model.quantization": "none",
        "lora.rank": LORA["r"],
        "lora.alpha": LORA["lora_alpha"],
        "lora.dropout": LORA["lora_dropout"],
        "data.validation": 0,
        "data.cache": scratch / "cache",
        "embedding.global_batch": subject.pairs,
        "embedding.negatives": 0,
        "embedding.template": "plain",
        "embedding.pool_instruction": "true",
        "embedding.temperature": TEMPERATURE,
        "embedding.passes": passes,
        "train.max_steps": MANY_STEPS,
        "train.learning_rate": LEARNING_RATE,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.max_grad_norm": CLIPPED_AT,
        "train.workers": 0,
    }
    loaded = load(
        None,
        overrides=[f"{name}={value}" for name, value in settings.items()],
        shortcuts={"--model": str(subject.path(CAUSAL_BASE)), "--data": [str(subject.path("pairs.jsonl"))]},
    )
    (scratch / "run").mkdir()
    view = Silent()
    context = around.enter_context(opened(loaded, facts=probe.gather(Host()), directory=scratch / "run", view=view))
    found = ready(context, has_exam=False)
    set_values(found.job.model.named_parameters())
    loop = Loop(found.job, found.backend, view.event, Saver(found.job, view.event))
    loop.begin()
    loop.start()
    around.callback(loop.close)
    (inputs,) = [next(iter(loop.loader or ()))]

    def step() -> tuple[float, float]:
        loop.losses.zero_()
        loop.make_step(inputs)
        return float(loop.losses[0]), float(loop.grad_norm)

    return step


def sentence_transformers(subject: Subject, arm: str) -> Step:
    """Its own loss, modules and PEFT adapter; the rest of a step as its trainer makes it, without the trainer.

    Mini-batches of the cached loss are rows of one column that follow one another, each padded to its own longest. Its
    code leaves their order to the caller: pairs come as drawn, under `sorted-` by the query's length.
    """
    import torch
    from peft import LoraConfig
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base = Transformer(str(subject.path(BASE)))
    model = SentenceTransformer(modules=[base, Pooling(base.model.config.hidden_size, "mean")], device="cpu")
    model.add_adapter(LoraConfig(target_modules=list(TARGETS), **LORA))
    set_values(model.named_parameters())
    model.train()
    name, _, size = arm.removeprefix(SORTED).rpartition("-")
    scale = 1 / TEMPERATURE
    if name == CACHED_MNRL:
        loss_of: Any = losses.CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=int(size))
    else:
        loss_of = losses.MultipleNegativesRankingLoss(model, scale=scale)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    ids = base.tokenizer
    texts = subject.texts()
    if arm.startswith(SORTED):
        texts.sort(key=lambda pair: len(ids(pair[0]).input_ids))
    columns = [dict(ids(list(column), padding=True, return_tensors="pt")) for column in zip(*texts, strict=True)]

    def step() -> tuple[float, float]:
        loss = loss_of([dict(column) for column in columns], None)  # modules write into what they are given
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, CLIPPED_AT)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item(), norm.item()

    return step


def products(subject: Subject) -> Step:
    """The floor: the frozen layers' products of one forward and one backward, each of all real tokens, nothing else."""
    import torch

    config = json.loads((subject.path(CAUSAL_BASE) / "config.json").read_text(encoding="utf-8"))
    weights = [torch.randn(outputs, inputs) for inputs, outputs in linear_layers(config)]
    wide = {size: torch.randn(subject.tokens, size) for weight in weights for size in weight.shape}
    into = {size: torch.empty_like(each) for size, each in wide.items()}

    def step() -> tuple[float, float]:
        for _ in range(config["num_hidden_layers"]):
            for weight in weights:
                outputs, inputs = weight.shape
                torch.mm(wide[inputs], weight.t(), out=into[outputs])
                torch.mm(wide[outputs], weight, out=into[inputs])
        return 0.0, 0.0

    return step


def answered(step: Step, lines: Iterator[str]) -> Iterator[dict[str, float]]:
    """A step for each line."""
    for _ in lines:
        began, began_cpu = time.perf_counter(), time.process_time()
        loss, norm = step()
        seconds = {"cpu_seconds": time.process_time() - began_cpu, "wall_seconds": time.perf_counter() - began}
        yield {"loss": loss, "norm": norm, **seconds}


def main() -> None:
    """Answer until stdin ends."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print
    with ExitStack() as around:
        step = step_of(Subject.read(Path(sys.argv[1])), sys.argv[2], around)
        gc.collect()
        gc.freeze()
        print(json.dumps({"ready": sys.argv[2]}), file=stream, flush=True)
        for answer in answered(step, sys.stdin):
            print(json.dumps(answer), file=stream, flush=True)


if __name__ == "__main__":
    main()
