"""How time and memory of each stage grow with what it is given: `python -m bench.growth [STAGE ...]`.

Each stage is a command that a user types, at three sizes that quadruple, in a process of its own: its CPU seconds with
all its children, and the largest memory of one process. Of two steps from size to size the second costs four times the
first where time grows in proportion, less where a part is fixed or grows slower: `growth` is that ratio over four.
Above 1.25 it is a defect, or the table says why. A second step below LEAST seconds
says nothing, and a first one below it counts as LEAST.

    .venv/bin/python -m bench.growth                 all stages, some ten minutes on two cores
    .venv/bin/python -m bench.growth prepare runs
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.floor.machine import described

RESULTS = Path(__file__).parents[1] / "results" / "growth"
TIMES = 4
LEAST = 0.6
MIB = 1 << 20
WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("ab", "el", "in", "or", "us", "ano", "ile")]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """CPU seconds of a command with its children, and bytes of its largest process."""

    cpu_seconds: float
    memory_bytes: int


def run(folder: Path, *words: object) -> Measured:
    """A command of loradock in a folder, with a cache of its own. SystemExit where it fails."""
    command = [sys.executable, "-m", "loradock", *map(str, words)]
    env = {**os.environ, "LORADOCK_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}:\n{(folder / 'output.txt').read_text()[-2000:]}")
    return Measured(cpu_seconds=usage.ru_utime + usage.ru_stime, memory_bytes=usage.ru_maxrss << 10)


def write_rows(file: Path, *, rows: int) -> Path:
    """Instructions of 8 to 40 words with short answers."""
    draw = random.Random(0)
    with file.open("w", encoding="utf-8") as stream:
        for _ in range(rows):
            text = " ".join(draw.choices(WORDS, k=draw.randint(8, 40)))
            stream.write(json.dumps({"instruction": text, "output": " ".join(draw.choices(WORDS, k=6))}) + "\n")
    return file


def make_base(folder: Path, *, layers: int, hidden: int = 64) -> Path:
    """A Llama with the demo's tokenizer, without its weights where it is only planned."""
    import loradock.demo

    demo = Path(loradock.demo.__file__).parent / "base"
    shutil.copytree(demo, folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings |= {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 2 * hidden, "head_dim": 16}
    settings |= {"num_attention_heads": hidden // 16, "num_key_value_heads": hidden // 16}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    return folder


def with_weights(base: Path) -> Path:
    """The same with random weights."""
    code = "import sys; from transformers import AutoConfig, AutoModelForCausalLM as M\n"
    code += "M.from_config(AutoConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(base)], check=True, capture_output=True)
    return base


def trained(folder: Path, *settings: object, base: Path | None = None) -> Measured:
    """A training of eight steps in `runs/first`, unless the settings say otherwise."""
    model = ("--demo",) if base is None else ("--model", base, "--data", write_rows(folder / "rows.jsonl", rows=256))
    return run(folder, "train", *model, "--max-steps", 8, "--skip-env-check", "--output", "runs/first", *settings)


def prepare(folder: Path, size: int) -> Measured:
    """`data stats` of that many rows that are in no cache."""
    base = make_base(folder / "base", layers=2)
    return run(folder, "data", "stats", "--model", base, "--data", write_rows(folder / "rows.jsonl", rows=size))


def steps(folder: Path, size: int) -> Measured:
    """A training of that many steps."""
    return trained(folder, "--max-steps", size)


def report(folder: Path, size: int) -> Measured:
    """The report of a run of that many steps."""
    trained(folder, "--max-steps", size)
    return run(folder, "report", "runs/first")


def runs(folder: Path, size: int) -> Measured:
    """The list of that many runs."""
    trained(folder)
    for number in range(1, size):
        shutil.copytree(folder / "runs" / "first", folder / "runs" / f"copy-{number}")
    return run(folder, "runs", "runs")


def plan(folder: Path, size: int) -> Measured:
    """A plan for a base of that many layers that was not looked at before."""
    base = make_base(folder / "base", layers=size)
    return run(folder, "plan", "--model", base, "--rows", 10_000, "--mean-tokens", 100, "--gpu", "a10")


def layers(folder: Path, size: int) -> Measured:
    """A training of a base of that many layers, its loading and its checks among it."""
    return trained(folder, base=with_weights(make_base(folder / "base", layers=size)))


def rank(folder: Path, size: int) -> Measured:
    """A training of adapters of that rank, with two checkpoints."""
    base = with_weights(make_base(folder / "base", layers=8, hidden=256))
    return trained(folder, "--set", f"lora.rank={size}", "--set", "checkpoints.every=4", base=base)


def merge(folder: Path, size: int) -> Measured:
    """The merge of an adapter into a base of that many layers."""
    trained(folder, base=with_weights(make_base(folder / "base", layers=size)))
    return run(folder, "merge", "runs/first", "merged")


def evaluate(folder: Path, size: int) -> Measured:
    """The loss of that many rows."""
    trained(folder, base=with_weights(make_base(folder / "base", layers=2)))
    rows = write_rows(folder / "asked.jsonl", rows=size)
    return run(folder, "evaluate", "runs/first", "--data", rows, "--metric", "loss")


STAGES: dict[str, tuple[Callable[[Path, int], Measured], str, int]] = {
    "prepare": (prepare, "rows", 4_000),
    "steps": (steps, "steps", 250),
    "report": (report, "steps", 250),
    "runs": (runs, "runs", 20),
    "plan": (plan, "layers", 16),
    "layers": (layers, "layers", 4),
    "rank": (rank, "rank", 8),
    "merge": (merge, "layers", 8),
    "evaluate": (evaluate, "rows", 200),
}


def growth(first: float, second: float, third: float) -> float | None:
    """The second step over TIMES times the first; None where the second is too short to say."""
    if third - second < LEAST:
        return None
    return (third - second) / (TIMES * max(second - first, LEAST))


def table(machine: object, found: dict[str, list[Measured]]) -> str:
    """The stages in Markdown."""
    rows = ["| stage | sizes | CPU seconds | growth | MiB | growth |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for name, each in found.items():
        what, first = STAGES[name][1:]
        seconds, sizes = [one.cpu_seconds for one in each], [first * TIMES**power for power in range(len(each))]
        mebibytes = [one.memory_bytes / MIB for one in each]
        by_time = growth(*seconds)
        # A step of memory is told from 60 MiB, as one of time is from 0.6 s.
        by_memory = growth(*(value / 100 for value in mebibytes))
        told = ("none" if ratio is None else f"{ratio:.2f}" for ratio in (by_time, by_memory))
        shown_time, shown_memory = told
        cells = (
            f"{name}: {(STAGES[name][0].__doc__ or '').rstrip('.')}",
            f"{', '.join(f'{size:,}' for size in sizes)} {what}",
            ", ".join(f"{value:.1f}" for value in seconds),
            shown_time,
            ", ".join(f"{value:.0f}" for value in mebibytes),
            shown_memory,
        )
        rows.append(f"| {' | '.join(cells)} |")
    told = f"`python -m bench.growth`; growth 1 is in proportion. {machine}"
    head = ["# How time and memory grow", "", told]
    return "\n".join([*head, "", *rows, ""])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found: dict[str, list[Measured]] = {}
    for name in options.stages or STAGES:
        stage, what, first = STAGES[name]
        found[name] = []
        for power in range(3):
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(stage(Path(folder), first * TIMES**power))
            print(f"{name}: {first * TIMES**power} {what}: {found[name][-1]}", file=sys.stderr, flush=True)
    text = table(described("cpu"), found)
    if not options.stages:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "growth.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
