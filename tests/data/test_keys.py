"""No name of a row, a turn or a part of one is lost: it is used, told or refused, by one rule for all formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data.test_columns import loaded, obeyed, turns, written

from loradock.config.sections.data import Reading, SourceConfig
from loradock.data import formats
from loradock.data.columns import Columns, Contents
from loradock.data.formats import Completion, Conversation, RowError
from loradock.data.formats.base import Format, Message
from loradock.data.render import Renderer
from loradock.data.sources import samples
from loradock.data.templates import Brought, resolve
from loradock.errors import Problem
from loradock.use.evaluation.items import of_data
from loradock.use.inference.requests import PLACEHOLDER, sample_of

pytestmark = pytest.mark.thin(3)

SAID, ANSWERED = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
FORMATS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [SAID, ANSWERED, SAID, ANSWERED]},
    "sharegpt": {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
    "alpaca": {"instruction": "Add.", "input": "2 and 2", "output": "4"},
    "prompt-completion": {"prompt": "2+2=", "completion": "4"},
    "prompt-completion of turns": {"prompt": [SAID], "completion": [ANSWERED]},
    "text": {"text": "Two and two are four."},
}
CARDS: dict[str, str] = {
    "no_robots": "prompt_id category",
    "tulu 3, smoltalk": "id source",
    "lmsys-chat-1m": "conversation_id model turn language openai_moderation redacted",
    "WildChat": "hashed_ip header country state timestamp toxic turn_identifier",
    "OpenAI fine-tuning": "tools functions parallel_tool_calls weight name refusal tool_calls function_call",
    "OpenAI tool turns": "tool_call_id prefix partial",
    "Hermes function calling": "tools subcategory task",
    "gpt-oss multilingual thinking": "reasoning_language developer analysis final thinking",
    "DeepSeek R1 distillations": "reasoning_content reasoning generations correctness_count uuid is_reasoning_complete",
    "OpenChat, SlimOrca": "weight condition loss_weight",
    "axolotl": "train training train_detail training_detail",
    "swift, xtuner": "loss loss_scale images videos audios objects channel margin",
    "NeMo, Megatron": "mask loss_mask dataset type",
    "torchtune": "masked eot ipython",
    "TRL": "chat_template_kwargs tools documents images",
    "LLaMA-Factory": "system history tools images videos audios",
    "dolly": "context category",
    "OpenOrca": "system_prompt id",
    "alpaca, evol": "text idx instruction_zh",
    "MathInstruct, camel": "source topic sub_topic",
    "C4, wiki, pile": "timestamp url title meta",
    "fineweb": "dump file_path language_score token_count int_score",
    "multi-turn alpaca": "conversation_history chat_history system_message inputs",
}
"""Names that data sets have beside a format's own, as their cards and loaders list them."""
VALUES: dict[str, Any] = {
    "weight": 0,
    "loss_weight": 0.5,
    "loss_scale": 0,
    "train": False,
    "training": False,
    "loss": False,
    "mask": True,
    "masked": True,
    "loss_mask": [0, 1],
    "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}],
    "history": [["Hello.", "Good day."]],
    "tools": [{"type": "function", "function": {"name": "add"}}],
    "functions": [{"name": "add"}],
    "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}],
    "function_call": {"name": "add", "arguments": {}},
}
"""What asks for something that is not done anyway."""
SEEN = {"tools", "functions", "documents", "chat_template_kwargs", "system", "system_prompt", "system_message"}
SEEN |= {"context", "inputs", "history", "conversation_history", "chat_history"}
OF_TURNS = {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "images", "videos", "audios"}
OF_ANSWERS = {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}
ABOUT_LEARNING = {"weight", "loss_weight", "train", "training", "train_detail", "training_detail", "loss", "loss_scale"}
ABOUT_LEARNING |= {"mask", "masked", "loss_mask"}


def value_of(name: str) -> Any:
    return VALUES.get(name, f"what {name} says")


def outcome(row: dict[str, Any], path: Path, **settings: Any) -> tuple[Any, list[str]]:
    """The sample or problem of a row, and the names that are told."""
    source = SourceConfig.model_validate({"path": str(written(path, row)), **settings})
    contents = Contents()
    ((_, found),) = samples(source, contents=contents)
    return found, [each.name for each in contents.unused]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("card", CARDS)
