"""`loradock chat`: turns typed in, answers on stdout, ids as training would have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny import make_llama, without_template

from loradock.cli import cli
from loradock.data.formats import alpaca
from loradock.data.formats.base import Conversation
from loradock.errors import ModelError, UsageError
from loradock.use.inference.chat import Chat, Pieces
from loradock.use.inference.opener import Opened
from loradock.use.inference.sampling import GREEDY

pytestmark = pytest.mark.thin(2)


def test_two_turns_have_the_ids_of_the_training_row(opened: Opened) -> None:
    chat = Chat(opened, max_new_tokens=6, sampling=GREEDY)
    chat.say("lamp stone", show=lambda _: None)
    chat.say("and a horse", show=lambda _: None)
    assert [message.role for message in chat.messages] == ["user", "assistant"] * 2
    ids, ranges = opened.prompts.row(Conversation(tuple(chat.messages)))
    assert chat.ids == ids[: ranges[-1][0]]


def test_pieces_join_to_the_answer_and_none_ends_within_a_character(opened: Opened) -> None:
    tokenizer = opened.tokenizer
    text = "a lamp, 日本 🙂 é"
    shown: list[str] = []
    pieces = Pieces(tokenizer, shown.append, stops=frozenset([1]))
    for token in [*tokenizer(text, add_special_tokens=False)["input_ids"], 1]:
        pieces(token)
    pieces.end()
    assert "".join(shown) == text
    assert not any("\ufffd" in piece for piece in shown)


def test_reset_forgets_turns_and_keeps_the_system_turn(opened: Opened) -> None:
    chat = Chat(opened, system="Be short.", max_new_tokens=4, sampling=GREEDY)
    chat.say("lamp", show=lambda _: None)
    chat.reset()
    assert [message.content for message in chat.messages] == ["Be short."]
    chat.reset("Be long.")
    assert [message.content for message in chat.messages] == ["Be long."]


def test_turns_that_fill_the_context_are_refused_and_left_out(opened: Opened) -> None:
    chat = Chat(opened, max_new_tokens=4, sampling=GREEDY)
    with pytest.raises(UsageError, match="the model knows 512"):
        chat.say("lamp " * 600, show=lambda _: None)
    assert chat.messages == []


def test_a_model_without_a_template_is_told_which_one_or_refused(trained: Path, tmp_path: Path) -> None:
    plain = without_template(make_llama(tmp_path / "plain"))
    words = ["--max-new-tokens", "4", "--template", "alpaca"]
    refused = CliRunner().invoke(cli, ["chat", str(plain), *words[:2]], input="lamp\n")
    assert isinstance(refused.exception, ModelError)
    assert "plain has no chat template" in str(refused.exception)
    found = CliRunner().invoke(cli, ["chat", str(plain), *words], input="lamp\n")
    assert (found.exit_code, "rendered with the alpaca template" in found.stderr) == (0, True), found.output
    idle = CliRunner().invoke(cli, ["chat", str(trained), *words], input="lamp\n")
    assert isinstance(idle.exception, UsageError)


def test_a_line_that_ends_with_a_backslash_goes_on_so_that_a_pipe_carries_what_was_trained(
    trained: Path, opened: Opened
) -> None:
    typed = "Write the words backwards.\\\n\\\nlamp stone\n/ids\nhalf\\\n"
    found = CliRunner().invoke(cli, ["chat", str(trained), "--max-new-tokens", "2"], input=typed)
    assert found.exit_code == 0, found.output
    row = alpaca.conversation({"instruction": "Write the words backwards.", "input": "lamp stone", "output": "x"})
    ids = " ".join(map(str, opened.prompts(row.messages[:-1])))
    assert ids in found.stdout.splitlines()


def test_the_command_reads_turns_and_commands_and_ends_with_its_input(trained: Path) -> None:
    typed = "lamp stone\n/ids\n/nonsense\n/system Be short.\nhorse\n/reset\n\n/exit\nnever\n"
    found = CliRunner().invoke(cli, ["chat", str(trained), "--max-new-tokens", "4"], input=typed)
    assert found.exit_code == 0, found.output
    answer, ids, second = found.stdout.splitlines()[:3]
    assert answer
    assert second
    assert all(number.isdigit() for number in ids.split())
    assert "unknown command: /nonsense" in found.stderr
    assert "never" not in found.stderr
