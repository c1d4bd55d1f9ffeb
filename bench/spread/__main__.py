"""Host memory while N processes load one base: each the whole of it, or each its part. `python -m bench.spread`.

A Llama of 0.3 billion random weights in bfloat16 is made once. Anonymous memory is what a process has for itself, seen
every 5 ms; pages of mapped files are shared by all processes and can be dropped, so they are counted apart. On a CPU
what a card would hold lies in host memory, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parents[1] / "results" / "spread.json"
SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
}
EVERY_SECONDS = 0.005
WAYS = ("whole", "part")


class Peak:
    """The highest figures of this process's memory while it runs, in bytes."""

    def __init__(self) -> None:
        self.own_bytes = self.mapped_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def look(self) -> tuple[int, int]:
        """Anonymous bytes, and bytes of mapped files."""
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return tuple(int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))  # type: ignore[return-value]

    def end(self) -> None:
        """Stop looking."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(EVERY_SECONDS):
            own, mapped = self.look()
            self.own_bytes, self.mapped_bytes = max(self.own_bytes, own), max(self.mapped_bytes, mapped)


def make(directory: Path) -> int:
    """The model and its tokenizer; returns its weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from loradock import demo

    words = AutoTokenizer.from_pretrained(Path(demo.__file__).parent / "base")
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(words), num_key_value_heads=16, tie_word_embeddings=False, **SHAPE)
    model = LlamaForCausalLM(config)
    model.bfloat16()
    model.save_pretrained(directory, max_shard_size="100MB")
    words.save_pretrained(directory)
    return sum(each.numel() for each in model.parameters())


def load(directory: Path, way: str) -> None:
    """In one of the processes: load, and print what it took."""
    import torch
    from transformers import AutoModelForCausalLM

    from loradock.config.sections.model import ModelConfig
    from loradock.model import source, spread
    from loradock.model.load import quantization

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    asked = ModelConfig(name=str(directory))
    base, dtype = source.find(asked), torch.bfloat16
    spread.skeleton(base, dtype=dtype, attention="sdpa")  # whatever is imported on the way
    torch.distributed.barrier()
    peak = Peak()
    before, _ = peak.look()
    if way == "part":
        given: Any = {"dtype": dtype, "storage": dtype, "attention": "sdpa", "device": "cpu", "kept_on": "cpu"}
        model = spread.read(base, asked, **given)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            directory, quantization_config=quantization(asked, dtype), dtype=dtype, device_map={"": "cpu"}
        )
    peak.end()
    torch.distributed.barrier()
    figures = {"peak_bytes": peak.own_bytes - before, "mapped_bytes": peak.mapped_bytes}
    print(json.dumps({**figures, "class": type(model).__name__}), flush=True)
    torch.distributed.destroy_process_group()


def run(directory: Path, way: str, *, processes: int, port: int) -> list[dict[str, Any]]:
    """One group of processes; what each says."""
    command = [sys.executable, "-m", "bench.spread", "--one", way, str(directory)]
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(processes)
    ]
    return [json.loads(each.communicate()[0].strip().splitlines()[-1]) for each in started]


def main() -> None:
    """Both ways, and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "DIR"), help="be one of the processes")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    if asked.one:
        load(Path(asked.one[1]), asked.one[0])
        return
    with tempfile.TemporaryDirectory() as folder:
        weights = make(Path(folder))
        found = {
            way: run(Path(folder), way, processes=asked.processes, port=29_610 + number)
            for number, way in enumerate(WAYS)
        }
    record = {"weights": weights, "processes": asked.processes, **found}
    RESULT.write_text(json.dumps(record) + "\n", encoding="utf-8")
    for way, each in found.items():
        total = sum(one["peak_bytes"] for one in each) / 2**20
        print(f"{way:6} peak {total:7,.0f} MiB over all processes")


if __name__ == "__main__":
    main()
