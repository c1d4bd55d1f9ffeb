"""`loradock evaluate` of answers, as processes: tables, comparisons, what is kept, kills, and errors."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from embedding.made import make_adapter, write_lines
from evaluation.made import question, true_or_false, write
from tiny import make_llama, without_template
from whole_runs import train

if TYPE_CHECKING:
    from faults.forking import Forking

pytestmark = pytest.mark.thin(2)

USAGE, DATA, MISSING, FULL_DISK, MODEL = 64, 65, 66, 73, 78
ROWS = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, a run that was trained on three of the rows, and tasks."""
    folder = tmp_path_factory.mktemp("place")
    make_llama(folder / "base")
    boolq = [true_or_false(number) for number in range(ROWS)]
    write(folder / "data" / "boolq.json", boolq)
    write(folder / "data" / "ARC-Easy" / "test.json", [question(number) for number in range(ROWS)])
    rows = [{key: row[key] for key in ("instruction", "input", "output")} for row in boolq[:3]]
    rows += [{"instruction": f"Say {number}.", "input": "", "output": str(number)} for number in range(13)]
    write_lines(folder / "rows.jsonl", rows)
    train(folder / "run", "train.epochs=1", "lora.rank=4", model=folder / "base", data=folder / "rows.jsonl")
    make_adapter(folder / "adapter", base=folder / "base")
    write_lines(folder / "own.jsonl", rows)
    return folder


def ended(forking: Forking, place: Path, *words: str, code: str = "") -> tuple[int, str]:
    command = forking.start(place, *words, code=code)
    return command.finish(), command.text()


def result(text: str) -> dict[str, Any]:
    return json.loads(text[text.index("{\n") :])


def rows_of(found: dict[str, Any], place: Path) -> list[dict[str, Any]]:
    """All outcomes, of this model and of the one that it is compared with."""
    files = [task["rows"] for task in found["tasks"]] + list(found.get("against", {}).get("rows", {}).values())
    return [json.loads(line) for file in files for line in (place / file).read_text().splitlines()]


def test_tasks_are_printed_with_what_they_have_to_be_compared_with(forking: Forking, place: Path) -> None:
    words = ("evaluate", "run", "--task", "boolq,arc-easy", "--tasks-dir", "data", "--base")
    code, text = ended(forking, place, *words)
    assert code == 0, text
    for each in ("boolq", "arc-easy", "95 % interval", "chance", "majority", "per character", "p (Holm)"):
        assert each in text
    prose = " ".join(text.split())
    assert "boolq: 3 rows with their whole question and 0 with its stem stand in 16 texts of the training" in prose
    assert "arc-easy: no row stands in 16 texts of the training files" in prose
    assert re.search(r"smallest detectable difference \(.*\): boolq none \(\d+ rows are too few\), arc-easy none", text)
    assert text.endswith("run/evaluations/results.json\n")
    kept = json.loads((place / "run" / "evaluations" / "results.json").read_text())
    code, text = ended(forking, place, *words, "--json")
    again = result(text)
    assert [each["computed"] for each in again["tasks"]] == [0, 0]
    assert [each["score"] for each in again["tasks"]] == [each["score"] for each in kept["tasks"]]
    boolq = kept["tasks"][0]
    assert (boolq["score"]["rows"], boolq["chance"], boolq["rows_of_file"]) == (ROWS, 0.5, ROWS)
    assert boolq["contamination"]["questions"] == [0, 1, 2]
    assert boolq["contamination"]["clean"]["rows"] == ROWS - 3
    assert set(kept["against"]["tasks"]) == {"boolq", "arc-easy"}
    assert kept["against"]["model"]["has_adapter"] is False
    assert len(rows_of(kept, place)) == 4 * ROWS


@pytest.mark.parametrize(
    ("more", "heads"),
    [
        (("--method", "generate", "--max-new-tokens", "4"), ("unanswered", "ended by EOS")),
        (("--protocol", "llm-adapters"), ("protocol llm-adapters", "unanswered", "ended by EOS")),
    ],
)
def test_generated_answers_say_how_many_there_are_and_how_they_end(
    forking: Forking, place: Path, more: tuple[str, ...], heads: tuple[str, ...]
) -> None:
    words = ("evaluate", "base", "--task", "boolq=data/boolq.json", "--limit", "6", *more)
    code, text = ended(forking, place, *words)
    assert code == 0, text
    assert all(each in text for each in heads)
    assert "contamination: not looked for" in text
    assert text.endswith("evaluations/base/results.json\n")


