"""`loradock export gguf`: a merged model as one file for llama.cpp and Ollama."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import click

from loradock.commands.model_options import MODEL, TRUST, quiet
from loradock.commands.page import console_on, say
from loradock.commands.paths import LocalPath
from loradock.commands.verbs import verb_group
from loradock.process import signals, streams


@verb_group(
    "export",
    {
        "ollama llama.cpp llamacpp llama-cpp": "loradock export gguf",
        "merged merge safetensors hf vllm transformers": "loradock merge RUN OUT",
        "sentence-transformers st": "loradock checkpoint export RUN -o DIR --as sentence-transformers",
        "adapter lora peft checkpoint": "loradock checkpoint export",
    },
)
def export() -> None:
    """Write a model in another program's format."""


@export.command(context_settings={"help_option_names": ["-h", "--help"]})
@MODEL
@click.option("-o", "--output", required=True, metavar="FILE", type=LocalPath(dir_okay=False), help="A new file.")
@click.option(
    "--type",
    "type_name",
    type=click.Choice(("bf16", "f16", "q8_0")),
    default="bf16",
    show_default=True,
    help="Of the matrices; vectors are float32.",
)
@TRUST
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def gguf(model: Path, output: Path, *, type_name: str, trusted: tuple[str, ...], as_json: bool) -> None:
    """Write MODEL, a merged model or a base, as GGUF, and an Ollama Modelfile beside it.

    Llama, Mistral, Qwen, Gemma 3, and mixtures: Mixtral, gpt-oss, GLM-4.5, DeepSeek-V3, Qwen3.5 and others.

    \b
    loradock merge runs/a-001 merged
    loradock export gguf merged -o merged.gguf --type q8_0

    FILE appears whole or not at all. A tokenizer that llama.cpp has no rules for is refused. For smaller types use
    llama.cpp's own: llama-quantize merged.gguf smaller.gguf Q4_K_M.
    """
    quiet()

    from loradock.use.gguf.export import export as write
    from loradock.use.inference.opener import find

    with redirect_stdout(sys.stderr), console_on(stderr=True).status("gguf") as status:

        def show(done: int, total: int) -> None:
            signals.check()
            status.update(f"{done:,} of {total:,} tensors")

        summary = write(find(model, trusted=trusted), output, type_name=type_name, progress=show)
    streams.result_lies_elsewhere()
    for note in summary.notes:
        say(f"note: {note}", stderr=True)
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=2, default=str))
        return
    template = f"template {summary.template}" if summary.template else "no template: the file's own is left to Ollama"
    click.echo(f"{output}: {summary.tensors:,} tensors, {summary.size_bytes:,} bytes, pre-tokenizer {summary.pre}")
    click.echo(f"{summary.modelfile}: {template}")
