"""What only a GPU can answer, and what each answer decides: the rows of docs/gpu.md, in its order.

To add one: a line here with the next number, and a step that names the number (or `by_hand`, why no step can). The
test of docs/gpu.md prints the row that the page lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Question:
    """A question, what its answer settles, and for one that no step of scripts/gpu answers: how, and why not."""

    text: str
    decides: str
    by_hand: str = ""
    number: int = 0


def numbered(*questions: Question) -> tuple[Question, ...]:
    """From 1 on."""
    return tuple(replace(question, number=number) for number, question in enumerate(questions, start=1))


QUESTIONS = numbered(
    Question(
        "Ceilings of the GPU: sustained bf16 products, copy bandwidth, NF4 dequantise GB/s",
        "the rates of `src/loradock/plan/gpus.json` that `plan` predicts seconds with",
    ),
    Question(
        "TRL on Mistral-7B- and TinyLlama-shaped random weights: share of the time in which the GPU is busy",
        "whether the host's cost is what the fast engine wins, or its kernels",
    ),
    Question(
        "Cached bf16 weights against bitsandbytes: forward and dX `torch.equal` for 2k to 16k tokens and the small "
        "k/v shapes",
        "whether `model.cache_weights: auto` stays on",
    ),
    Question(
        "torch's varlen attention with padded cu_seqlens: deterministic on and off, equal to SDPA of each document",
        "whether `flash-torch` stays the first choice for attention over documents",
    ),
    Question(
        "Fused block against PEFT: gradients, ms, memory", "whether `engine: auto` stays the fast engine on a GPU"
    ),
    Question(
        "unsloth with and without checkpointing on the same data in the same order",
        "what the README may say of speed",
    ),
    Question(
        "Does the demo train on a GPU, and does each backend, with the planned dtypes and packing?",
        "whether the first command of the README holds",
    ),
    Question(
        "Is the memory estimate of the plan above the peak that was reserved, as it is with torch's allocator on the "
        "stand-in (by 0.3 to 3.8 %)? What does `runtime` measure, and do expandable segments work with this driver?",
        "the margins of `plan/memory/`, and so the micro-batch and the checkpointing that the plan chooses",
    ),
    Question(
        "Is a continued run exact on a GPU, with `deterministic: true` and without?",
        "what docs/reliability.md promises of a resume on a GPU",
    ),
    Question(
        "Does the image train on a GPU as an arbitrary uid, read-only?",
        "whether the image may be published",
        "needs a container engine: `docker run --rm --gpus all --user 123456:0 --read-only "
        "--tmpfs /tmp:rw,exec,nosuid,nodev IMAGE train --demo --output /tmp/out`",
    ),
    Question(
        "Does the compiled flash-attn give the same loss as torch's own FlashAttention-2 in the image built with "
        "`--flash-attn build`?",
        "whether the option `--flash-attn build` is kept",
        "needs a container engine and a network: `loradock build --flash-attn build --flash-attn-archs 90`, then the "
        "same run in both images",
    ),
    Question(
        "Does `env-check` find a healthy GPU healthy, within 30 s, and are its tolerances in bf16 right? Which SDPA "
        "backends raise?",
        "the tolerances of `env_check/compute`, and its default level",
    ),
    Question(
        "What NVML really answers on a GPU (MIG, ECC, clocks, power, PCIe in a VM), against the recorded facts",
        "the facts that the tests of `env_check/gpu` stand on",
    ),
    Question(
        "Shares of the published figures that a healthy GPU reaches",
        "the floors in `src/loradock/plan/gpus.json`",
    ),
    Question(
        "Does NCCL's all-reduce check end in time when one GPU does not answer?",
        "the time limit of the check `collective`",
        "needs several GPUs, one of them stopped by hand: `loradock env-check --only collective`",
    ),
    Question(
        "A GPU that is really full: is `torch.OutOfMemoryError` recovered from at step 1, and beside a process that "
        "takes most of the memory; is the loss that of the small micro-batch from the start?",
        "whether recovery from out of memory stays on by default",
    ),
    Question(
        "What the look at loss and gradient norm before each optimiser step costs (one value read back a step)",
        "whether the fast engine reads them a step later",
    ),
    Question(
        "Are the states of 8-bit and paged optimisers saved and restored bit for bit?",
        "whether a resume with them is called exact",
    ),
    Question(
        "Seconds of a commit for a 7B adapter of rank 64, and its share of the run",
        "the default of `checkpoints.every`",
    ),
    Question(
        "NCCL: SIGTERM to the launcher of several GPUs commits once, and the job continues; one killed rank ends the "
        "others within the limit",
        "what docs/many-gpus.md promises",
        "needs several GPUs and a process killed by hand: `loradock launch --nproc 8 train ...`",
    ),
    Question(
        "Do CUDA graphs of the fast engine capture, equal the ordinary way, and pay where `auto` turns them on (the "
        "host expected to be slower than the GPU)?",
        "whether `train.cuda_graphs` stays: it goes where it gains less than 3 %",
    ),
    Question(
        "`train.compile` of the peft backend: does each mode compile, equal eager, and pay?",
        "which modes of `train.compile` stay",
    ),
    Question(
        "The launches past Triton's and bitsandbytes' own doors (`kernels/launch.py`, `weights.py`): same numbers, and "
        "how many milliseconds a micro-step?",
        "whether the launches of our own are worth their code",
    ),
    Question(
        "The seed's table on a GPU: does `diagnose` of the seed's settings find what the notes found, and where do "
        "they differ?",
        "the gains that `audit` states",
    ),
    Question(
        "Is `largest pass` (measured before the first step) near what the plan expects, for each real config?",
        "the activation terms of `plan/memory/`",
    ),
    Question(
        "Is forking trials safe on a GPU (no CUDA before the fork), and is the memory of one trial given back before "
        "the next?",
        "whether trials fork or start again",
    ),
    Question(
        "GPU busy share, roles of kernels and the verdict of `profile`",
        "the thresholds of `profile`'s verdict",
    ),
    Question(
        "What NVML samples cost a training on a GPU, and whether alerts are right on a healthy one",
        "the default of `logging.monitor_seconds`",
    ),
    Question(
        "FSDP2 on several GPUs: losses, share of the model, peak against `memory/sharded.py`, offload, the same bits "
        "again",
        "whether `train.parallel: auto` may choose FSDP2",
    ),
    Question(
        "ZeRO-2 and 3 on several GPUs: losses, share of the model, peak, offload; the ops that DeepSpeed compiles "
        "there",
        "whether ZeRO stays an option of `train.parallel`",
    ),
    Question(
        "NCCL: one killed, stopped or cut off process ends the others within `limits.peer_seconds` and is named",
        "the default of `limits.peer_seconds`",
        "needs several GPUs and processes killed by hand: the faults of `tests/faults/test_peers.py` under "
        "`loradock launch --nproc 8`",
    ),
    Question(
        "net-check over NCCL: correctness, a slow GPU, a slow link",
        "the thresholds of `net-check`",
    ),
    Question(
        "What a process of DDP costs a step on several GPUs",
        "the scaling that `plan --gpus` predicts",
        "needs several GPUs (`python -m bench.ddp` measures CPUs): tokens/s of `loradock launch --nproc N train` "
        "against one process",
    ),
    Question(
        "Memory of the host that a run with a GPU needs, against what `render` asks for",
        "the memory requests of `render`",
    ),
    Question(
        "What the self-check finds on a real shape: do documents not see one another, float32 within 1e-4 "
        "of PEFT's, bf16 no farther than PEFT's own; its seconds and memory",
        "the tolerances of the self-check, and whether it runs before every training",
    ),
    Question(
        "After a capture of a CUDA graph that fails: do dropout and the stream work again?",
        "whether a failed capture may fall back within the run",
    ),
)