def test_each_name_of_a_row_is_used_told_or_refused(card: str, format: str, tmp_path: Path) -> None:
    before, _ = outcome(FORMATS[format], tmp_path / "rows.jsonl")
    for name in set(CARDS[card].split()) - {*FORMATS[format]}:
        in_a_row(name, FORMATS[format], before, tmp_path / "rows.jsonl")


def in_a_row(name: str, plain: dict[str, Any], before: Any, path: Path) -> None:
    row = {**plain, name: value_of(name)}
    found, told = outcome(row, path)
    is_used = not isinstance(found, Problem) and found != before
    assert is_used or isinstance(found, Problem) or told == [name]
    if name in ABOUT_LEARNING or (name in SEEN and not is_used):
        assert name in ("inputs", "context") or isinstance(found, Problem), found
    if isinstance(found, Problem):
        assert repr(name) in found.what
        left_out, told = outcome(row, path, ignore=[name])
        assert (left_out, told) == (before, [])
        assert f"ignore=[{name}]" in str(found.hint)


@pytest.mark.parametrize("format", ["messages", "sharegpt", "prompt-completion of turns"])
@pytest.mark.parametrize("turn", [0, -1])
@pytest.mark.parametrize("card", CARDS)
def test_each_name_of_a_turn_is_obeyed_told_or_refused(card: str, turn: int, format: str, tmp_path: Path) -> None:
    for name in CARDS[card].split():
        in_a_turn(name, turn, format, tmp_path)


def in_a_turn(name: str, turn: int, format: str, tmp_path: Path) -> None:
    row = json.loads(json.dumps(FORMATS[format]))
    column = [*row][turn]
    row[column][turn][name] = value_of(name)
    before, _ = outcome(FORMATS[format], tmp_path / "plain.jsonl")
    found, told = outcome(row, tmp_path / "rows.jsonl")
    is_answer = turn == -1
    if name in OF_ANSWERS and is_answer:
        assert found.messages[-1].is_structured
        assert told == []
    elif name in (SEEN & {"tools", "functions", "documents", "chat_template_kwargs"}) | OF_TURNS:
        assert isinstance(found, Problem)
        assert f"has {name!r}, which would be lost" in found.what
    elif name in ABOUT_LEARNING and is_answer:
        is_whole = isinstance(value_of(name), (bool, int))
        if isinstance(found, Problem):
            assert "says of every assistant turn" in found.what if is_whole else f"{name!r} = " in found.what
        else:
            assert is_whole
            assert len(found.messages) < len(before.messages)
    elif name in ABOUT_LEARNING and isinstance(value_of(name), (bool, int)):
        assert found == before
    else:
        assert (found, told) == (before, [f"{column}[].{name}"])


@pytest.mark.parametrize("card", CARDS)
def test_each_name_of_a_part_is_told_or_refused(card: str, tmp_path: Path) -> None:
    for name in set(CARDS[card].split()) - {"type", "text"}:
        in_a_part(name, tmp_path)


def in_a_part(name: str, tmp_path: Path) -> None:
    part = {"type": "text", "text": "4", name: value_of(name)}
    row = {"messages": [SAID, {"role": "assistant", "content": [part]}]}
    found, told = outcome(row, tmp_path / "rows.jsonl")
    if isinstance(found, Problem):
        assert f"messages[1].content[0] has {name!r}" in found.what
        assert name in SEEN | OF_TURNS | ABOUT_LEARNING
    else:
        assert told == [f"messages[].content[].{name}"]
        assert name not in ABOUT_LEARNING


def test_a_system_text_beside_prompt_and_completion_is_kept_by_the_hint(tmp_path: Path) -> None:
    row = {"system": "Be terse.", "prompt": "2+2?", "completion": "4"}
    path = written(tmp_path / "rows.jsonl", row)
    (problem,) = loaded(path)
    assert problem.what == "column 'system' is filled and would be lost"
    (sample,) = loaded(path, **obeyed(problem.hint.partition(", or")[0]))
    assert turns(sample) == [("system", "Be terse."), ("user", "2+2?"), ("assistant", "4")]


def test_several_columns_that_would_be_lost_are_mapped_by_one_hint(tmp_path: Path) -> None:
    row = {"instruction": "Add.", "output": "4", "context": "2 and 2", "system_prompt": "Be terse."}
    path = written(tmp_path / "rows.jsonl", row)
    (problem,) = loaded(path)
    assert problem.what == "columns 'context', 'system_prompt' would be lost"
    (sample,) = loaded(path, **obeyed(problem.hint.partition(", or")[0]))
    assert turns(sample) == [("system", "Be terse."), ("user", "Add.\n\n2 and 2"), ("assistant", "4")]


