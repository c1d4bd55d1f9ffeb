"""`loradock generate`: rows of every shape answered, resumed after a kill with the same bytes, and refused by line."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from faults.forking import Forking
from tiny import make_llama, without_template
from transformers import LlamaForCausalLM

from loradock.cli import cli
from loradock.errors import DataError, DiskFull, ModelError, UsageError
from loradock.use.inference.answer_file import Asked, read_tasks
from loradock.use.inference.opener import Opened
from loradock.use.inference.requests import key_of, sample_of
from loradock.use.inference.sampling import Sampling

pytestmark = pytest.mark.thin(2)

QUESTION = {"role": "user", "content": "lamp stone"}
SHAPES: dict[str, dict[str, Any]] = {
    "messages": {"messages": [QUESTION]},
    "messages with their answer": {"messages": [QUESTION, {"role": "assistant", "content": "stone lamp"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "lamp stone"}]},
    "alpaca": {"instruction": "lamp stone"},
    "alpaca with its answer": {"instruction": "lamp stone", "input": "", "output": "stone lamp"},
    "prompt of turns": {"prompt": [QUESTION]},
    "text": {"text": "lamp stone"},
}


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def generate(*words: object) -> str:
    found = CliRunner().invoke(cli, ["generate", *map(str, words)], catch_exceptions=False, standalone_mode=False)
    return found.output


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_of_any_shape_asks_the_same(opened: Opened, shape: str) -> None:
    asked = opened.prompts.prompt_of(sample_of(SHAPES["messages"], is_chat=True))
    assert opened.prompts.prompt_of(sample_of(SHAPES[shape], is_chat=True)) == asked


def test_text_is_raw_for_a_model_that_was_trained_on_raw_text(opened: Opened) -> None:
    raw = opened.prompts.prompt_of(sample_of({"text": "lamp stone"}, is_chat=False))
    assert raw == opened.prompts.raw("lamp stone")
    assert raw == opened.prompts.prompt_of(sample_of({"prompt": "lamp stone"}, is_chat=True))


def test_the_key_is_of_content_and_number() -> None:
    assert key_of({"a": 1, "b": 2}, 0) == key_of({"b": 2, "a": 1}, 0)
    assert len({key_of({"a": 1}, 0), key_of({"a": 1}, 1), key_of({"a": 2}, 0)}) == 3


def test_answers_come_in_the_order_of_rows_with_counts_and_reasons(trained: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [{"instruction": "lamp " * count} for count in (3, 40, 1, 12)])
    said = generate(trained, "--input", file, "-o", tmp_path / "out.jsonl", "--max-new-tokens", 5, "--json")
    found = lines(tmp_path / "out.jsonl")
    assert [each["row"] for each in found] == [0, 1, 2, 3]
    assert [each["line"] for each in found] == [1, 2, 3, 4]
    assert found[1]["prompt_tokens"] > found[0]["prompt_tokens"] > found[2]["prompt_tokens"]
    assert all(each["finish_reason"] == "length" or each["answer_tokens"] < 5 for each in found)
    assert json.loads(said)["answers"] == 4
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_samples_differ_and_are_the_same_in_any_batch(trained: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [{"instruction": "lamp"}, {"instruction": "horse bridge"}])
    how = ("--input", file, "--max-new-tokens", 8, "--temperature", 1.5, "--n", 3)
    for name, tokens in (("one", 1), ("all", 100_000)):
        generate(trained, *how, "-o", tmp_path / name, "--batch-tokens", tokens)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "all").read_bytes()
    found = lines(tmp_path / "one")
    assert [(each["row"], each["sample"]) for each in found] == [(row, n) for row in (0, 1) for n in range(3)]
    assert len({each["answer"] for each in found[:3]}) > 1


def test_a_prompt_that_leaves_no_space_is_an_error_line_and_the_others_are_answered(
    trained: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "in.jsonl", [{"instruction": "lamp " * 600}, {"instruction": "lamp"}])
    generate(trained, "--input", file, "-o", tmp_path / "out.jsonl", "--max-new-tokens", 4)
    long, short = lines(tmp_path / "out.jsonl")
    assert "exceed the model's 512" in long["error"]
    assert "answer" not in long
    assert "answer" in short


@pytest.mark.parametrize("has_template", [True, False])
def test_empty_answers_are_told_and_prompts_without_the_template_are_the_reason(
    has_template: bool, tmp_path: Path
) -> None:
    model = make_llama(tmp_path / "model", tie_word_embeddings=False)
    ending = LlamaForCausalLM.from_pretrained(model)
    torch.nn.init.zeros_(ending.lm_head.weight)  # the likeliest token is always 0
    assert ending.generation_config is not None
    ending.generation_config.eos_token_id = 0
    ending.save_pretrained(model)
    if not has_template:
        without_template(model)
    file = write(tmp_path / "in.jsonl", [{"prompt": "lamp"}, {"prompt": "stone"}])
    asked = ("generate", model, "--input", file, "-o", tmp_path / "out.jsonl")
    found = CliRunner().invoke(cli, [*map(str, asked)], catch_exceptions=False, standalone_mode=False)
    assert [line["answer"] for line in lines(tmp_path / "out.jsonl")] == ["", ""]
    remedy = found.stderr.partition("warning: 2 of 2 answers are empty")[2]
    why, _, command = remedy.partition("to ask it as a user's turn: ")
    assert ("without its chat template" in why, bool(command)) == (has_template, has_template)
    if has_template:
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        assert lines(tmp_path / "in.new.jsonl") == [{"text": "lamp"}, {"text": "stone"}]


def test_rows_whose_columns_have_other_names_are_refused_with_the_command_that_names_them(tmp_path: Path) -> None:
    lineage = SimpleNamespace(conversations=True, readings=())
    opened: Any = SimpleNamespace(origin=SimpleNamespace(lineage=lineage), prompts=None)
    asked = Asked(max_new_tokens=4, samples=1, sampling=Sampling(), batch_tokens=64)
    with pytest.raises(DataError) as error:
        list(read_tasks(opened, write(tmp_path / "in.jsonl", [{"question": "lamp", "answer": "light"}]), asked))
    (problem,) = error.value.problems
    subprocess.run(["bash", "-c", str(problem.hint)], cwd=tmp_path, check=True)
    assert lines(tmp_path / "in.new.jsonl") == [{"answer": "light", "instruction": "lamp"}]


@pytest.mark.parametrize("was_trained_on_turns", [True, False])
def test_texts_are_asked_as_they_are_of_what_was_trained_on_texts(was_trained_on_turns: bool, tmp_path: Path) -> None:
    """So that they are no reason for an empty answer. The model does nothing here, and is none."""
    lineage = SimpleNamespace(conversations=was_trained_on_turns, readings=())
    prompts = SimpleNamespace(has_template=True, prompt_of=lambda _: [1])
    opened: Any = SimpleNamespace(origin=SimpleNamespace(lineage=lineage), prompts=prompts)
    asked = Asked(max_new_tokens=4, samples=1, sampling=Sampling(), batch_tokens=64)
    (task,) = read_tasks(opened, write(tmp_path / "in.jsonl", [{"prompt": "lamp"}]), asked)
    assert task.raw_column == ("prompt" if was_trained_on_turns else "")


def test_a_model_without_a_template_is_given_raw_text_and_refuses_turns(tmp_path: Path) -> None:
    plain = without_template(make_llama(tmp_path / "plain"))
    text, turns = (write(tmp_path / f"{key}.jsonl", [{key: "lamp"}]) for key in ("text", "instruction"))
    how = ("-o", tmp_path / "out.jsonl", "--max-new-tokens", 2)
    with pytest.raises(ModelError, match="plain has no chat template") as error:
        generate(plain, "--input", turns, *how)
    assert error.value.exit_code == 78
    assert not (tmp_path / "out.jsonl").exists()
    generate(plain, "--input", text, *how)
    (raw,) = lines(tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl").unlink()
    generate(plain, "--input", text, *how, "--template", "alpaca")
    (asked,) = lines(tmp_path / "out.jsonl")
    assert raw["prompt_tokens"] < asked["prompt_tokens"]


def test_every_bad_row_is_named_before_anything_is_generated(trained: Path, tmp_path: Path) -> None:
    rows = [{"instruction": "lamp"}, {"question": "lamp"}, {"messages": []}, {"text": " "}]
    file = write(tmp_path / "in.jsonl", rows)
    with pytest.raises(DataError) as error:
        generate(trained, "--input", file, "-o", tmp_path / "out.jsonl")
    assert [problem.line for problem in error.value.problems] == [2, 3, 4]
    assert not (tmp_path / "out.jsonl").exists()


def test_an_output_that_exists_and_a_journal_of_other_settings_are_refused(trained: Path, tmp_path: Path) -> None:
    file, output = write(tmp_path / "in.jsonl", [{"instruction": "lamp"}]), tmp_path / "out.jsonl"
    generate(trained, "--input", file, "-o", output, "--max-new-tokens", 2)
    with pytest.raises(UsageError, match="already exists"):
        generate(trained, "--input", file, "-o", output)
    output.unlink()
    (tmp_path / ".out.jsonl.journal").write_text(json.dumps({"identity": {"max_new_tokens": 3}}) + "\n")
    with pytest.raises(UsageError, match=r"begun with another .*max_new_tokens"):
        generate(trained, "--input", file, "-o", output, "--max-new-tokens", 2)


@pytest.mark.parametrize("words", [("--temperature", "-1"), ("--top-p", "0"), ("--n", "0"), ("--max-new-tokens", "0")])
def test_a_number_out_of_range_is_refused(trained: Path, tmp_path: Path, words: tuple[str, str]) -> None:
    file = write(tmp_path / "in.jsonl", [{"instruction": "lamp"}])
    found = CliRunner().invoke(cli, ["generate", str(trained), "--input", str(file), "-o", str(tmp_path / "o"), *words])
    assert found.exit_code == 2


def test_a_full_disk_ends_with_its_code_and_the_same_command_finishes(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, output = write(tmp_path / "in.jsonl", [{"instruction": "lamp"}]), tmp_path / "out.jsonl"
    how = (trained, "--input", file, "-o", output, "--max-new-tokens", 2)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull):
            generate(*how)
    assert not output.exists()
    generate(*how)
    assert len(lines(output)) == 1


@pytest.mark.thin(3)
def test_killed_again_and_again_the_same_command_ends_with_the_same_bytes(
    trained: Path, tmp_path: Path, forking: Forking, pytestconfig: pytest.Config
) -> None:
    kills = 20 if pytestconfig.getoption("--full") else 3
    draw = random.Random(3)
    rows = [{"instruction": "lamp " * draw.randint(1, 60)} for _ in range(60)]
    file, output = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    how = ["--input", str(file), "--max-new-tokens", "24", "--batch-tokens", "400", "--temperature", "0.8"]
    generate(trained, *how, "-o", tmp_path / "whole.jsonl")
    journal, killed = tmp_path / ".out.jsonl.journal", 0
    while not output.exists():
        process = forking.start(tmp_path, "generate", str(trained), *how, "-o", str(output))
        if killed < kills:
            before = journal.stat().st_size if journal.exists() else 0
            process.wait_until(lambda before=before: journal.exists() and journal.stat().st_size > before)
            time.sleep(draw.random() * 0.05)
            process.send(signal.SIGKILL)
            killed += 1
        process.finish()
        assert not output.exists() or output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert killed >= 3
    assert not journal.exists()