def test_a_model_without_a_template_is_told_which_one_or_refused(forking: Forking, place: Path) -> None:
    without_template(make_llama(place / "plain"))
    words = ("evaluate", "plain", "--task", "boolq", "--tasks-dir", "data", "--limit", "3")
    code, text = ended(forking, place, *words)
    assert (code, "plain has no chat template: nothing says how turns are written" in text) == (MODEL, True), text
    assert "hint: --template alpaca" in text
    code, text = ended(forking, place, *words, "--template", "alpaca")
    assert code == 0, text
    code, text = ended(forking, place, *words, "--template", "alpaca", "--against", "base")
    assert code == 0, text
    code, text = ended(forking, place, "evaluate", "base", *words[2:], "--template", "alpaca")
    assert (code, "base has a chat template of its own" in text) == (USAGE, True), text


FULL = """
import errno, os
def full(_):
    raise OSError(errno.ENOSPC, "No space left on device")
os.fsync = full
"""


def test_a_full_disk_ends_with_its_code_and_the_same_command_finishes(forking: Forking, place: Path) -> None:
    words = ("evaluate", "base", "--task", "boolq", "--tasks-dir", "data", "--limit", "3", "-o", "full")
    code, text = ended(forking, place, *words, code=FULL)
    assert (code, "error: no space left for " in text) == (FULL_DISK, True), text
    assert not [each for each in (place / "full").iterdir() if not each.name.startswith(".")]
    code, text = ended(forking, place, *words)
    assert code == 0, text
    assert not list((place / "full").glob(".*"))


@pytest.mark.parametrize("metric", ["exact", "choice", "f1", "rouge-l", "loss"])
def test_rows_of_ones_own_are_measured_and_compared(forking: Forking, place: Path, metric: str) -> None:
    words = ("evaluate", "run", "--data", "own.jsonl", "--metric", metric, "--max-new-tokens", "6")
    words = (*words, "--quantization", "none")
    code, text = ended(forking, place, *words, "--against", "adapter", "--json", "-o", f"out-{metric}")
    assert code == 0, text
    found = result(text)
    (task,) = found["tasks"]
    assert task["metric"] == {"choice": "accuracy"}.get(metric, metric)
    assert task["score"]["low"] <= task["score"]["value"] <= task["score"]["high"]
    paired = found["against"]["tasks"]["own.jsonl"]
    assert paired["difference"]["low"] <= paired["difference"]["difference"] <= paired["difference"]["high"]
    assert paired["p_holm"] == paired["difference"]["p"]
    assert ("perplexity" in task) == (metric == "loss")


@pytest.mark.thin(4)
def test_an_evaluation_that_was_killed_is_finished_with_the_same_results(forking: Forking, place: Path) -> None:
    words = ("evaluate", "run", "--task", "boolq,arc-easy", "--tasks-dir", "data", "--base", "--batch-tokens", "200")
    code, text = ended(forking, place, *words, "-o", "whole", "--json")
    assert code == 0, text
    wanted = result(text)
    done = kills = 0
    for kill in range(20):
        command = forking.start(place, *words, "-o", "cut", "--json")
        want = done + 1  # more come between two looks on a busy machine
        command.wait_until(lambda want=want: lines(place / "cut") >= want)
        if command.ended() is not None:
            break
        command.send(signal.SIGKILL)
        assert command.finish() == -signal.SIGKILL
        kills += 1
        assert not (place / "cut" / "results.json").exists()
        for file in (place / "cut").glob("*.jsonl"):
            assert file.read_bytes() == (place / "whole" / file.name).read_bytes()
        done = lines(place / "cut")
        if kill == 2:  # a line that was torn
            journal = next((place / "cut").glob(".*.journal"), None)
            if journal:
                journal.write_bytes(journal.read_bytes()[:-9])
    assert kills == 20
    # boolq may not be complete yet: twenty kills leave twenty outcomes on a machine that looks often
    for name in (".results.json.4711", f".{next((place / 'whole').glob('boolq-*.jsonl')).name}.journal"):
        with (place / "cut" / name).open("a") as file:
            file.write("{")  # one was killed while it put its results in place
    code, text = ended(forking, place, *words, "-o", "cut", "--json")
    assert code == 0, text
    found = result(text)
    assert rows_of(found, place) == rows_of(wanted, place)
    assert [task["score"] for task in found["tasks"]] == [task["score"] for task in wanted["tasks"]]
    assert found["against"]["tasks"] == wanted["against"]["tasks"]
    assert not list((place / "cut").glob(".*"))


