"""Calls of tools: a real run learns some, and `evaluate`, `generate` and `chat` read what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from data.tool_templates import HERMES
from tiny import make_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from loradock.cli import cli
from loradock.data.formats import convert_row, named
from loradock.data.formats.base import Conversation, ToolCall
from loradock.errors import DataError, LoradockError, UsageError
from loradock.use.evaluation.methods.calls import same
from loradock.use.inference.prompts import Prompts

pytestmark = pytest.mark.thin(1)

TOOLS = [{"name": name, "parameters": {"type": "object", "properties": {"a": {}}}} for name in ("lamp", "stone")]


def row(question: str, *calls: tuple[str, dict[str, Any]], said: str = "") -> dict[str, Any]:
    functions = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in calls]
    answer = {"role": "assistant", "content": said} | ({"tool_calls": functions} if calls else {})
    return {"tools": TOOLS, "messages": [{"role": "user", "content": question}, answer]}


ROWS = [
    row("lamp", ("lamp", {"a": 1})),
    row("stone", ("stone", {"a": "x"})),
    row("both", ("stone", {"a": "x"}), ("lamp", {"a": 1})),
    row("none", said="no"),
]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return file


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a template of tools that knows the four rows by heart."""
    folder = make_llama(tmp_path_factory.mktemp("calls") / "base")
    (folder / "chat_template.jinja").write_text(HERMES)
    write(folder.parent / "rows.jsonl", ROWS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = Prompts.of(tokenizer, None)
    samples = [convert_row(named("messages"), {}, each) for each in ROWS]
    rows = [prompts.row(sample) for sample in samples if isinstance(sample, Conversation)]
    ids = torch.zeros(len(rows), max(len(ids) for ids, _ in rows), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for index, (tokens, ((first, last),)) in enumerate(rows):
        ids[index, : len(tokens)] = torch.tensor(tokens)
        labels[index, first:last] = ids[index, first:last]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def command(*words: object, **more: Any) -> Any:
    return CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False, standalone_mode=False, **more)


def evaluated(base: Path, rows: list[dict[str, Any]], *words: str) -> dict[str, Any]:
    file = write(base.parent / "held.jsonl", rows)
    words = ("--metric", "calls", "--json", "-o", str(base.parent / "out"), *words)
    text = command("evaluate", base, "--data", file, *words).output
    return json.loads(text[text.index("{\n") :])


OTHER = [
    row("lamp", ("lamp", {"a": 2})),
    row("stone", ("lamp", {"a": "x"})),
    row("both", ("lamp", {"a": 1.0}), ("stone", {"a": "x"})),
    row("none", ("lamp", {"a": 1})),
]


@pytest.mark.thin(4)
def test_calls_are_right_by_name_and_by_values_in_any_order_and_compared_with_another_model(base: Path) -> None:
    untrained = make_llama(base.parent / "untrained")
    (untrained / "chat_template.jinja").write_text(HERMES)
    found = evaluated(base, ROWS, "--against", str(untrained))
    (task,) = found["tasks"]
    assert (task["score"]["value"], task["names"]["value"], task["stopped"]) == (1, 1, 1)
    paired = found["against"]["tasks"]["held.jsonl"]
    assert paired["difference"]["difference"] == paired["names"]["difference"] == 0.75
    assert (paired["names"]["own_only"], paired["names"]["other_only"]) == (3, 0)
    (task,) = evaluated(base, OTHER)["tasks"]
    assert (task["score"]["value"], task["names"]["value"]) == (0.25, 0.5)
    assert (task["uncalled"], task["unread"]) == (0.25, 0)


def test_a_call_that_is_cut_is_wrong_and_counted_and_the_table_says_so(base: Path) -> None:
    (task,) = evaluated(base, ROWS, "--max-new-tokens", "30")["tasks"]
    assert (task["score"]["value"], task["unread"]) == (0.25, 0.75)
    words = ("--metric", "calls", "--max-new-tokens", 30, "-o", base.parent / "out")
    text = command("evaluate", base, "--data", base.parent / "held.jsonl", *words).output
    assert all(head in text for head in ("by name", "95 % interval (name)", "no call", "unreadable"))


def test_rows_and_templates_without_calls_are_refused_with_what_to_do(base: Path) -> None:
    plain = {"messages": ROWS[3]["messages"]}
    with pytest.raises(DataError, match="neither tools nor calls: --metric exact"):
        command("evaluate", base, "--data", write(base.parent / "plain.jsonl", [plain]), "--metric", "calls")
    with pytest.raises(DataError, match="the answer is a call of a tool: --metric calls"):
        command("evaluate", base, "--data", write(base.parent / "calls.jsonl", ROWS[:1]))
    other = make_llama(base.parent / "other")
    with pytest.raises(LoradockError, match="nothing reads calls of tools") as refused:
        command("evaluate", other, "--data", base.parent / "calls.jsonl", "--metric", "calls", "-o", base.parent / "o")
    assert refused.value.hint
    (base.parent / "tools.json").write_text(json.dumps(TOOLS))
    with pytest.raises(DataError, match=r"a run of loradock train --set data\.tools=text takes them"):
        command("chat", other, "--tools", base.parent / "tools.json", input="both\n")


def test_generated_answers_have_their_calls_beside_the_text(base: Path) -> None:
    file, plain = base.parent / "answers.jsonl", {"messages": ROWS[3]["messages"][:1]}
    rows = write(base.parent / "ask.jsonl", [*ROWS, plain])
    command("generate", base, "--input", rows, "-o", file, "--max-new-tokens", 120)
    *called, untold = [json.loads(line) for line in file.read_text().splitlines()]
    functions = [[call["function"] for call in line["tool_calls"]] for line in called]
    assert functions[0] == [{"name": "lamp", "arguments": {"a": 1}}]
    assert [len(each) for each in functions] == [1, 1, 2, 0]
    assert "<tool_call>" in called[0]["answer"]
    assert "tool_calls" not in untold
    command("generate", base, "--input", rows, "-o", base.parent / "cut.jsonl", "--max-new-tokens", 30)
    first = json.loads((base.parent / "cut.jsonl").read_text().splitlines()[0])
    assert "call is not JSON" in first["tool_calls_error"]


def test_chat_shows_calls_and_takes_their_results(base: Path) -> None:
    file = base.parent / "tools.json"
    file.write_text(json.dumps(TOOLS))
    said = command("chat", base, "--tools", file, "--max-new-tokens", 120, input="both\n/result 1\n/result 2\n")
    first, second, third, last = said.stderr.split("> ")[1:]
    assert first.splitlines()[:1] == ['call: stone({"a": "x"})   (/result TEXT says what it gave)']
    assert second.startswith('call: lamp({"a": 1})')
    assert "call: stone" not in third + last
    with pytest.raises(UsageError, match="no call waits for a result"):
        command("chat", base, input="/result 1\n")
    file.write_text("[1]")
    with pytest.raises(DataError, match="defines no tools"):
        command("chat", base, "--tools", file, input="both\n")


def test_arguments_are_compared_as_values() -> None:
    one = ToolCall("f", {"a": 1, "b": [True, {"c": 2.0}]})
    assert same([one], [ToolCall("f", {"b": [True, {"c": 2}], "a": 1.0})])
    assert not same([one], [ToolCall("f", {"a": True, "b": [True, {"c": 2}]})])
    assert not same([one], [ToolCall("f", {"a": "1", "b": [True, {"c": 2}]})])
    assert not same([one], [one, one])
    assert same([], [])
