"""Preference data: the forms that people have, what is refused, and what is left out with a word."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from click.testing import CliRunner
from data.test_columns import loaded, obeyed, turns, written
from tiny import BASE
from transformers import AutoTokenizer

from loradock.catalog.objectives import OBJECTIVES
from loradock.cli import cli
from loradock.commands.plan import described_facts
from loradock.config.load import load
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.blocks import Earlier
from loradock.data.corpus import Corpus, by_kind, prepare_corpus
from loradock.data.first_look import look
from loradock.data.formats import Completion, Conversation, PreferencePair
from loradock.data.pool import Block
from loradock.data.preferences.judgements import prompts_of
from loradock.data.samples.judgements import JudgementSamples
from loradock.data.samples.preferences import PreferenceSamples
from loradock.errors import ConfigError, DataError, Problem, StorageError
from loradock.machine import Host, probe
from loradock.use.evaluation.items import of_data

pytestmark = pytest.mark.thin(2)

SAID = {"role": "user", "content": "Two and two?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]}
SAID_AGAIN = {"role": "user", "content": "And again?"}
SYSTEM = {"role": "system", "content": "Be terse."}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


ASKED = [("user", "Two and two?")]
FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "trl, text": ({"prompt": "Two and two?", "chosen": " four", "rejected": " five"}, "Two and two?"),
    "trl, turns": ({"prompt": [SAID], "chosen": [answer("4")], "rejected": [answer("5")]}, ASKED),
    "trl, implicit prompt": ({"chosen": [SAID, answer("4")], "rejected": [SAID, answer("5")]}, ASKED),
    "ultrafeedback": (
        {
            "prompt": "Two and two?", "prompt_id": "x", "messages": [SAID, answer("4")], "score_chosen": 8.0,
            "chosen": [SAID, answer("4")], "rejected": [SAID, answer("5")], "score_rejected": 5.0,
        },
        ASKED,
    ),
    "orca": (
        {"system": "Be terse.", "question": "Two and two?", "chosen": "4", "rejected": "5"},
        [("system", "Be terse."), *ASKED],
    ),
    "alpaca": (
        {"instruction": "Add.", "input": "2, 2", "chosen": "4", "rejected": "5"}, [("user", "Add.\n\n2, 2")]
    ),
    "llama-factory": (
        {
            "conversations": [{"from": "human", "value": "Two and two?"}],
            "chosen": {"from": "gpt", "value": "4"}, "rejected": {"from": "gpt", "value": "5"},
        },
        ASKED,
    ),
    "swift": ({"messages": [SYSTEM, SAID, answer("4")], "rejected_response": "5"}, [("system", "Be terse."), *ASKED]),
    "prompt column and turns of the assistant": (
        {"prompt": "Two and two?", "chosen": [answer("4")], "rejected": [answer("5")]}, ASKED
    ),
    "several turns": (
        {
            "chosen": [SAID, answer("4"), SAID, answer("4")],
            "rejected": [SAID, answer("4"), SAID, answer("5")],
        },
        [*ASKED, ("assistant", "4"), *ASKED],
    ),
    "turns before whole conversations": (
        {"prompt": [SAID, answer("4")], "chosen": [SAID_AGAIN, answer("4")], "rejected": [SAID_AGAIN, answer("5")]},
        [*ASKED, ("assistant", "4"), ("user", "And again?")],
    ),
    "turns that whole conversations begin with": (
        {"messages": [SAID], "chosen": [SAID, answer("4")], "rejected": [SAID, answer("5")]}, ASKED
    ),
    "hh-rlhf": (
        {
            "chosen": "\n\nHuman: 2+2?\n\nAssistant: It is 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: It is 5",
        },
        "\n\nHuman: 2+2?\n\nAssistant:",
    ),
    "texts that begin alike": ({"chosen": "2 + 2 is 4", "rejected": "2 + 2 is 5"}, "2 + 2 is"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_a_prompt_with_two_answers(form: str, tmp_path: Path) -> None:
    row, prompt = FORMS[form]
    (sample,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert isinstance(sample, PreferencePair)
    for side in (sample.chosen, sample.rejected):
        if isinstance(side, Conversation):
            assert turns(side)[: side.given] == prompt
            assert [turn.role for turn in side.messages[side.given :]] == ["assistant"]
        else:
            assert isinstance(side, Completion)
            assert side.prompt == prompt
    assert sample.chosen != sample.rejected


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "rejected is empty"),
        ({"prompt": "a", "chosen": None, "rejected": "b"}, "chosen is null and rejected is text"),
        ({"prompt": "a", "chosen": [], "rejected": []}, "chosen is empty: there is nothing to prefer"),
        ({"chosen": [SAID, answer("4")], "rejected": [SYSTEM, answer("5")]}, "begin with different turns"),
        ({"question": "a", "prompt": "b", "chosen": "c", "rejected": "d"}, "both hold a prompt"),
        ({"chosen": [SAID, answer("4")], "rejected": "5"}, "chosen is a list and rejected is text"),
        ({"messages": [SAID, answer("4"), answer("4")], "rejected_response": "5"}, "ends with two answers"),
        ({"messages": [SAID], "rejected_response": "5"}, "does not end with an assistant's answer"),
    ],
)
def test_a_row_that_is_no_pair_is_refused_with_its_line(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"} if "messages" not in row else FORMS["swift"][0]
    _, problem = loaded(written(tmp_path / "rows.jsonl", good, row))
    assert isinstance(problem, Problem)
    assert problem.line == 2
    assert words in problem.what


def corpus(*rows: dict[str, Any], folder: Path, settings: tuple[str, ...] = (), max_length: int = 64) -> Corpus:
    path = written(folder / "rows.jsonl", *rows)
    overrides = ["objective=preference", f"data.cache={folder / 'cache'}", *settings]
    config = load(None, overrides=overrides, shortcuts={"--model": str(BASE), "--data": [str(path)]}).config
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    return prepare_corpus(config, tokenizer=tokenizer, max_length=max_length, facts=probe.gather(Host()))


def pairs_of(made: Corpus) -> PreferenceSamples:
    samples = made.leading
    assert isinstance(samples, PreferenceSamples)
    return samples


ROW = {"prompt": "one two", "chosen": " three", "rejected": " four five"}


def test_labelled_answers_to_one_prompt_are_held_out_together(tmp_path: Path) -> None:
    """Two answers are asked for: of each of six prompts there are three, in rows of their own."""
    rows = [{"prompt": f"{n % 6} stones", "completion": f" lamp {n}", "label": n < 9} for n in range(18)]
    settings = ("preference.loss=kto", "data.validation=2")
    made = corpus(*rows, folder=tmp_path, settings=settings).leading
    assert isinstance(made, JudgementSamples)
    assert made.validation is not None
    held_out, trained = (prompts_of(made.train.prepared, part.fitted.rows) for part in (made.validation, made.train))
    assert (len(held_out), len(set(held_out))) == (3, 1)
    assert (len(trained), len(set(trained))) == (15, 5)
    with pytest.raises(ConfigError, match="asks for 2 of 18 rows, which all belong together"):
        corpus(*({**row, "prompt": "stones"} for row in rows), folder=tmp_path, settings=settings)


def test_one_equal_pair_beside_labelled_answers_is_left_out(tmp_path: Path) -> None:
    labelled = [{"prompt": f"{n} stones", "completion": " lamp", "label": True} for n in range(19)]
    files = [
        written(tmp_path / "labelled.jsonl", *labelled),
        written(tmp_path / "pairs.jsonl", {**ROW, "rejected": " three"}),
    ]
    asked = ["objective=preference", "preference.loss=kto", f"data.cache={tmp_path / 'cache'}"]

    def prepared(allowed: float) -> Corpus:
        shortcuts = {"--model": str(BASE), "--data": list(map(str, files))}
        config = load(None, overrides=[*asked, f"data.max_dropped={allowed}"], shortcuts=shortcuts).config
        tokenizer = AutoTokenizer.from_pretrained(BASE)
        return prepare_corpus(config, tokenizer=tokenizer, max_length=64, facts=probe.gather(Host()))

    samples = prepared(0.05).leading
    assert isinstance(samples, JudgementSamples)
    assert (samples.train.equal, len(samples.train.fitted.rows)) == (1, 19)
    with pytest.raises(DataError, match=r"1 of 20 pairs and answers \(5.0%\) would be left out"):
        prepared(0.04)


def test_equal_and_over_long_pairs_are_left_out_counted_and_bounded(tmp_path: Path) -> None:
    rows = [*[ROW] * 38, {**ROW, "chosen": " same", "rejected": " same"}, {**ROW, "rejected": " long" * 100}]
    made = pairs_of(corpus(*rows, folder=tmp_path))
    assert (len(made.train.fitted), made.train.fitted.equal, made.train.fitted.over_long) == (38, 1, 1)
    notes = "\n".join(made.notes)
    assert "1 pair of equal answers left out: there is nothing to prefer" in notes
    assert "1 pairs are left out: an answer has over 64 tokens" in notes
    assert "the chosen answer is the longer one in 0 % of them" in notes
    record = made.as_dict()
    assert (record["preference_pairs"], record["equal_pairs"], record["over_long_pairs"]) == (38, 1, 1)
    cut = pairs_of(corpus(*rows, folder=tmp_path, settings=("data.long_rows=truncate",)))
    assert (len(cut.train.fitted), cut.train.fitted.over_long) == (39, 0)
    assert cut.train.fitted.documents.lengths.max() == 64
    with pytest.raises(
        DataError, match=r"20 of 40 pairs \(50.0%\) would be left out: 20 have two equal answers"
    ) as caught:
        corpus(*[ROW] * 20, *[rows[38]] * 20, folder=tmp_path)
    allowed = re.search(r"--set (data.max_dropped=\S+)", str(caught.value.hint))
    assert allowed
    assert (
        len(pairs_of(corpus(*[ROW] * 20, *[rows[38]] * 20, folder=tmp_path, settings=(allowed[1],))).train.fitted) == 20
    )


def test_a_pair_of_which_one_answer_cannot_be_rendered_is_refused_whole(tmp_path: Path) -> None:
    talk = {"chosen": [SAID, answer("4")], "rejected": [SAID, answer("5")]}
    bad = {"chosen": [SAID, answer("4")], "rejected": [SAID, {"role": "tool", "content": "x"}, answer("5")]}
    template = tmp_path / "strict.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    settings = (f"data.template={template}",)
    with pytest.raises(DataError) as caught:
        corpus(talk, bad, talk, folder=tmp_path, settings=settings)
    assert [problem.line for problem in caught.value.problems] == [2]
    assert "rejected: " in caught.value.problems[0].what
    skipping = (*settings, "data.on_bad_row=skip", "data.max_dropped=0.5")
    made = pairs_of(corpus(talk, bad, talk, folder=tmp_path, settings=skipping))
    assert np.asarray(made.train.prepared.lines).tolist() == [1, 1, 3, 3]
    assert np.asarray(made.train.prepared.roles).tolist() == [0, 1, 0, 1]


def test_pairs_are_held_out_whole_and_their_masks_are_those_of_rows_to_answer(tmp_path: Path) -> None:
    rows = [{**ROW, "prompt": f"one {number}"} for number in range(20)]
    made = pairs_of(corpus(*rows, folder=tmp_path, settings=("data.validation=0.25",)))
    assert made.validation
    assert sorted([*made.train.fitted.pairs, *made.validation.fitted.pairs]) == list(range(20))
    assert len(made.validation.fitted) == 5
    prepared = made.train.prepared
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for row in range(prepared.rows):
        ids, mask = prepared.row(row)
        expected = (" three", " four five")[row % 2]
        text = tokenizer.decode(ids[mask.astype(bool)], skip_special_tokens=True)
        assert text == expected
        assert tokenizer.decode(ids[~mask.astype(bool)], skip_special_tokens=True) == f"one {row // 2}"


@pytest.mark.parametrize("form", FORMS)
def test_supervised_training_is_told_what_to_type_and_the_chosen_answers_are_learned_then(
    form: str, tmp_path: Path
) -> None:
    row, _ = FORMS[form]
    path = written(tmp_path / "rows.jsonl", row, row)
    config = load(None, shortcuts={"--model": str(BASE), "--data": [str(path)]}).config
    with pytest.raises(
        ConfigError, match="holds preference data, a chosen and a rejected answer of each prompt"
    ) as caught:
        by_kind(config)
    hint = str(caught.value.hint)
    assert hint.startswith("--set objective=preference, or ")
    (sample,) = loaded(written(tmp_path / "one.jsonl", row))
    if command := re.search(r"cat .+ \| jq .*", hint):
        subprocess.run(["bash", "-c", command[0]], check=True, cwd=tmp_path, capture_output=True)
        found, _ = loaded(tmp_path / "rows.new.jsonl")
    else:
        found, _ = loaded(path, **obeyed(hint.partition(", or ")[2]))
    chosen = sample.chosen
    last = chosen.completion if isinstance(chosen, Completion) else chosen.messages[-1].content
    learned = found.completion if isinstance(found, Completion) else turns(found)[-1][1]
    assert learned.endswith(last)


def test_a_validation_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", {"prompt": "a", "completion": "b"})
    pairs = written(tmp_path / "pairs.jsonl", ROW)
    config = load(
        None, overrides=[f"data.validation={pairs}"], shortcuts={"--model": str(BASE), "--data": [str(rows)]}
    ).config
    with pytest.raises(ConfigError, match=r"data.validation: .*pairs\.jsonl holds preference data"):
        by_kind(config)


def test_other_names_of_the_columns_are_mapped_by_the_hint(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", {"prompt": "a", "accepted": "b", "rejected": "c"})
    (problem,) = loaded(path)
    assert problem.what.startswith("preference data (columns accepted and rejected)")
    assert problem.hint.startswith(
        "--set objective=preference --set data.sources.0.fields.chosen=accepted, or to learn"
    )
    (sample,) = loaded(path, fields={"chosen": "accepted"})
    assert sample == PreferencePair(Completion("a", "b"), Completion("a", "c"))
    config = load(
        None,
        overrides=["data.sources.0.fields.chosen=accepted"],
        shortcuts={"--model": str(BASE), "--data": [str(path)]},
    ).config
    with pytest.raises(ConfigError) as caught:
        by_kind(config)
    (found,) = loaded(path, **obeyed(str(caught.value.hint).partition(", or ")[2]))
    assert found == Completion("a", "b")


def test_answers_as_single_turns_by_other_names_come_with_the_command(tmp_path: Path) -> None:
    row = {
        "conversations": [{"from": "human", "value": "Two and two?"}],
        "accepted": {"from": "gpt", "value": "4"},
        "rejected": {"from": "gpt", "value": "5"},
    }
    (problem,) = loaded(written(tmp_path / "rows.jsonl", row))
    command = re.search(r"cat .+ \| jq .*", problem.hint)
    assert command
    subprocess.run(["bash", "-c", command[0]], check=True, cwd=tmp_path, capture_output=True)
    (found,) = loaded(tmp_path / "rows.new.jsonl")
    assert turns(found) == [("user", "Two and two?"), ("assistant", "4")]


def test_pairs_are_judged_by_which_answer_is_likelier_where_one_turn_differs(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", FORMS["ultrafeedback"][0], FORMS["several turns"][0])
    items = of_data(path, needs="candidates").items
    assert [(item.answer, item.candidates) for item in items] == [("4", ("4", "5"))] * 2
    longer = {"chosen": [SAID, answer("4")], "rejected": [SAID, answer("5"), SAID, answer("6")]}
    equal = {"prompt": "a", "chosen": "b", "rejected": "b "}
    with pytest.raises(DataError) as caught:
        of_data(written(tmp_path / "bad.jsonl", longer, equal), needs="candidates")
    whats = [problem.what for problem in caught.value.problems]
    assert whats == ["chosen and rejected differ in more than their last turn: one answer is compared with another"]
    decided = {"prompt": "c", "chosen": "d", "rejected": "e"}
    judged = of_data(written(tmp_path / "some.jsonl", equal, decided), needs="candidates")
    assert [item.answer for item in judged.items] == ["d"]
    assert judged.of_file == 2
    assert judged.note == "left out: 1 pair of equal answers, neither of which is preferred"
    with pytest.raises(DataError, match=r"all pairs of .* have two equal answers"):
        of_data(written(tmp_path / "none.jsonl", equal), needs="candidates")


@pytest.mark.parametrize("needs", ["prompts", "rows"])
def test_what_is_compared_with_the_chosen_answer_alone_takes_any_rejected_one(
    needs: Literal["prompts", "rows"], tmp_path: Path
) -> None:
    """`--metric exact` refused rows for it."""
    equal = {"prompt": "a", "chosen": "b", "rejected": "b"}
    longer = {"chosen": [SAID, answer("4")], "rejected": [SAID, answer("5"), SAID, answer("6")]}
    items = of_data(written(tmp_path / "rows.jsonl", equal, longer), needs=needs)
    assert [item.answer for item in items.items] == ["b", "4"]
    assert items.note is None


def test_a_described_pair_is_two_documents_to_the_plan() -> None:
    plain, preferring = (
        load(None, overrides=[f"objective={name}", "train.global_batch=10"], needs_inputs=False).config
        for name in ("supervised", "preference")
    )
    rows, pairs = (described_facts(each, 1000, 50, 100, length=100) for each in (plain, preferring))
    assert (rows.samples_per_epoch, pairs.samples_per_epoch) == (1000, 2000)
    assert math.ceil(pairs.samples_per_epoch / preferring.step_samples) == 100


REWARD = ("objective=reward",)


def test_margins_of_rows_are_kept_by_the_cache_and_are_part_of_what_a_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loradock.data.blocks.MOST_ROWS", 2)
    lines: list[dict[str, Any]] = [ROW | {"chosen": f"{number} lamps"} for number in range(6)]
    plain = pairs_of(corpus(*lines, folder=tmp_path, settings=REWARD))
    assert not (plain.train.prepared.directory / "margins.f32").exists()
    for number, margin in ((1, 0.5), (2, "-2"), (3, None)):
        lines[number]["margin"] = margin
    kept = pairs_of(corpus(*lines, folder=tmp_path, settings=REWARD))
    assert kept.train.prepared.margins.tolist() == [0, 0, 0.5, 0.5, -2, -2, 0, 0, 0, 0, 0, 0]
    assert kept.train.prepared.digest == plain.train.prepared.digest
    assert kept.train.used.startswith(plain.train.used), "runs that began before rows had margins continue"
    assert kept.train.used != plain.train.used
    assert "margins: 2 of 6 pairs have one, -2 to 0.5" in kept.notes
    more = pairs_of(corpus(*lines, ROW, folder=tmp_path, settings=REWARD))
    assert any("prepared before" in note for note in more.train.prepared.notes)
    assert more.train.prepared.margins[:12].tolist() == kept.train.prepared.margins.tolist()


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_an_objective_that_reads_no_margins_says_so_and_its_runs_are_the_same_with_them(
    loss: str, tmp_path: Path
) -> None:
    lines = [ROW | {"chosen": f"{number} lamps"} for number in range(4)]
    settings = (f"preference.loss={loss}",)
    plain, held = (
        corpus(*rows, folder=tmp_path, settings=settings).leading
        for rows in (lines, [line | {"margin": 2} for line in lines])
    )
    assert held.train.used == plain.train.used
    assert "margin: objective preference reads none of rows; objective reward does" in held.notes
    assert not any("margin" in note for note in plain.notes)
    words = ["data", "show", "--model", str(BASE), "--data", str(tmp_path / "rows.jsonl"), "--row", "1"]
    cache = ["--set", f"data.cache={tmp_path / 'cache'}"]
    show = partial(CliRunner().invoke, cli)
    assert ", margin 2" in show([*words, *cache, "--set", REWARD[0]]).stdout
    assert ", margin" not in show([*words, *cache, "--set", "objective=preference", "--set", settings[0]]).stdout


def test_margins_that_cannot_be_read_any_more_are_not_taken_for_none(tmp_path: Path) -> None:
    made = pairs_of(corpus(*[ROW | {"margin": 2}] * 3, folder=tmp_path, settings=REWARD)).train.prepared
    cache = made.directory.parent
    maker = json.loads((made.directory / "manifest.json").read_text())["maker"]
    earlier = Earlier.of(cache, maker=maker)
    (digest,) = earlier.places
    pair = PreferencePair(Completion("", ""), Completion("", ""))
    block = Block(rows=[(line, pair) for line in (1, 2, 3)], digest=digest)
    known = earlier.chunk(block)
    assert known is not None
    assert known.margins is not None
    made.directory.joinpath("margins.f32").unlink()
    assert earlier.chunk(block) is None
    with pytest.raises(StorageError, match=r"margins\.f32: no such file"):
        _ = pickle.loads(pickle.dumps(made)).margins  # as in another process


@pytest.mark.parametrize("value", ["much", True, [1]])
def test_a_margin_that_is_no_number_is_refused(value: object, tmp_path: Path) -> None:
    (problem,) = loaded(written(tmp_path / "rows.jsonl", ROW | {"margin": value}), unread_fields=())
    assert problem.what.startswith("margin is ")
    assert problem.what.endswith("it is a number, by how much the chosen answer is better")


FORMS_WITH_MARGIN = {
    "preference": (ROW, ""),
    "mapped": (ROW, "score_difference"),
    "swift": ({"messages": [SAID, answer("4")], "rejected_response": "5"}, ""),
    "verdict": ({"prompt": "p", "response_0": "a", "response_1": "b", "better_response_id": 1}, ""),
}


@pytest.mark.parametrize("form", FORMS_WITH_MARGIN)
@pytest.mark.parametrize("objective", ["preference", "reward"])
def test_a_margin_that_is_no_number_is_refused_where_margins_are_learned_from_and_named_elsewhere(
    form: str, objective: str, tmp_path: Path
) -> None:
    """It stopped a DPO run, which reads none. What the cache has of such a run is not taken for a reward model's."""
    row, column = FORMS_WITH_MARGIN[form]
    name = column or "margin"
    settings = [f"data.sources.0.fields.margin={column}"] if column else []
    rows = [row | {name: value} for value in (1, "much", None, [1])]

    def under(asked: str) -> Corpus:
        return corpus(*rows, folder=tmp_path, settings=(f"objective={asked}", *settings))

    made = pairs_of(under("preference"))
    assert len(made.train.prepared.firsts) == 4
    (told,) = made.train.prepared.sources[0].told()
    assert f"columns not used by format {made.train.prepared.sources[0].contents.format}: {name} (50" in told
    assert "such as 'much'" in told
    if objective == "reward":
        with pytest.raises(DataError) as caught:
            under("reward")
        lines = [problem.line for problem in caught.value.problems]
        assert lines == [2, 4]
        assert all(f"ignore=[{name}]" in str(problem.hint) for problem in caught.value.problems)