def test_a_column_whose_text_stands_in_the_row_is_not_lost(tmp_path: Path) -> None:
    row = {"text": "### System: Be terse.\n### User: 2+2?", "system": "Be terse.", "context": "2+2?"}
    assert outcome(row, tmp_path / "rows.jsonl") == (Completion("", row["text"]), ["system", "context"])


def test_a_column_that_is_mapped_is_not_read_again_under_its_own_name(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", {"input": "2+2?", "output": "4"})
    (problem,) = loaded(path)
    (sample,) = loaded(path, **obeyed(problem.hint))
    assert turns(sample) == [("user", "2+2?"), ("assistant", "4")] or sample == Completion("2+2?", "4")
    (sample,) = loaded(path, fields={"instruction": "input"})
    assert turns(sample) == [("user", "2+2?"), ("assistant", "4")]


@pytest.mark.parametrize("empty", ["[]", "{}", "null", "", [], None])
def test_tools_that_are_empty_also_as_text_are_none(empty: Any, tmp_path: Path) -> None:
    row = {**FORMATS["messages"], "tools": empty}
    assert isinstance(outcome(row, tmp_path / "rows.jsonl")[0], Conversation)
    row = {"messages": [SAID, {**ANSWERED, "tool_calls": empty}]}
    assert isinstance(outcome(row, tmp_path / "rows.jsonl")[0], Conversation)


@pytest.mark.parametrize("image", ["<image>\nWhat is this?", "What is this?"])
def test_an_image_is_refused_where_the_text_has_a_place_for_it(image: str, tmp_path: Path) -> None:
    row = {"image": "a.jpg", "conversations": [{"from": "human", "value": image}, {"from": "gpt", "value": "A dog."}]}
    found, told = outcome(row, tmp_path / "rows.jsonl")
    assert isinstance(found, Problem) == ("<image>" in image)
    assert told == ([] if "<image>" in image else ["image"])


@pytest.mark.parametrize(
    ("name", "value", "is_learned"),
    [
        ("weight", 0, False),
        ("weight", 1.0, True),
        ("weight", "0", False),
        ("train", False, False),
        ("training", "true", True),
        ("loss_mask", 0, False),
        ("masked", True, False),
        ("masked", False, True),
    ],
)
def test_what_a_turn_says_of_its_learning_is_what_is_learned(
    name: str, value: Any, is_learned: bool, tmp_path: Path
) -> None:
    first, second = {"role": "assistant", "content": "four", name: value}, {"role": "assistant", "content": "six"}
    row = {"messages": [SAID, first, {"role": "user", "content": "3+3?"}, second]}
    (sample,) = loaded(written(tmp_path / "rows.jsonl", row))
    render = Renderer(
        resolve("chatml", own=Brought()), special_tokens={"eos_token": "</s>"}, end_tokens=(), loss="auto"
    )
    rendering = render(sample)
    learned = "".join(rendering.text[start:end] for start, end in rendering.spans)
    assert ("four" in learned) == is_learned
    assert "six" in learned
    second[name] = value
    (sample,) = loaded(written(tmp_path / "rows.jsonl", {"messages": row["messages"][2:] + row["messages"][2:]}))
    assert isinstance(sample, Conversation if is_learned else Problem)


def test_a_turn_that_is_learned_in_part_is_refused(tmp_path: Path) -> None:
    row = {"messages": [SAID, {**ANSWERED, "weight": 0.5}]}
    (problem,) = loaded(written(tmp_path / "rows.jsonl", row))
    assert "messages[1] has 'weight' = 0.5: a turn is learned whole (1, true) or not at all (0, false)" in problem.what


READING = Reading(fields={"instruction": "question", "input": "context", "output": "reply"}, ignore=("id",))
FOREIGN = {"id": 1, "question": "When?", "context": "It began in 1999.", "reply": "1999"}


@pytest.mark.parametrize("row", [FOREIGN, {key: value for key, value in FOREIGN.items() if key != "reply"}])
def test_rows_to_answer_are_read_as_the_run_read_its_own(row: dict[str, Any]) -> None:
    sample = sample_of(row, is_chat=True, readings=(READING,))
    assert turns(sample)[0] == ("user", "When?\n\nIt began in 1999.")  # type: ignore[arg-type]
    with pytest.raises(RowError, match="there is nothing to answer"):
        sample_of(row, is_chat=True)
    plain = sample_of({"instruction": "When?", "input": "1999."}, is_chat=True, readings=(READING,))
    assert turns(plain)[0] == ("user", "When?\n\n1999.")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        (FOREIGN, "question"),
        ({"id": 1, "what to do": "Go."}, "what to do"),
        ({"input_text": "Go.", "target_text": "I went."}, None),
        ({"id": 1}, None),
    ],
)
def test_a_column_that_seems_to_ask_is_called_so_in_the_file(row: dict[str, Any], column: str | None) -> None:
    for is_chat, field in ((True, "instruction"), (False, "prompt")):
        with pytest.raises(RowError, match="there is nothing to answer") as error:
            sample_of(row, is_chat=is_chat)
        change = error.value.change
        assert (change and change.column) == column
        if change:
            assert change.jq == f".{field} = .COLUMN | del(.COLUMN)"
            sample_of({field: row[change.column]}, is_chat=is_chat)


