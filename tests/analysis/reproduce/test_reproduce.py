"""A run made again: planted differences are named before a step, honest repeats are equal to the last bit."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from proven import unchecked
from tiny import copy_tree, write_rows
from whole_runs import train

from loradock.analysis.reproduce import repeat
from loradock.analysis.reproduce.comparison import Measured, compared
from loradock.analysis.reproduce.differences import NUMPY
from loradock.analysis.reproduce.original import as_repeated, opened
from loradock.analysis.reproduce.places import Places, located
from loradock.cli import cli
from loradock.errors import InputMissing, LoradockError, NotReproduced, StorageError, UsageError
from loradock.machine.library_variables import ALLOCATOR
from loradock.model.content import digest
from loradock.training.run_dir.record import metrics

SETTINGS = (
    *("train.max_steps=6", "train.global_batch=4", "lora.rank=4", "lora.dropout=0.1", "data.validation=0.2"),
    *("evaluation.every=3", "checkpoints.every=2", "data.max_length=64", "train.workers=0"),
)
Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """A folder with a base, rows and a run of both."""
    folder = tmp_path_factory.mktemp("made")
    base = copy_tree(llama, folder / "base")
    rows = write_rows(folder / "rows.jsonl")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ALLOCATOR.items():  # the command sets it, `whole_runs` does not
            environment.setenv(name, value)
        train(folder / "run", *SETTINGS, model=base, data=rows)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder elsewhere; its record still names the first one's base and rows."""
    return copy_tree(made, tmp_path / "here")


def asked(*words: str) -> dict[str, Any]:
    """What the command prints as JSON, `error` being what it ended with."""
    done = CliRunner().invoke(cli, ["reproduce", *words, "--json"])
    assert done.exception is None or isinstance(done.exception, LoradockError), done.exc_info
    return {**json.loads(done.stdout or "{}"), "error": done.exception}


def checked(folder: Path) -> dict[str, Any]:
    moved = ("--model", str(folder / "base"), "--data", str(folder / "rows.jsonl"))
    return asked(str(folder / "run"), "--check-only", *moved)


