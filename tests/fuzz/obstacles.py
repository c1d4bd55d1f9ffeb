"""What is no file in the place of each file that is read: a command names it and ends, whatever lies there.

`PYTHONPATH=src:tests python -m fuzz.obstacles [--file TEXT] [--obstacle NAME]` meets every file of the kinds, and those
of PLACES, with every obstacle.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from faults.campaign.processes import ENVIRONMENT, Process, adopt, preload
from faults.campaign.subjects import Loradock
from fuzz.judge import DOCUMENTED, command, waited
from fuzz.kinds import KINDS
from fuzz.kinds.adapters import GENERATE, OF_MERGED, OF_RUN, make_adapter, make_embedding, make_merged
from fuzz.kinds.checkpoints import CONTINUED, EXPORT, LIST, NEWEST, VERIFY
from fuzz.kinds.model_parts import PLAN, TRAIN
from fuzz.kinds.model_parts import make as make_model
from fuzz.kinds.run_directory import REPORT, RUNS, SAME, make, make_unfinished, ran
from fuzz.kinds.settings import LOCK, make_configuration, make_lock
from proven import OPTION, VERDICT, unchecked

MOST_CPU_SECONDS = 20.0
MOST_BYTES = 256 << 20
SPARSE_BYTES = (1 << 30) + 8

Make = Callable[[Path], object]
Obstacle = Callable[[Path], object]


def _sparse(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(SPARSE_BYTES)


OBSTACLES: dict[str, Obstacle] = {
    "fifo": os.mkfifo,
    "endless device": lambda file: file.symlink_to("/dev/zero"),
    "full device": lambda file: file.symlink_to("/dev/full"),
    "directory": Path.mkdir,
    "sparse": _sparse,
    "loop": lambda file: file.symlink_to(file.name),
}
BUNDLE = ("bundle", "verify", "run.tar")
EVALUATE = ("evaluate", "adapter", "--device", "cpu", "--max-new-tokens", "2")
TASK = '[{"instruction": "Is it?\\n\\nAnswer format: true/false", "input": "", "answer": "true"}]'
ZERO = ("--set", "train.deepspeed=zero.json", "--set", "train.parallel=zero2")
GGUF = ("export", "gguf", "merged", "-o", "merged.gguf")


def make_bundle(folder: Path) -> None:
    """A bundle, and what it was made of."""
    os.chdir(folder)
    make_model(folder)
    ran("bundle", "create", "run.tar", "--model", "model", "--data", "rows.jsonl")


def make_asked(folder: Path) -> None:
    """An adapter, and rows of a task."""
    make_adapter(folder)
    (folder / "boolq.json").write_text(TASK)


def make_given(folder: Path) -> None:
    """Files that options name."""
    make_configuration(folder)
    (folder / "own.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    (folder / "held_out.jsonl").write_text('{"instruction": "a", "output": "b"}\n')
    (folder / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')


CHECKPOINT_FILES = ("manifest.json", "adapter_model.safetensors", "adapter_config.json", "training_state.pt")
RECORDS = ("run.json", "status.json", "metrics.jsonl")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
MODEL = ("config.json", "generation_config.json", "model.safetensors", *TOKENIZER)
EXPORTED = ("adapter_config.json", "adapter_model.safetensors", "training.json", "README.md", *TOKENIZER)
PLACES: tuple[tuple[Make, str, tuple[str, ...]], ...] = (
    *((make_model, f"model/{name}", PLAN) for name in MODEL),
    *((make_model, f"model/{name}", TRAIN) for name in MODEL),
    (make_model, "rows.jsonl", TRAIN),
    *((make, f"run/{NEWEST}/{name}", verb) for name in CHECKPOINT_FILES for verb in (LIST, VERIFY, EXPORT)),
    *((make, f"run/{name}", verb) for name in RECORDS for verb in (RUNS, REPORT, SAME)),
    *((make, f"run/{name}", REPORT) for name in ("monitor.jsonl", "evaluations/results.json")),
    *((make, f"run/adapter/{name}", SAME) for name in EXPORTED),
    *((make_unfinished, f"run/{CONTINUED}/{name}", SAME) for name in CHECKPOINT_FILES),
    *((make_unfinished, f"run/{name}", SAME) for name in (*RECORDS, "monitor.jsonl", ".lock")),
    *((make_adapter, f"adapter/{name}", GENERATE) for name in EXPORTED),
    *((make_adapter, f"model/{name}", GENERATE) for name in MODEL),
    *((make_adapter, f"run/{name}", OF_RUN) for name in ("run.json", *(f"adapter/{each}" for each in EXPORTED))),
    (make_adapter, "questions.jsonl", GENERATE),
    *((make_adapter, f"adapter/{name}", ("merge", "adapter", "merged")) for name in EXPORTED),
    *((make_adapter, f"model/{name}", ("merge", "adapter", "merged")) for name in MODEL),
    (make_adapter, "run/run.json", ("merge", "run", "merged")),
    (make_adapter, "adapter/adapter_config.json", ("chat", "adapter", "--device", "cpu")),
    *((make_merged, f"merged/{name}", OF_MERGED) for name in (*MODEL, "merge.json")),
    *((make_merged, f"merged/{name}", GGUF) for name in (*MODEL, "merge.json")),
    *((make_embedding, file, ("embed", "adapter", "--input", "texts.txt", "-o", "vectors.npy", "--device", "cpu"))
      for file in ("texts.txt", "adapter/embedding.json", "adapter/adapter_config.json", "adapter/training.json")),
    (make_asked, "questions.jsonl", (*EVALUATE, "--data", "questions.jsonl")),
    (make_asked, "boolq.json", (*EVALUATE, "--task", "boolq=boolq.json")),
    *((make_asked, file, (*EVALUATE, "--data", "questions.jsonl", "--training-data", "rows.jsonl"))
      for file in ("rows.jsonl", *(f"adapter/{name}" for name in EXPORTED), *(f"model/{name}" for name in MODEL))),
    (make_bundle, "run.tar", BUNDLE),
    *((make_bundle, file, ("bundle", "create", "other.tar", "--model", "model", "--data", "rows.jsonl"))
      for file in ("rows.jsonl", "model/config.json")),
    (make_given, "own.jinja", (*PLAN, "--set", "data.template=own.jinja")),
    (make_given, "zero.json", ("config", "validate", "run.yaml", *ZERO)),
    (make_given, "run.yaml", ("config", "show", "run.yaml")),
    (make_given, "run.yaml", ("render", "job", "run.yaml")),
    (make_given, "run.yaml", ("train", "run.yaml", OPTION)),
    *((make_given, file, ("data", verb, "--data", "rows.jsonl", "--model", "model"))
      for verb in ("stats", "show") for file in ("rows.jsonl", "model/config.json", "model/tokenizer.json")),
    (make_given, "held_out.jsonl", (*PLAN, "--set", "data.validation=held_out.jsonl")),
    (make_lock, "requirements.lock", LOCK),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Met:
    """What a command said of an obstacle."""

    file: str
    obstacle: str
    command: tuple[str, ...]
    code: int
    cpu_seconds: float
    bytes: int
    words: str

    @property
    def flaws(self) -> list[str]:
        """What is wrong with it; none where it holds."""
        found = [] if self.code in DOCUMENTED else [f"ended with {self.code}"]
        if "Traceback (most recent call last)" in self.words:
            found.append("shows a traceback")
        if self.cpu_seconds > MOST_CPU_SECONDS:
            found.append(f"took {self.cpu_seconds:.0f} s of CPU time")
        if self.bytes > MOST_BYTES:
            found.append(f"took {self.bytes >> 20} MiB")
        file = Path(self.file)
        named = (
            (file.name, file.parent.name) if self.obstacle == "loop" else (file.name,)
        )  # such a link is no file at all
        if self.code and not any(each and each in self.words for each in named):
            found.append("does not name the file")
        return found

    def __str__(self) -> str:
        return f"{self.obstacle} as {self.file}, {' '.join(self.command)}: {self.code} {'; '.join(self.flaws)}"


def places() -> list[tuple[Make, str, tuple[str, ...]]]:
    """Every file that is read, with who makes its folder and who reads it."""
    found = [*((kind.make, kind.file, kind.command) for kind in KINDS if "*" not in kind.file), *PLACES]
    return sorted(dict.fromkeys(found), key=lambda each: (each[0].__module__, each[0].__qualname__, each[2]))


def meet(asked: Sequence[tuple[Make, str, tuple[str, ...]]], obstacles: Sequence[str]) -> Iterator[Met]:
    """Each file in turn, in a copy of a good folder, with each obstacle in its place."""
    for make_good, group in groupby(asked, key=lambda each: each[0]):
        folder = Path(tempfile.mkdtemp(prefix="loradock-obstacles-"))
        try:
            yield from _meet(make_good, [each[1:] for each in group], obstacles, folder)
        finally:
            shutil.rmtree(folder)


def _meet(
    make_good: Make, asked: Sequence[tuple[str, tuple[str, ...]]], obstacles: Sequence[str], folder: Path
) -> Iterator[Met]:
    good = folder / "good"
    good.mkdir()
    made = Process(lambda: make_good(good), cwd=folder, log=folder / "made", environment={})
    assert made.finish().exit_code == 0, made.text()
    for arguments, files in groupby(asked, key=lambda each: each[1]):
        usual = folder / "usual"
        shutil.copytree(good, usual, symlinks=True)
        code, _, most_bytes, words = _run(arguments, usual, folder / "log")
        assert code == 0, f"{arguments} without an obstacle: {code}\n{words}"
        for file, _ in files:
            source = good if (good / file).exists() else usual
            for name in obstacles if (source / file).exists() else ():
                place = folder / "met"
                shutil.copytree(source, place, symlinks=True)
                (place / file).unlink()
                OBSTACLES[name](place / file)
                code, cpu_seconds, bytes_, words = _run(arguments, place, folder / "log")
                shutil.rmtree(place)
                took = {"cpu_seconds": cpu_seconds, "bytes": max(0, bytes_ - most_bytes)}
                yield Met(file=file, obstacle=name, command=arguments, code=code, words=words, **took)
        shutil.rmtree(usual)


def _run(arguments: tuple[str, ...], place: Path, log: Path) -> tuple[int, float, int, str]:
    if OPTION in arguments:
        unchecked("many obstacles on one machine")
    log.unlink(missing_ok=True)
    cache = {"LORADOCK_CACHE": str(place / "cache")}
    process = Process(lambda: command(arguments), cwd=place, log=log, environment=cache)
    ended, cost = waited(process)
    return ended.exit_code, cost.cpu_seconds, cost.bytes, process.text()


def main() -> int:
    """Meet them; 1 where a command did otherwise than documented."""
    parser = argparse.ArgumentParser(prog="fuzz.obstacles")
    parser.add_argument("--file", action="append", help="only files of whose `PLACE, COMMAND` this is a part")
    parser.add_argument("--obstacle", action="append", choices=OBSTACLES)
    parser.add_argument("--verbose", action="store_true", help="show what every command said")
    asked = parser.parse_args()
    preload(Loradock.package, libraries=Loradock.libraries)
    adopt()
    proof = Path(tempfile.mkdtemp(prefix="loradock-obstacles-"))
    os.environ.setdefault(VERDICT, str(proof / "proof"))
    wanted = [
        each for each in places() if any(part in f"{each[1]}, {' '.join(each[2])}" for part in asked.file or [""])
    ]
    flaws = count = 0
    for met in meet(wanted, asked.obstacle or list(OBSTACLES)):
        count += 1
        flaws += bool(met.flaws)
        if met.flaws or asked.verbose:
            sys.stdout.write(f"{met}\n{met.words[-1500:]}\n\n")
            sys.stdout.flush()
    shutil.rmtree(proof)
    sys.stdout.write(f"{count} obstacles in the place of {len(wanted)} files, {flaws} flaws\n")
    return int(flaws > 0 or not count)


if __name__ == "__main__":
    if not ENVIRONMENT.items() <= os.environ.items():  # libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, "-m", "fuzz.obstacles", *sys.argv[1:]], os.environ | ENVIRONMENT)
    raise SystemExit(main())
