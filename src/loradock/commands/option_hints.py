"""Options that other trainers have: what they are called here, by the table of config/suggest.py."""

from __future__ import annotations

from collections.abc import Collection

import click

from loradock.catalog.objectives import OBJECTIVES
from loradock.catalog.objectives.preference import LOSSES
from loradock.config.load import SHORTCUTS
from loradock.config.other_tools.explained import EXPLAINED
from loradock.config.suggest import key_called
from loradock.text.suggest import nearest

VALUES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "load_in_4bit": "nf4, which is the default",
    "load_in_8bit": "int8",
    "report_to": "[wandb]",
    "wandb": "[wandb]",
    "use_wandb": "[wandb]",
    "tensorboard": "[tensorboard]",
    "use_tensorboard": "[tensorboard]",
    "mlflow": "[mlflow]",
    "use_mlflow": "[mlflow]",
    "load_in_16bit": "none",
    "use_cpu": "cpu",
    "no_cuda": "cpu",
}
"""What the key takes, where the option's name says it."""
OPTIONS_ONLY = {
    "quiet": "progress goes to stderr, results to stdout: 2>/dev/null",
    "silent": "progress goes to stderr, results to stdout: 2>/dev/null",
    "q": "progress goes to stderr, results to stdout: 2>/dev/null",
    "verbose": "all that is known of a run is printed, and kept in run.json and metrics.jsonl",
    "debug": "an unexpected error shows its traceback; loradock env-check --report writes a bug report",
    "log_level": "all that is known of a run is printed, and kept in run.json and metrics.jsonl",
    "yes": "nothing is asked back: leave it out",
    "y": "nothing is asked back: leave it out",
    "force": "nothing is written over: --fresh starts a new run beside the old one",
    "overwrite": "nothing is written over: --fresh starts a new run beside the old one",
    "version": "loradock --version",
    "resume": "loradock train --resume --output RUN",
    "background": "nohup loradock train ... &, or a job of your scheduler",
    "o": "--output DIR is the directory of the run",
    "config": "CONFIG is given without an option: loradock train run.yaml",
    "dry_run": "loradock plan, with the same arguments, says what a run would do",
}


VERBS = {
    "eval": "evaluate", "evaluation": "evaluate", "score": "evaluate", "test": "evaluate", "benchmark": "evaluate",
    "list": "runs", "ls": "runs", "ps": "runs", "status": "runs", "history": "runs", "info": "runs", "show": "runs",
    "doctor": "env-check", "check": "env-check", "env": "env-check", "verify": "env-check", "selftest": "env-check",
    "inference": "generate", "infer": "generate", "predict": "generate", "batch": "generate", "answer": "generate",
    "ask": "chat", "talk": "chat", "cli": "chat", "chatbot": "chat", "repl": "chat", "sft": "train",
    "finetune": "train", "fine-tune": "train", "finetune-lora": "train", "tune": "train", "fit": "train",
    "lora": "train", "qlora": "train", "run": "train", "start": "train", "demo": "train --demo",
    "resume": "train --resume", "continue": "train --resume", "torchrun": "launch", "accelerate": "launch",
    "multi-gpu": "launch", "merge-lora": "merge", "merge-and-unload": "merge", "merge-sharded-fsdp-weights": "merge",
    "fuse": "merge", "convert": "export gguf", "gguf": "export gguf", "quantize": "export gguf",
    "ollama": "export gguf", "preprocess": "data stats", "prepare": "data stats", "tokenize": "data show",
    "dataset": "data stats", "estimate": "plan", "dry-run": "plan", "cost": "plan", "memory": "plan",
    "estimate-memory": "plan", "hardware": "env-check",
    "explain": "plan", "presets": "config presets", "validate": "config validate", "init": "config presets",
    "schema": "config schema", "encode": "embed", "embeddings": "embed", "vectors": "embed", "trace": "profile",
    "bench": "diagnose", "checkpoints": "checkpoint list", "clean": "prune", "clear": "prune", "gc": "prune",
    "docker": "build", "kubernetes": "render", "k8s": "render", "manifest": "render", "plot": "report",
    "html": "report", "compare": "report", "pack": "bundle create", "network": "net-check", "nccl-test": "net-check",
    "version": "--version", "help": "--help",
}  # fmt: skip
"""What others call our verbs -> what to type after `loradock`."""
ELSEWHERE = {
    **dict.fromkeys(
        ("serve", "api", "server", "vllm-serve", "deploy"),
        "nothing is served here: loradock merge writes a model for a server; docs/after.md",
    ),
    **dict.fromkeys(
        ("web", "webui", "web-ui", "app", "webchat", "ui", "gui", "dashboard"),
        "loradock chat RUN, or loradock report RUN",
    ),
    **dict.fromkeys(
        ("llamafactory-cli", "swift", "axolotl", "trl", "unsloth", "tune-run", "litgpt"),
        "the verb alone: loradock train ...; loradock config import FILE takes that tool's configuration",
    ),
    **dict.fromkeys(("download", "fetch", "pull"), "hf download OWNER/NAME --local-dir DIR"),
    **dict.fromkeys(("upload", "push", "publish"), "hf upload OWNER/NAME RUN/adapter"),
    **{
        loss: f"loradock train --model DIR --data FILE --set objective=preference --set preference.loss={loss}"
        for loss in LOSSES
    },
    **dict.fromkeys(("pretrain", "pt", "cpt"), "loradock train --model DIR --data FILE, whose rows are plain text"),
    "rlhf": "loradock train --model DIR --data FILE --set objective=preference (or reward)",
    **dict.fromkeys(("reward", "rm"), "loradock train --model DIR --data FILE --set objective=reward"),
    **dict.fromkeys(("grpo", "ppo", "rl"), f"not trained here: objective is {', '.join(OBJECTIVES)}"),
    **dict.fromkeys(("stop", "kill", "cancel"), "kill -TERM the process: it saves its last step, and ends with 75"),
    **dict.fromkeys(("log", "logs", "metrics", "tail"), "tail -f RUN/metrics.jsonl, or loradock report RUN"),
}
"""Verbs of others that have none here -> what to do."""