@pytest.mark.parametrize(
    "format",
    [each for each in formats.FORMATS if each.kind == "rows" and each.name != "xlam"],
    ids=lambda each: each.name,
)
def test_a_row_of_each_format_is_answered_without_its_answer(format: Format) -> None:
    row = json.loads(format.example)
    whole = format.convert(row)
    if format.answer:
        del row[format.answer]
    elif format.turns:
        row[format.turns] = row[format.turns][:-1]
    else:
        row["text"] = "Hello."
    sample = sample_of(row, is_chat=format.name == "text")
    assert sample.texts[-1] == PLACEHOLDER
    assert format.name == "text" or sample.texts[:-1] == whole.texts[:-1]


def test_rows_to_answer_lose_no_column_that_the_model_should_see() -> None:
    for row in ({"system": "Be terse.", "prompt": "2+2?"}, {"instruction": "Add.", "context": "2 and 2"}):
        with pytest.raises(RowError, match="is filled and would be lost"):
            sample_of(row, is_chat=True)


def test_rows_to_evaluate_on_are_read_as_the_run_read_its_own(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", FOREIGN)
    (item,) = of_data(file, needs="prompts", readings=(Reading(), READING)).items
    assert (item.question, item.answer) == ("When?\n\nIt began in 1999.", "1999")


@pytest.mark.parametrize("is_list", [True, False])
def test_what_a_format_reads_of_objects_in_its_fields_is_not_told_as_unused(is_list: bool) -> None:
    choice = {"label": "A", "says": "oxygen", "by": "Ann"}
    talk = Conversation((Message("user", "Which gas?"), Message("assistant", "oxygen")))
    told: list[list[str]] = []
    for inner_keys in (frozenset[str](), frozenset({"label", "says"})):
        chosen = Format(
            name="choices",
            fields=("choices",),
            required=("choices",),
            convert=lambda _: talk,
            example="",
            inner_keys=inner_keys,
        )
        columns = Columns(SourceConfig(path="rows.jsonl"), chosen, index=0)
        columns.note({"choices": [choice] if is_list else choice}, talk)
        told.append([each.name for each in columns.unused()])
    place = "choices[]" if is_list else "choices"
    assert told == [[f"{place}.label", f"{place}.says", f"{place}.by"], [f"{place}.by"]]


@pytest.mark.parametrize(
    ("name", "field", "unused"),
    [
        ("ranked-completions", "completions", ["completions[].by"]),
        ("ranked-answers", "answers", ["answers[].by"]),
        ("xlam", "answers", []),  # calls, whose arguments have any name
    ],
)
def test_what_ranked_answers_hold_besides_is_told_and_what_is_read_is_not(
    name: str, field: str, unused: list[str]
) -> None:
    chosen = formats.named(name)
    row = json.loads(chosen.example)
    if isinstance(row[field], str):
        row[field] = json.loads(row[field])
    row[field] = [{**each, "by": "Ann"} for each in row[field]]
    columns = Columns(SourceConfig(path="rows.jsonl"), chosen, index=0)
    columns.note(row, formats.convert_row(chosen, {}, row))
    assert [each.name for each in columns.unused()] == unused
