"""Labelled answers: the forms of their rows, what is learned of them, and what other objectives say of them."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from whole_runs import train

from loradock.cli import cli
from loradock.config.load import load
from loradock.config.sections.data import SourceConfig
from loradock.data.formats import named
from loradock.data.formats.base import Completion, Conversation, Judgement, PreferencePair
from loradock.data.remarks import as_turns
from loradock.data.sources import format_of, samples
from loradock.errors import ConfigError, DataError, Problem
from loradock.use.evaluation.items import of_data

pytestmark = pytest.mark.thin(2)

ASKED = {"role": "user", "content": "Two stones?"}
SAID = {"role": "assistant", "content": "A lamp."}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "texts": ({"prompt": "Two", "completion": " lamp", "label": True}, "judgement"),
    "lists of turns": ({"prompt": [ASKED], "completion": [SAID], "label": True}, "judgement"),
    "messages": ({"messages": [ASKED, SAID], "label": True}, "judgement"),
    "LLaMA-Factory": ({"messages": [ASKED, SAID], "kto_tag": True}, "kto-tag"),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "Two?"}, {"from": "gpt", "value": "Lamp."}], "kto_tag": True},
        "kto-tag",
    ),
    "alpaca": ({"instruction": "Two?", "input": "", "output": "Lamp.", "kto_tag": True}, "kto-tag"),
    "text of a table": ({"instruction": "Two?", "output": "Lamp.", "label": "True"}, "judgement"),
}


def read(path: Path, *rows: dict[str, Any], **source: Any) -> list[Any]:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return [sample for _, sample in samples(SourceConfig(path=str(path), **source))]


@pytest.mark.parametrize("form", FORMS)
def test_a_label_beside_an_answer_is_read_in_every_form(form: str, tmp_path: Path) -> None:
    row, name = FORMS[form]
    label = next(column for column in ("label", "kto_tag") if column in row)
    opposite = {**row, label: "false" if isinstance(row[label], str) else False}
    liked, disliked = read(tmp_path / "rows.jsonl", row, opposite)
    assert format_of(SourceConfig(path=str(tmp_path / "rows.jsonl"))) == name
    assert isinstance(liked, Judgement)
    assert isinstance(disliked, Judgement)
    assert (liked.is_desirable, disliked.is_desirable) == (True, False)
    assert liked.answer == disliked.answer
    answer = liked.answer
    assert isinstance(answer, Completion) or answer.given == len(answer.messages) - 1


def test_the_last_answer_alone_is_labelled(tmp_path: Path) -> None:
    (sample,) = read(tmp_path / "rows.jsonl", {"messages": [ASKED, SAID, ASKED, SAID], "label": False})
    assert isinstance(sample.answer, Conversation)
    assert sample.answer.given == 3


def test_classes_are_no_labels_unless_they_are_named_so(tmp_path: Path) -> None:
    row = {"prompt": "Two", "completion": " lamp", "label": 1}
    (plain,) = read(tmp_path / "rows.jsonl", row)
    assert isinstance(plain, Completion)
    (named,) = read(tmp_path / "rows.jsonl", row, format="judgement")
    assert named == Judgement(Completion("Two", " lamp"), True)
    column = {"prompt": "Two", "completion": " lamp", "thumbs_up": False}
    (mapped,) = read(tmp_path / "rows.jsonl", column, fields={"label": "thumbs_up"})
    assert mapped == Judgement(Completion("Two", " lamp"), False)


def test_what_is_no_label_is_refused_by_its_line(tmp_path: Path) -> None:
    rows = [{"prompt": "Two", "completion": " lamp", "label": each} for each in (True, "maybe", None, 2)]
    rows.append({"messages": [ASKED, SAID, ASKED], "label": True})
    _, *problems = read(tmp_path / "rows.jsonl", *rows)
    assert all(isinstance(each, Problem) for each in problems)
    assert [(each.line, each.what) for each in problems] == [
        (2, "label is 'maybe': an answer is labelled with true or false"),
        (3, "label is null: an answer is labelled with true or false"),
        (4, "label is 2: an answer is labelled with true or false"),
        (5, "messages ends with a user turn, not with the assistant's: remove the turns after it"),
    ]


@pytest.mark.parametrize("column", ["label", "kto_tag", "thumbs_up"])
@pytest.mark.parametrize("label", ["missing", None, "yes"])
def test_a_first_row_without_its_label_is_named_and_the_option_that_follows_names_each(
    column: str, label: str | None, tmp_path: Path
) -> None:
    """The first row decides the format: the labels of the others are then not looked at, and nothing else says why."""
    row = {"prompt": "Two", "completion": " lamp"}
    first = row if label == "missing" else {**row, column: label}
    *_, problem = read(tmp_path / "rows.jsonl", first, {**row, column: True}, {**row, column: False})
    assert isinstance(problem, Problem)
    has = f"has 'yes' as {column}" if label == "yes" else f"has no {column}"
    assert f"{column} is false), but line 1, which says what the rows are, {has}:" in problem.what
    assert problem.hint is not None
    assert "data.sources.0.format=judgement, or keep the liked ones" in problem.hint
    mapped = {"fields": {"label": column}} if column != "label" else {}
    bad, *good = read(tmp_path / "rows.jsonl", first, {**row, column: False}, format="judgement", **mapped)
    assert isinstance(bad, Problem)
    assert bad.line == 1
    assert good == [Judgement(Completion("Two", " lamp"), False)]


def test_a_mapped_label_that_the_first_row_lacks_is_named(tmp_path: Path) -> None:
    row = {"prompt": "Two", "completion": " lamp"}
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "rows.jsonl", row, {**row, "liked": True}, fields={"label": "liked"})
    assert str(caught.value.hint).startswith("the first row lacks liked: --set data.sources.0.format=judgement")


def test_rows_without_labels_under_kto_are_told_how_they_are_labelled(tmp_path: Path, llama: Path) -> None:
    file = tmp_path / "rows.jsonl"
    read(file, {"prompt": "Two", "completion": " lamp", "label": 1})
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "kto", "objective=preference", "preference.loss=kto", model=llama, data=file)
    assert "label each answer with true or false (label), from the first row on" in str(caught.value.hint)
    assert "--set data.sources.0.format=judgement names rows without it, and reads 0 and 1" in str(caught.value.hint)


def test_supervised_training_says_what_to_type_for_them_and_what_leaves_the_labels_out(
    tmp_path: Path, llama: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    read(file, *({"prompt": f"{n} stones", "completion": " lamp", "label": n % 2 == 0} for n in range(6)))
    with pytest.raises(ConfigError, match="answers that are each labelled as desirable or not") as caught:
        train(tmp_path / "refused", "train.max_steps=1", model=llama, data=file)
    hint = str(caught.value.hint)
    kto, everything, liked = "objective=preference", "data.sources.0.ignore=[label]", "jq -c"
    assert hint.startswith(f"--set {kto} --set preference.loss=kto, or --set '{everything}'")
    common = ("train.max_steps=1", "train.global_batch=2")
    made = train(tmp_path / "kto", *common, kto, "preference.loss=kto", model=llama, data=file)
    assert made.metrics[0]["loss"] == 0.5
    card = (made.adapter / "README.md").read_text("utf-8")
    assert "kto, beta 0.1" in card
    assert "1 desirable, 1 undesirable" in card
    assert train(tmp_path / "all", *common, everything, model=llama, data=file).record["data"]["conversations"] == 0
    command = hint[hint.index(liked) :].splitlines()[0]
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)


def test_pairs_and_labels_under_losses_that_do_not_take_them(tmp_path: Path, llama: Path) -> None:
    file = tmp_path / "rows.jsonl"
    read(file, {"prompt": "Two", "completion": " lamp", "label": True})
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "dpo", "objective=preference", model=llama, data=file)
    assert str(caught.value.hint).startswith("--set objective=preference --set preference.loss=kto")
    assert ", or with --set objective=supervised: --set 'data.sources.0.ignore=[label]'" in str(caught.value.hint)
    bad = [{"prompt": f"{n}", "chosen": " lamp", "rejected": " " if n == 1 else " cat"} for n in range(3)]
    read(file, *bad)
    with pytest.raises(DataError) as wrong:
        train(tmp_path / "kto", "objective=preference", "preference.loss=kto", model=llama, data=file)
    assert "rows.jsonl" in str(wrong.value.problems[0].file)
    assert wrong.value.problems[0].line == 2


def test_pairs_of_equal_answers_are_left_out_counted_and_bounded_as_of_other_losses(
    tmp_path: Path, llama: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    pairs = [{"prompt": f"{n}", "chosen": " lamp", "rejected": " lamp" if n == 1 else " cat"} for n in range(4)]
    kto = ("objective=preference", "preference.loss=kto", "train.max_steps=1", "train.global_batch=2")
    read(file, *pairs)
    with pytest.raises(DataError, match=r"1 of 4 pairs \(25.0%\) would be left out: 1 have two equal") as caught:
        train(tmp_path / "many", *kto, model=llama, data=file)
    assert caught.value.hint == "allow it: --set data.max_dropped=0.25"
    made = train(tmp_path / "few", *kto, "data.max_dropped=0.25", model=llama, data=file)
    assert made.record["data"]["equal_pairs"] == 1
    assert str(made.record["fingerprint"]["data.train.rows"]).startswith("6 samples")
    read(file, pairs[1])
    with pytest.raises(DataError, match="1 of 1 pairs") as caught:
        train(tmp_path / "all", *kto, "data.max_dropped=0.99", model=llama, data=file)
    assert caught.value.hint == "other rows: there is nothing to prefer in these"


def test_labels_are_part_of_what_was_trained(tmp_path: Path, llama: Path) -> None:
    """Answers of other labels are no copies, and the same answers with their labels turned are other data."""
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "Two", "completion": " lamp", "label": each} for each in (True, False, True)]
    settings = ("objective=preference", "preference.loss=kto", "train.max_steps=1", "train.global_batch=2")
    read(file, *rows)
    copies = train(tmp_path / "copies", *settings, "data.deduplicate=exact", model=llama, data=file)
    assert copies.record["data"]["duplicate_rows"] == 1
    used: list[str] = []
    for name, labels in (("one", (True, False)), ("two", (False, True))):
        read(file, *({**rows[0], "label": label} for label in labels))
        used.append(train(tmp_path / name, *settings, model=llama, data=file).record["fingerprint"]["data.train.rows"])
    assert used[0] != used[1]


@pytest.mark.parametrize("has_model", [False, True])
def test_statistics_count_the_labels_and_take_several_answers_of_a_prompt_as_they_are(
    has_model: bool, tmp_path: Path, llama: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{n} stones", "completion": f" lamp {n}", "label": True} for n in range(3)]
    read(file, *rows, *({**row, "completion": " cat", "label": False} for row in rows[:2]))
    kto = ("--set", "objective=preference", "--set", "preference.loss=kto")
    words = ("--model", llama, *kto, "--set", f"data.cache={tmp_path / 'cache'}") if has_model else ()
    asked = ["data", "stats", "--data", str(file), *map(str, words)]
    assert "labels: 3 desirable, 2 undesirable\n" in CliRunner().invoke(cli, asked).stdout
    found = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).stdout)
    assert found["labels"] == {"desirable": 3, "undesirable": 2}
    assert "other-answer" not in [each["name"] for each in found["suspicions"]]


def test_another_answer_is_looked_for_among_the_rows_without_a_label_alone(tmp_path: Path) -> None:
    labelled, plain = tmp_path / "labelled.jsonl", tmp_path / "plain.jsonl"
    read(labelled, *({"prompt": "Two", "completion": f" lamp {n}", "label": n == 0} for n in range(3)))
    read(plain, *({"prompt": prompt, "completion": f" {prompt} {n}"} for n, prompt in enumerate(("Red", "Red", "Two"))))
    for files in ((labelled, plain), (plain, labelled)):
        words = ["data", "stats", *(word for file in files for word in ("--data", str(file))), "--json"]
        found = json.loads(CliRunner().invoke(cli, words).stdout)
        (other,) = [each for each in found["suspicions"] if each["name"] == "other-answer"]
        assert other["rows"] == 1
        assert f"{plain}:2 = {plain}:1" in other["places"]


def test_rows_to_evaluate_on_are_the_desirable_answers_and_a_choice_is_against_the_others(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    said = [("Two", " lamp", True), ("Two", " cat", False), ("Two", " lamp", False), ("One", " cat", True)]
    read(file, *({"prompt": asked, "completion": answer, "label": label} for asked, answer, label in said))
    rows = of_data(file, needs="rows")
    assert [(item.question, item.answer) for item in rows.items] == [("Two", "lamp"), ("One", "cat")]
    assert (rows.of_file, rows.note) == (4, "2 answers that are labelled as undesirable are left out")
    choice = of_data(file, needs="candidates")
    assert [(item.row, item.answer, item.candidates) for item in choice.items] == [(0, "lamp", ("lamp", "cat"))]
    assert str(choice.note).endswith("1 that have none are left out")
    read(
        file,
        {"prompt": "Two", "completion": " lamp", "label": True},
        {"prompt": "Red", "completion": " l", "label": False},
    )
    with pytest.raises(DataError, match="has a desirable and an undesirable answer") as refused:
        of_data(file, needs="candidates")
    assert refused.value.hint == "--metric loss measures the desirable ones"
    read(file, {"prompt": "Two", "completion": " lamp", "label": False})
    with pytest.raises(DataError, match="is labelled as desirable"):
        of_data(file, needs="rows")


@pytest.mark.parametrize(("row", "loss"), [
    ({"prompt": "Two", "completion": " lamp", "thumbs_up": True}, "kto"),
    ({"prompt": "Two", "chosen": " lamp", "rejected": " cat"}, "dpo"),
])  # fmt: skip
def test_the_advice_to_train_with_the_template_is_one_that_can_be_followed(
    row: dict[str, Any], loss: str, tmp_path: Path, llama: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    read(file, *[row] * 2)
    source = SourceConfig(path=str(file), fields={"label": "thumbs_up"} if loss == "kto" else {})
    advice = as_turns(source, named(format_of(source)), index=0)
    settings = [word for word in shlex.split(advice) if word.startswith("data.")]
    shortcuts = {"--model": str(llama), "--data": [str(file)]}
    (followed,) = load(None, overrides=settings, shortcuts=shortcuts).config.data.sources
    for _, sample in samples(followed):
        assert isinstance(sample, Judgement | PreferencePair)
        assert isinstance(sample.answered, Conversation)
        assert [turn.content for turn in sample.answered.messages] == ["Two", " lamp"]