def verb_hint(name: str, known: Collection[str]) -> str | None:
    """What to type in the place of an unknown verb."""
    plain = name.lower().replace("_", "-")
    if plain in VERBS:
        return f"loradock {VERBS[plain]}"
    if plain in ELSEWHERE:
        return ELSEWHERE[plain]
    if name.endswith((".yaml", ".yml")):
        return f"loradock train {name}"
    near = nearest(plain, known)
    return f"loradock {near}" if near else None


MODELS = frozenset(
    (
        *("model", "model_name_or_path", "model_path", "base_model", "adapter", "adapters", "adapter_name_or_path"),
        *("lora_model_dir", "lora_path", "peft_model", "run", "run_dir", "ckpt_dir", "checkpoint", "input_dir"),
    )
)
"""Options of other tools for what is an argument here."""
QUESTIONS = frozenset(("prompt", "query", "question", "text", "message", "instruction"))
ASKED_IN_FILES = frozenset(("data", "dataset", "val_dataset", "infer_data", "input_file", "prompts", "file"))


def of_a_model(unknown: click.NoSuchOption) -> click.NoSuchOption:
    """The error of a command that uses what was trained: what an option of other tools is here, an argument or file."""
    context = unknown.ctx
    command = context.command if context else None
    name = unknown.option_name.lstrip("-").lower().replace("-", "_")
    if context is None or command is None or name in context.params:
        return unknown
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    has_input = any("--input" in param.opts for param in command.params)
    if name in MODELS and arguments and not any(param.opts[0] == "--model" for param in command.params):
        metavars = " ".join(param.make_metavar(context) for param in arguments)
        hint = f"it is an argument: {context.command_path} {metavars}"
    elif isinstance(command, click.Group) and context.parent:
        hint = f"a command comes first: {context.command_path} {' | '.join(command.list_commands(context))}"
    elif name in QUESTIONS and has_input:
        hint = "--input FILE answers the rows of a file; one question: echo TEXT | loradock chat MODEL"
    elif name in ASKED_IN_FILES and has_input:
        hint = "--input FILE"
    else:
        return unknown
    return click.NoSuchOption(unknown.option_name, f"No such option {unknown.option_name!r}: {hint}", ctx=context)


def explained(unknown: click.NoSuchOption, command: click.Command) -> click.NoSuchOption:
    """The error with what the option is called here; as it is for a name that nobody else uses either."""
    hint = hint_of(unknown.option_name, command)
    if hint is None:
        return unknown
    return click.NoSuchOption(unknown.option_name, f"No such option {unknown.option_name!r}: {hint}", ctx=unknown.ctx)


def hint_of(option: str, command: click.Command) -> str | None:
    """What an option of other trainers is called here, or why it is not needed; None where nobody has it."""
    name = option.lstrip("-").lower().replace("-", "_")
    if text := OPTIONS_ONLY.get(name) or EXPLAINED.get(name):
        return text
    key = key_called(name)
    if key is None:
        return None
    flag = next((flag for flag, short in SHORTCUTS.items() if short == key), None)
    param_of_flag = next((param for param in command.params if flag in param.opts and name != key), None)
    return f"{flag} {param_of_flag.metavar}" if param_of_flag else f"--set {key}={VALUES.get(name, 'VALUE')}"