def lines(folder: Path) -> int:
    """Outcomes on the disk."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*") if file.suffix in (".jsonl", ".journal"))


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ("base", USAGE, "error: there is nothing to evaluate on"),
        ("base --task bolq --tasks-dir data", USAGE, "unknown task: bolq"),
        ("base --task piqa --tasks-dir data", MISSING, "data holds no file of task piqa"),
        ("base --task boolq", MISSING, "data are local, and never fetched"),
        ("base --task boolq=gone.json", MISSING, "gone.json does not exist"),
        ("base --data gone.jsonl", MISSING, "gone.jsonl does not exist"),
        ("base --task boolq=bad.json", DATA, "bad.json:2: the row has no answer"),
        ("base --data rows.jsonl --sts a.jsonl", USAGE, "--data is of answers, --sts of embeddings"),
        ("base --sts a.jsonl --limit 3", USAGE, "--sts is of embeddings, --limit of answers"),
        ("base --data own.jsonl --base", USAGE, "base is a whole model: there is no base beside it"),
        ("run --data own.jsonl --base --against adapter", USAGE, "both name what to compare with"),
        ("base --data own.jsonl --protocol llm-adapters", USAGE, "do not belong in one table"),
        ("base --data long.jsonl --metric loss", DATA, "and the model takes 512"),
        ("data --data own.jsonl", MISSING, "data holds neither a run, nor an adapter, nor a model"),
        ("other --data own.jsonl", MODEL, "does not load"),
        ("run --data own.jsonl --training-data gone.jsonl", MISSING, "gone.jsonl does not exist"),
    ],
)
def test_what_cannot_be_done_ends_with_its_code_and_a_hint(
    forking: Forking, place: Path, words: str, code: int, what: str
) -> None:
    write(place / "bad.json", [{**true_or_false(1), "answer": ""}])
    write_lines(place / "long.jsonl", [{"instruction": "winter " * 600, "output": "x"}])
    if not (place / "other").exists():
        make_adapter(place / "other", base=make_llama(place / "wide", hidden_size=96, num_attention_heads=4))
        settings = json.loads((place / "other" / "adapter_config.json").read_text())
        settings["base_model_name_or_path"] = str(place / "base")
        (place / "other" / "adapter_config.json").write_text(json.dumps(settings))
    more = ("--quantization", "none") if words.startswith("other") else ()
    found, text = ended(forking, place, "evaluate", *words.split(), *more)
    assert (found, what in text) == (code, True), text
    assert "hint: " in text


def test_rows_of_the_run_that_training_began_with_were_learned_too(forking: Forking, place: Path) -> None:
    write_lines(place / "other.jsonl", [{"instruction": f"Count to {n}.", "output": "."} for n in range(9)])
    write_lines(place / "unfit.jsonl", [{"prompt": f"Is {number} odd?", "completion": ""} for number in range(3)])
    settings = ("lora.rank=4", f"lora.adapter={place / 'run'}", "data.validation=2")
    skipping = ("data.on_bad_row=skip", "data.max_dropped=0.5")
    rows = [place / "other.jsonl", place / "unfit.jsonl"]
    train(place / "second", "train.epochs=1", *settings, *skipping, model=place / "base", data=rows)
    words = ("evaluate", "second", "--task", "boolq", "--tasks-dir", "data", "--json")
    code, text = ended(forking, place, *words)
    assert code == 0, text
    assert result(text)["tasks"][0]["contamination"]["questions"] == [0, 1, 2], "three rows are the first run's"
    assert result(text)["tasks"][0]["contamination"]["trained"] == 16 + 9, "no row of unfit.jsonl was learned"
    assert "rows that second left out or held out are looked at as if it had learned them" in " ".join(text.split())
    (place / "run").rename(place / "moved")
    try:
        code, text = ended(forking, place, *words)
    finally:
        (place / "moved").rename(place / "run")
    assert code == 0, text
    assert result(text)["tasks"][0]["contamination"]["trained"] == 9
    assert f"training began with the adapter {place / 'run'}, whose rows nobody recorded here" in " ".join(text.split())