@pytest.mark.parametrize("objective", ["preference", "reward"])
def test_the_first_look_refuses_a_margin_where_the_objective_reads_it(objective: str, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", ROW | {"margin": "much"})
    data = DataConfig(sources=(SourceConfig(path=str(path)),))
    with contextlib.ExitStack() as stack:
        if OBJECTIVES[objective].reads_margins:
            stack.enter_context(pytest.raises(DataError, match="margin is 'much'"))
        look(data, objective=OBJECTIVES[objective])


@pytest.mark.parametrize(
    ("value", "words", "fields"),
    [(-1e39, "-1e+39", {}), ("inf", "'inf'", {"margin": "edge"}), (10**400, f"1{'0' * 36}...", {})],
    ids=["float32", "inf", "float64"],
)
def test_a_margin_that_float32_does_not_hold_is_left_out_as_the_hint_says(
    value: object, words: str, fields: dict[str, str], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", ROW, ROW | {fields.get("margin", "margin"): value})
    _, problem = loaded(path, unread_fields=(), fields=fields)
    assert problem.what.startswith(f"margin is {words}: it is -3.4e+38 to 3.4e+38")
    option, _, rest = str(problem.hint).partition(" leaves it out")
    assert not rest
    (setting,) = shlex.split(option.removeprefix("--set "))
    name = fields.get("margin", "margin")
    assert setting == f"data.sources.0.ignore=[{name}]"
    first, second = loaded(path, unread_fields=(), fields=fields, ignore=[name])
    assert first == second


def test_two_questions_of_a_row_are_refused_and_the_hint_leaves_one_out(tmp_path: Path) -> None:
    """Of a column of turns: it was dropped without a word."""
    row = {"prompt": [SAID], "chosen": [SAID_AGAIN, answer("4")], "rejected": [SAID_AGAIN, answer("5")]}
    (problem,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert problem.what == "prompt ends with a question, and chosen begins with another: which of them is answered?"
    assert "ignore=[prompt]" in problem.hint


def test_a_call_of_a_tool_may_end_the_prompt_of_its_result(tmp_path: Path) -> None:
    result = {"role": "tool", "content": "4"}
    row = {"prompt": [SAID, CALL], "chosen": [result, answer("4")], "rejected": [result, answer("5")]}
    (sample,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert [turn.role for turn in sample.chosen.messages] == ["user", "assistant", "tool", "assistant"]
    assert sample.chosen.given == 2


def test_a_call_is_no_answer_that_ends_a_prompt(tmp_path: Path) -> None:
    (sample,) = loaded(written(tmp_path / "rows.jsonl", {"prompt": [SAID, CALL], "chosen": "4", "rejected": "5"}))
    assert [turn.role for turn in sample.chosen.messages] == ["user", "assistant", "assistant"]