def edited(file: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def recorded(**parts: Any) -> Change:
    """Another value in the record, a key below `facts` or of the fingerprint by its dots."""

    def change(folder: Path) -> None:
        file = folder / "run" / "run.json"
        record = json.loads(file.read_text("utf-8"))
        for name, value in parts.items():
            (record[name] if isinstance(value, dict) else record).update(
                value if isinstance(value, dict) else {name: value}
            )
        file.write_text(json.dumps(record), "utf-8")

    return change


def swapped(rows: bytes) -> bytes:
    first, second, *others = rows.splitlines(keepends=True)
    return b"".join([second, first, *others])


def packages(name: str) -> Change:
    def change(folder: Path) -> None:
        record = json.loads((folder / "run" / "run.json").read_text("utf-8"))
        recorded(facts={"packages": {**record["facts"]["packages"], name: "0.0.1"}})(folder)

    return change


def decided(name: str, value: Any, **parts: Any) -> Change:
    def change(folder: Path) -> None:
        record = json.loads((folder / "run" / "run.json").read_text("utf-8"))
        for each in record["plan"]["decisions"]:
            each["value"] = value if each["name"] == name else each["value"]
        recorded(**parts, plan=record["plan"])(folder)

    return change


def relinked(folder: Path) -> None:
    """The rows are a link, to a file of another version."""
    text = (folder / "rows.jsonl").read_bytes()
    (folder / "version-2.jsonl").write_bytes(text.replace(b"backwards", b"Backwards", 1))
    (folder / "rows.jsonl").unlink()
    (folder / "rows.jsonl").symlink_to("version-2.jsonl")


def renamed(folder: Path) -> None:
    """Equal weights whose file was called otherwise when they were recorded."""
    file = folder / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    first = digest([folder / "base" / "model.safetensors"])
    assert record["fingerprint"]["base.weights"] == first
    (folder / "base" / "other.safetensors").write_bytes((folder / "base" / "model.safetensors").read_bytes())
    record["base"]["weights"] = ["other.safetensors"]
    file.write_text(json.dumps(record), "utf-8")


PLANTED: dict[str, tuple[Change, str, str]] = {
    "a space in a row": (edited("rows.jsonl", lambda text: text.replace(b".", b" .", 1)), "rows of", "results"),
    "an order": (edited("rows.jsonl", swapped), "rows of", "results"),
    "a row more": (edited("rows.jsonl", lambda text: text + text.splitlines(keepends=True)[0]), "rows of", "results"),
    "one bit of a weight": (
        edited("base/model.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        "base.weights",
        "results",
    ),
    "the model's config": (edited("base/config.json", lambda text: text + b" "), "base.config", "results"),
    "a tokenizer's file": (
        edited("base/tokenizer.json", lambda text: text.replace(b'"version"', b'"Version"', 1)),
        "base.tokenizer",
        "results",
    ),
    "a default of ours": (recorded(fingerprint={"train.warmup": "0.5"}), "train.warmup", "results"),
    "a key that was not there": (recorded(fingerprint={"train.odd": "1"}), "train.odd", "results"),
    "our code": (recorded(code_sha256="0" * 64), "loradock's code", "results"),
    "torch": (packages("torch"), "torch", "last bits"),
    "transformers": (packages("transformers"), "transformers", "results"),
    "numpy": (packages("numpy"), "numpy", "results"),
    "more threads than CPUs": (decided("threads", 64, facts={"cpus": 64}), "CPUs", "last bits"),
    "an instruction set": (recorded(facts={"instruction_set": "x86-64-v2"}), "instruction set", "last bits"),
    "a GPU": (recorded(facts={"gpus": [{"name": "NVIDIA A10"}]}), "GPUs", "last bits"),
    "TF32": (recorded(environment={"NVIDIA_TF32_OVERRIDE": "1"}), "NVIDIA_TF32_OVERRIDE", "last bits"),
    "cuBLAS' workspace": (
        recorded(environment={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}),
        "CUBLAS_WORKSPACE_CONFIG",
        "last bits",
    ),
    "torch's kernels": (recorded(environment={"ATEN_CPU_CAPABILITY": "default"}), "ATEN_CPU_CAPABILITY", "last bits"),
    "MKL's kernels": (recorded(environment={"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}), "MKL_ENABLE", "last bits"),
    "oneDNN's kernels": (recorded(environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}), "ONEDNN_MAX_CPU_ISA", "last bits"),
    "NCCL's algorithm": (recorded(environment={"NCCL_ALGO": "Tree"}), "NCCL_ALGO", "last bits"),
    "bitsandbytes": (packages("bitsandbytes"), "bitsandbytes", "last bits"),
    "tokenizers": (packages("tokenizers"), "tokenizers", "results"),
    "a link that moved": (relinked, "rows of", "results"),
    "a space in the tokenizer's own template": (
        edited("base/chat_template.jinja", lambda text: text + b" "),
        "base.tokenizer",
        "results",
    ),
    "a row less": (
        edited("rows.jsonl", lambda text: b"".join(text.splitlines(keepends=True)[:-1])),
        "rows of",
        "results",
    ),
    "weights under another name": (renamed, "base.weights", "results"),
    "the allocator": (
        recorded(environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
        "PYTORCH_CUDA_ALLOC_CONF",
        "last bits",
    ),
}


@pytest.mark.thin(6)
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_named_before_a_step(planted: str, here: Path) -> None:
    change, name, effect = PLANTED[planted]
    change(here)
    found = checked(here)
    assert isinstance(found["error"], NotReproduced)
    assert found["error"].exit_code == 85
    (difference,) = [each for each in found["differences"] if each["name"].startswith(name)]
    assert difference["changes"] == effect
    assert [each["name"] for each in found["differences"] if each["changes"] != "nothing"] == [difference["name"]]


def test_what_is_decided_anew_elsewhere_is_taken_from_the_record(here: Path, tmp_path: Path) -> None:
    """The date in a template, the micro-batch, the engine, the processes, the cadence: planted, and without effect."""
    file = here / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    record["data"]["date"] = "2020-02-29"
    record["facts"]["world_size"] = 3
    plan = {"micro_batch": 1, "threads": 3, "engine": "peft", "cadence": {"log": 7, "evaluate": 2, "save": 9}}
    for each in record["plan"]["decisions"]:
        each["value"] = plan.get(each["name"], each["value"])
    file.write_text(json.dumps(record), "utf-8")
    original = opened(here / "run")
    config = as_repeated(original, located(original, Places()), output=tmp_path / "again", trusted=None)
    assert (config.data.date, config.train.micro_batch, config.engine) == ("2020-02-29", 1, "peft")
    assert config.train.threads == 3
    assert (config.logging.every, config.evaluation.every, original.processes) == (7, 2, 3)
    assert checked(here)["error"] is None


def test_what_does_not_matter_is_no_alarm(made: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another place and working directory, a link in the place of a file, packages that nothing computes with."""
    assert asked(str(made / "run"), "--check-only") == {
        "run": str(made / "run"),
        "differences": [],
        "verdict": "nothing differs that may change a bit",
        "error": None,
    }
    shutil.move(here / "rows.jsonl", here / "moved.jsonl")
    (here / "rows.jsonl").symlink_to(here / "moved.jsonl")
    packages("protobuf")(here)
    record = json.loads((here / "run" / "run.json").read_text("utf-8"))
    recorded(facts={"cpus": 64}, environment={**record["environment"], "OMP_NUM_THREADS": "64"})(here)
    monkeypatch.chdir(here)
    found = checked(here)
    assert found["error"] is None
    names = ["protobuf", "CPUs", "OMP_NUM_THREADS"]  # the repeat has the recorded number of threads
    assert [(each["name"], each["changes"]) for each in found["differences"]] == [(name, "nothing") for name in names]


def test_what_is_missing_is_named_with_where_it_was(here: Path, made: Path) -> None:
    record = json.loads((here / "run" / "run.json").read_text("utf-8"))
    gone = str(here / "gone")
    record["base"]["path"] = record["config"]["model"]["name"] = gone
    record["config"]["data"]["sources"][0]["path"] = f"{gone}.jsonl"
    (here / "run" / "run.json").write_text(json.dumps(record), "utf-8")
    found = asked(str(here / "run"), "--check-only")
    assert isinstance(found["error"], InputMissing)
    whats = [problem.what for problem in found["error"].problems]
    assert len(whats) == 2
    assert all(gone in what for what in whats)
    assert found["error"].hint == "add --model DIR --data FILE"
    assert checked(here)["error"] is None  # as the hint says
    shutil.copytree(made / "run" / "adapter", here / "alone", ignore=shutil.ignore_patterns("run"))
    lonely = asked(str(here / "alone"))
    assert "run.json lies beside its folder" in str(lonely["error"].hint)


def test_a_record_is_no_leave_to_run_code_or_to_fetch(here: Path) -> None:
    file = here / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    record["config"]["model"]["trust_remote_code"] = "evil/model"
    file.write_text(json.dumps(record), "utf-8")
    found = asked(str(here / "run"))
    assert isinstance(found["error"], UsageError)
    assert found["error"].hint == "--trust-remote-code evil/model"
    record["config"]["model"]["trust_remote_code"] = None
    record["config"]["data"]["sources"][0]["path"] = "https://rows.example/rows.jsonl"
    file.write_text(json.dumps(record), "utf-8")
    assert "is not fetched" in str(asked(str(here / "run"))["error"])
    record["config"]["data"]["sources"][0]["path"] = str(here / "rows.jsonl")
    for held_out in ("https://rows.example/held.jsonl", "hub:owner/rows@" + "0" * 40):
        record["config"]["data"]["validation"] = held_out
        file.write_text(json.dumps(record), "utf-8")
        assert "is not fetched" in str(asked(str(here / "run"), "--check-only")["error"])
    file.write_text("{", "utf-8")
    assert isinstance(asked(str(here / "run"))["error"], StorageError)


def test_a_template_in_a_file_and_a_source_that_the_record_lacks_are_compared(here: Path) -> None:
    file, template = here / "run" / "run.json", here / "own.jinja"
    record = json.loads(file.read_text("utf-8"))
    template.write_text("{{ messages[0].content }}", "utf-8")
    record["config"]["data"]["template"] = record["fingerprint"]["data.template"] = str(template)
    record["fingerprint"]["data.template"] = "a path"
    record["fingerprint"]["data.template.content"] = hashlib.sha256(template.read_bytes()).hexdigest()
    file.write_text(json.dumps(record), "utf-8")
    assert checked(here)["error"] is None
    template.write_text("{{ messages[0].content }} ", "utf-8")
    assert [each["name"] for each in checked(here)["differences"]] == ["data.template"]
    record["data"]["sources"] = []
    file.write_text(json.dumps(record), "utf-8")
    assert [each["name"] for each in checked(here)["differences"]] == ["number of files of rows", "data.template"]


def test_a_record_names_no_place_to_write_and_no_hub_to_ask(here: Path, tmp_path: Path) -> None:
    file = here / "run" / "run.json"
    record = json.loads(file.read_text("utf-8"))
    record["config"]["data"]["cache"] = "/nobody/asked"
    record["config"]["model"] |= {"name": "owner/base", "revision": "0" * 40}
    file.write_text(json.dumps(record), "utf-8")
    original = opened(here / "run")
    config = as_repeated(original, located(original, Places()), output=tmp_path / "again", trusted=None)
    assert config.data.cache is None
    assert (config.model.name, config.model.revision) == (record["base"]["path"], None)


@pytest.mark.thin(6)
def test_a_run_is_repeated_in_two_parts_to_the_same_adapter(made: Path, tmp_path: Path) -> None:
    words = (str(made / "run"), "--output", str(tmp_path / "again"), unchecked("a repeat"))
    begun = asked(*words)  # to its first evaluation
    assert begun["error"] is None, begun
    assert begun["verdict"] == "identical to step 3"
    assert begun["comparison"]["evaluations"] == 1
    assert metrics(tmp_path / "again", "train")[-1]["step"] == 3
    whole = asked(*words, "--whole")
    assert whole["verdict"] == "identical to step 6, with the same adapter"
    file = tmp_path / "again" / "metrics.jsonl"
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    next(line for line in found if line["kind"] == "train")["grad_norm"] *= 1 + 1e-7
    file.write_text("".join(f"{json.dumps(line)}\n" for line in found), "utf-8")
    parted = asked(*words, "--steps", "6")
    assert isinstance(parted["error"], NotReproduced)
    assert parted["error"].what.startswith("parted at step 1 (")
    assert str(parted["error"]).endswith("nothing was found to differ")


def test_an_evaluation_that_was_cut_off_is_held_before_it_is_compared(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat was killed while it evaluated step 3: its metrics.jsonl has that step, and not the evaluation."""
    file = copy_tree(made / "run", tmp_path / "again") / "metrics.jsonl"
    text = file.read_text("utf-8")
    file.write_text("".join(line for line in text.splitlines(keepends=True) if '"eval"' not in line), "utf-8")
    commands: list[list[str]] = []

    @contextmanager
    def continued(command: list[str], _stream: object) -> Iterator[subprocess.Popen[bytes]]:
        commands.append(command)
        file.write_text(text, "utf-8")
        with subprocess.Popen(("true",)) as process:
            yield process

    monkeypatch.setattr(repeat, "child", continued)
    words = (str(made / "run"), "--output", str(tmp_path / "again"), "--steps", "3")
    assert asked(*words)["comparison"]["evaluations"] == 1
    assert asked(*words)["comparison"]["evaluations"] == 1
    assert ["--stop-after" in command for command in commands] == [True]


def test_only_an_evaluation_that_a_repeat_holds_is_waited_for(made: Path) -> None:
    original = opened(made / "run")
    assert [original.last_evaluation(steps) for steps in (2, 3, 5, 6)] == [0, 3, 3, 6]
    widened = replace(original, evaluations=({"step": 2}, {"step": 3}, {"step": 4}))
    assert [widened.last_evaluation(steps) for steps in (2, 4)] == [0, 3]


def test_a_repeat_stops_at_the_last_step_that_the_run_measured(made: Path) -> None:
    original = replace(opened(made / "run"), train=lines(1, 4, 8, 12)["train"], evaluations=({"step": 10},))
    assert [original.last_measured(steps) for steps in (1, 9, 11, 12, 50)] == [1, 8, 10, 12, 12]
    assert replace(original, train=(), evaluations=()).last_measured(9) == 9


def test_numpy_of_each_python_shuffles_alike() -> None:
    """Both that the lock names: this digest was seen under Python 3.11 and, in the container, under 3.13."""
    lock = (Path(__file__).parents[3] / "docker" / "requirements.lock").read_text("utf-8")
    assert set(re.findall(r"^numpy==(\S+)", lock, re.MULTILINE)) == NUMPY
    assert np.__version__ in NUMPY
    drawn = hashlib.sha256()
    for seed in ([0], [7, 1, 3], [2**63, 5]):
        rng = np.random.default_rng(seed)
        drawn.update(rng.permutation(1000).tobytes() + rng.permutation(np.arange(70_000)).tobytes())
        drawn.update(rng.random(9).tobytes() + rng.integers(0, 10**9, 9).tobytes())
        drawn.update(np.random.SeedSequence(seed).generate_state(1, np.uint64).tobytes())
    assert drawn.hexdigest() == "8776632a1da1af6c9769dd3cd0e58b64406c5ecbe9a495bd9be56a0b5222a948"


def lines(*steps: int, loss: float = 1.0, norm: float = 2.0) -> dict[str, list[dict[str, Any]]]:
    return {"train": [{"step": step, "loss": loss, "grad_norm": norm} for step in steps], "eval": []}


def test_losses_are_compared_where_both_are_means_over_the_same_steps() -> None:
    first = Measured(lines(1, 10, 20, loss=1.0))
    stopped = Measured(lines(1, 5, 10, 20, loss=3.0), {5})
    found = compared(first, stopped, steps=20)
    assert (found.steps, found.parted, found.at) == (20, 1, 1)
    same = Measured({"train": [*lines(1)["train"], *lines(5, 10, loss=9.0)["train"], *lines(20)["train"]], "eval": []})
    assert compared(first, same, steps=20).is_identical
    other = compared(first, Measured(lines(1, 10, 20, norm=2.5)), steps=10)
    assert (other.steps, other.parted, other.largest) == (10, 1, pytest.approx(0.2))
    killed = Measured(lines(1, 10, loss=1.0), {4})
    assert killed.intervals() == {1: 1, 10: None}
    assert not compared(first, Measured(lines()), steps=20).is_identical
