"""One arm in a process of its own: `python -m bench.preference.arms FOLDER ARM`.

It says that it is ready; then, for each line on stdin, it makes a whole step of DPO (reference, forward, backward,
clipping, update) and answers with one line of JSON: loss, CPU and wall seconds. Rows were tokenised before.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

KEPT = "ours, second epoch"
OURS = {
    "ours": ("preference.keep_reference=false",),
    KEPT: (),
    "ours, prompt twice": ("preference.keep_reference=false", "preference.share_prompts=false"),
}
"""Each with its settings; in the second epoch the reference is known, which the warm-up step computed."""
TRL, PRECOMPUTED = "TRL", "TRL, reference precomputed"
ARMS = (*OURS, TRL, PRECOMPUTED)
RANK, ALPHA, LEARNING_RATE = 16, 32, 1e-4
MANY_STEPS = 100_000
Step = Callable[[], float]
"""One optimiser step: its loss."""


def ours(folder: Path, chosen: tuple[str, ...], around: ExitStack) -> Step:
    """`loradock train` up to its loop, whose steps are made one by one; what is not set the plan decides."""
    import torch

    from bench.monitoring.runs import Silent
    from loradock.config.load import load
    from loradock.machine import Host, probe
    from loradock.training.context import opened
    from loradock.training.loop import Loop
    from loradock.training.preparation import ready
    from loradock.training.saving import Saver

    scratch = Path(around.enter_context(tempfile.TemporaryDirectory()))
    pairs = len((folder / "pairs.jsonl").read_text("utf-8").splitlines())
    settings = {
        "objective": "preference",
        "device": "cpu",
        "engine": "fast",
        "lora.rank": RANK,
        "lora.alpha": ALPHA,
        "data.validation": 0,
        "data.cache": scratch / "cache",
        "train.global_batch": pairs,
        "train.max_steps": MANY_STEPS,
        "train.learning_rate": LEARNING_RATE,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.workers": 0,
    }
    loaded = load(
        None,
        overrides=[*(f"{name}={value}" for name, value in settings.items()), *chosen],
        shortcuts={"--model": str(folder / "base"), "--data": [str(folder / "pairs.jsonl")]},
    )
    (scratch / "run").mkdir()
    view = Silent()
    context = around.enter_context(opened(loaded, facts=probe.gather(Host()), directory=scratch / "run", view=view))
    prepared = ready(context, has_exam=False)
    torch.set_num_threads(1)  # as the other arms; the plan would take all cores
    loop = Loop(prepared.job, prepared.backend, view.event, Saver(prepared.job, view.event))
    loop.begin()
    loop.start()
    around.callback(loop.close)
    (inputs,) = [next(iter(loop.loader or ()))]

    def step() -> float:
        loop.losses.zero_()
        loop.make_step(inputs)
        return float(loop.losses[0])

    return step


def trl(folder: Path, around: ExitStack, *, is_precomputed: bool) -> Step:
    """The loss of TRL's DPOTrainer on one batch of all pairs, NF4 and LoRA by PEFT, no activation recomputed."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    scratch = around.enter_context(tempfile.TemporaryDirectory())
    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder / "base", quantization_config=bits, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
    rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text("utf-8").splitlines()]
    arguments = DPOConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
        per_device_train_batch_size=len(rows),
        precompute_ref_log_probs=is_precomputed,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = DPOTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "base"),
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    parameters = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.data = parameter.data.float()
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    trainer.model.train()

    def step() -> float:
        loss: Any = trainer.compute_loss(trainer.model, dict(batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def main() -> None:
    """Answer until stdin ends."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print
    folder, arm = Path(sys.argv[1]), sys.argv[2]
    with ExitStack() as around:
        is_precomputed = arm == PRECOMPUTED
        step = ours(folder, OURS[arm], around) if arm in OURS else trl(folder, around, is_precomputed=is_precomputed)
        gc.collect()
        gc.freeze()
        print(json.dumps({"ready": arm}), file=stream, flush=True)
        for _ in sys.stdin:
            began, began_cpu = time.perf_counter(), time.process_time()
            loss = step()
            seconds = {"cpu_seconds": time.process_time() - began_cpu, "wall_seconds": time.perf_counter() - began}
            print(json.dumps({"loss": loss, **seconds}), file=stream, flush=True)


if __name__ == "__main__":
    main()
