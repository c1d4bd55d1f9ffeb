"""Tasks and their files: what is read, where it is looked for, and what is wrong by line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from embedding.made import write_lines
from evaluation.made import NEEDS_DATA, SHARED, question, true_or_false, write

from loradock.errors import DataError, InputMissing, UsageError
from loradock.use.evaluation import asked, tasks
from loradock.use.evaluation.items import of_data

OWN = asked.Options()


def test_a_row_has_its_candidates_and_what_the_model_would_say_for_each(tmp_path: Path) -> None:
    file = write(tmp_path / "arc.json", [question(1, answers=3), question(2, answers=5)])
    found = tasks.named("arc-easy").read(file)
    first, second = found.items
    assert first.candidates == ("answer1", "answer2", "answer3")
    assert first.texts == tuple(f"the correct answer is {each}" for each in first.candidates)
    assert second.candidates[-1] == "answer5"
    assert first.question == question(1, answers=3)["instruction"]
    assert len({first.key, second.key}) == 2
    assert tasks.named("ARC-Easy") is tasks.named("arc-easy")


@NEEDS_DATA
@pytest.mark.parametrize("name", ["boolq", "arc-easy", "openbookqa"])
def test_every_row_of_the_real_files_is_read(name: str) -> None:
    task = tasks.named(name)
    found = task.read(task.file_in(SHARED))
    assert found.of_file == len(found.items) == 500
    assert all(item.answer in item.candidates for item in found.items)


def test_a_file_is_found_by_each_of_its_known_names(tmp_path: Path) -> None:
    task = tasks.named("siqa")
    for name in ("siqa_test_500.json", "social_i_qa/test.json", "siqa.json"):  # the later ones come first
        file = write(tmp_path / name, [question(1, answers=3)])
        assert task.file_in(tmp_path) == file
    with pytest.raises(InputMissing, match=r"no file of task piqa: piqa\.json, piqa/test\.json"):
        tasks.named("piqa").file_in(tmp_path)
    write(tmp_path / "boolq_test_1.json", [true_or_false(1)])
    write(tmp_path / "boolq_test_2.json", [true_or_false(2)])
    with pytest.raises(InputMissing, match="several files of task boolq"):
        tasks.named("boolq").file_in(tmp_path)


def spoilt(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**true_or_false(3), **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (spoilt(answer=None), "the row has no answer"),
        (spoilt(answer=" "), "the row has no answer"),
        (spoilt(answer=1), "the row has no answer"),
        (spoilt(answer="maybe"), "answer 'maybe' is none of true, false"),
        (spoilt(instruction="is it so?"), "does not end with 'Answer format"),
        (question(1), "'answer1' is not an answer of task boolq"),
        (spoilt(instruction=None), "instruction"),
    ],
)
def test_a_row_that_cannot_be_scored_is_refused_with_its_line(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    file = tmp_path / "boolq.jsonl"
    write_lines(file, [true_or_false(1), row, true_or_false(2), row])
    with pytest.raises(DataError) as error:
        tasks.named("boolq").read(file)
    assert f"{file}:2, {file}:4: " in str(error.value)
    assert what in str(error.value)


def test_what_is_asked_for_wrongly_is_answered_with_what_to_type(tmp_path: Path) -> None:
    file = write(tmp_path / "boolq.json", [true_or_false(1)])
    with pytest.raises(UsageError, match="unknown task: bolq") as error:
        asked.read(["bolq"], folder=tmp_path, data=None, options=OWN)
    assert error.value.hint == "--task boolq"
    with pytest.raises(InputMissing, match="never fetched"):
        asked.read(["boolq"], folder=None, data=None, options=OWN)
    with pytest.raises(InputMissing, match="does not exist"):
        asked.read([f"boolq={tmp_path}/gone.json"], folder=None, data=None, options=OWN)
    with pytest.raises(UsageError, match="boolq is asked for twice"):
        asked.read([f"boolq={file}", "boolq"], folder=tmp_path, data=None, options=OWN)
    with pytest.raises(UsageError, match="nothing to evaluate on"):
        asked.read([""], folder=None, data=None, options=OWN)


def test_protocols_do_not_share_a_table(tmp_path: Path) -> None:
    file = write(tmp_path / "boolq.json", [true_or_false(1)])
    theirs = asked.Options(protocol="llm-adapters")
    with pytest.raises(UsageError, match="do not belong in one table"):
        asked.read([f"boolq={file}"], folder=None, data=file, options=theirs)
    with pytest.raises(UsageError, match="generates its answers"):
        asked.read(
            [f"boolq={file}"], folder=None, data=None, options=asked.Options(protocol="llm-adapters", method="choice")
        )


def test_rows_of_ones_own_have_their_last_turn_as_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    turns = [("user", "One?"), ("assistant", "1"), ("user", "Two?"), ("assistant", " 2")]
    write_lines(file, [{"messages": [{"role": role, "content": text} for role, text in turns]}])
    (item,) = of_data(file, needs="prompts").items
    assert (item.answer, item.question) == ("2", "One?\n1\nTwo?")
    write_lines(file, [{"prompt": "Two?", "completion": " 2"}])
    (item,) = of_data(file, needs="prompts").items
    assert (item.answer, item.question) == ("2", "Two?")


def test_rows_without_an_answer_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    whole = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    write_lines(file, [whole, {"messages": [*whole["messages"], {"role": "user", "content": "c"}]}])
    with pytest.raises(DataError) as error:
        of_data(file, needs="prompts")
    assert f"{file}:2: " in str(error.value)


def test_plain_text_has_a_loss_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_lines(file, [{"text": "a b"}])
    assert len(of_data(file, needs="rows").items) == 1
    with pytest.raises(DataError) as error:
        of_data(file, needs="prompts")
    assert f"{file}:1: plain text asks nothing: --metric loss" in str(error.value)


def test_columns_of_no_format_are_named_without_an_option_that_is_not_here(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_lines(file, [{"question": "a", "reply": "b"}])
    with pytest.raises(DataError) as error:
        of_data(file, needs="prompts")
    (problem,) = error.value.problems
    assert problem.place == f"{file}:1"
    assert "--set" not in str(error.value)
    hint = str(problem.hint)
    assert hint.startswith(f"nearest is alpaca: cat {file} | jq -c ")
    subprocess.run(["bash", "-c", hint.removeprefix("nearest is alpaca: ")], check=True, cwd=tmp_path)
    (item,) = of_data(tmp_path / "rows.new.jsonl", needs="prompts").items
    assert (item.question, item.answer) == ("a", "b")


def test_both_answers_of_a_pair_are_candidates_of_a_choice_alone(tmp_path: Path) -> None:
    """Beside what is written or its loss, one in two would be shown as what guessing comes to."""
    file = tmp_path / "pairs.jsonl"
    write_lines(file, [{"prompt": "Is 3 odd?", "chosen": "odd", "rejected": "even"}])
    assert of_data(file, needs="candidates").items[0].candidates == ("odd", "even")
    assert [of_data(file, needs=needs).items[0].candidates for needs in ("prompts", "rows")] == [(), ()]


def test_candidates_are_those_of_the_question_else_the_answers_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"instruction": f"Is {n} odd?", "output": "odd" if n % 2 else "even"} for n in range(5)]
    write_lines(file, rows)
    assert {item.candidates for item in of_data(file, needs="candidates").items} == {("even", "odd")}
    listed = [{"instruction": "Pick.\nAnswer format: a/b/c", "output": "b"}]
    write_lines(file, rows + listed)
    assert of_data(file, needs="candidates").items[-1].candidates == ("a", "b", "c")
    write_lines(file, [{"instruction": "Pick.\nAnswer format: a/b/ab", "output": "it is ab\n"}])
    (item,) = of_data(file, needs="candidates").items
    assert (item.answer, item.texts) == ("ab", ("it is a\n", "it is b\n", "it is ab\n"))
    write_lines(file, [{"instruction": "Pick.\nAnswer format: a/b/c", "output": "d"}])
    with pytest.raises(DataError, match=r"1 problem"):
        of_data(file, needs="candidates")
    write_lines(file, [{"instruction": str(n), "output": str(n)} for n in range(40)])
    with pytest.raises(DataError, match="40 different answers"):
        of_data(file, needs="candidates")
