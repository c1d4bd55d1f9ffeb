"""Preference rows: a chosen and a rejected answer of one prompt, as TRL, LLaMA-Factory, axolotl and swift have.

The prompt is a column beside the answers, or what both begin with (TRL's "implicit prompt").
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loradock.data.formats.base import Completion, Conversation, Format, Message, PreferencePair, Role
from loradock.data.formats.fields import (
    Row,
    RowError,
    check_filled,
    check_text,
    is_filled,
    is_list,
    is_object,
    optional_text_of,
    plainly_said,
    text_of,
    type_of,
    value_of,
)
from loradock.data.formats.tools import with_tools
from loradock.data.formats.turns import conversation, messages_of, refuse_answered, with_system

ASKING = ("conversations", "messages", "instruction", "question", "prompt")
"""Columns that hold the prompt of both answers; one of them, unless the answers hold it themselves."""
MARGIN = "margin"
LARGEST = 3.4028234663852886e38
"""Of float32, which margins are kept in."""
LAST_SPEAKER = re.compile(r"\n\nAssistant:")
"""What begins an answer in the texts of HH-RLHF (Bai et al. 2022), and belongs to the prompt."""


def pair_of(row: Row) -> PreferencePair:
    """A row whose answers stand in `chosen` and `rejected`, perhaps with a `margin`."""
    return replace(_answers_of(row), margin=margin_of(row))


def margin_of(row: Row) -> float:
    """By how much the chosen answer is better, as a column says; 0 where it says nothing."""
    value: Any = row.get(MARGIN)
    if not is_filled(value):
        return 0.0
    try:
        margin = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        margin = float("nan")
    except OverflowError:
        margin = math.inf
    if abs(margin) <= LARGEST:
        return margin
    a_number = (
        "a number, by how much the chosen answer is better"
        if math.isnan(margin)
        else f"{-LARGEST:.2g} to {LARGEST:.2g}"
    )
    raise RowError(f"{MARGIN} is {plainly_said(value)}: it is {a_number}", ignorable=MARGIN)


def _answers_of(row: Row) -> PreferencePair:
    chosen, rejected = (_answer(value_of(row, name)) for name in ("chosen", "rejected"))
    if is_list(chosen) and is_list(rejected):
        return _of_turns(messages_of(chosen, "chosen"), messages_of(rejected, "rejected"), row)
    if type(chosen) is not str or type(rejected) is not str:
        types = f"chosen is {type_of(chosen)} and rejected is {type_of(rejected)}"
        raise RowError(f"{types}: both must be text, or both turns")
    for name, text in (("chosen", chosen), ("rejected", rejected)):
        check_text(text, name)
        check_filled(text, name)
    prompt = _prompt(row)
    if isinstance(prompt, str):
        return _of_texts(prompt, chosen, rejected)
    talks = [_talk(prompt, (Message("assistant", text),), row) for text in (chosen, rejected)]
    return PreferencePair(talks[0], talks[1])


def _answer(value: Any) -> Any:
    """A turn by itself (LLaMA-Factory's) is a list of one."""
    return [value] if is_object(value) else value


def _of_turns(chosen: tuple[Message, ...], rejected: tuple[Message, ...], row: Row) -> PreferencePair:
    """Answers as turns: behind the prompt of the row, or whole conversations that begin alike."""
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if not turns:
            raise RowError(f"{name} is empty: there is nothing to prefer")
    if not any(turn.role in ("user", "system") for turn in (*chosen, *rejected)):
        prompt = _prompt(row, before=chosen[0].role)
        turns = ((Message("user", prompt),) if prompt else ()) if isinstance(prompt, str) else prompt
        return PreferencePair(_talk(turns, chosen, row), _talk(turns, rejected, row))
    alike = min(common_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    if not alike:
        raise RowError("chosen and rejected begin with different turns: they answer no common prompt")
    prompt = (*_turns_before(chosen, row), *chosen[:alike])
    return PreferencePair(_talk(prompt, chosen[alike:], row), _talk(prompt, rejected[alike:], row))


def _turns_before(chosen: tuple[Message, ...], row: Row) -> tuple[Message, ...]:
    """Turns of a prompt's column that were said before whole conversations; none where these begin with them."""
    name = next((name for name in ASKING if is_list(row.get(name)) and is_filled(row.get(name))), None)
    turns = messages_of(row[name], name) if name else ()
    if not turns or common_length(turns, chosen):
        return ()
    if name and turns[-1].role == chosen[0].role == "user":
        what = f"{name} ends with a question, and chosen begins with another: which of them is answered?"
        raise RowError(what, ignorable=name)
    return turns


def _talk(prompt: tuple[Message, ...], turns: tuple[Message, ...], row: Row) -> Conversation:
    """A prompt with one of its answers."""
    talk = with_system(conversation((*prompt, *turns), "the answer with its prompt"), row)
    if len(talk.messages) <= len(prompt):
        raise RowError("an answer says that it is not learned: leave the row out")
    is_preceded = len(talk.messages) > len(prompt) + len(turns)
    return with_tools(replace(talk, given=len(prompt) + is_preceded), row)


def _prompt(row: Row, *, before: Role = "assistant") -> str | tuple[Message, ...]:
    """What both answers answer: a text that is read as it stands, or turns. "" where the row names none.

    `before`: whose turn is the first of what follows, so that a call of a tool may stand before its result.
    """
    filled = [name for name in ASKING if is_filled(row.get(name))]
    if len(filled) > 1:
        raise RowError(f"columns {' and '.join(map(repr, filled))} both hold a prompt: keep one of them (ignore)")
    for name in filled:
        value = row[name]
        if is_list(value):
            turns = messages_of(value, name)
            refuse_answered(turns, before, name)
            return turns
        text = text_of(row, name)
        if name == "prompt":
            return text
        more = optional_text_of(row, "input") if name == "instruction" else ""
        return (Message("user", f"{text}\n\n{more}" if more else text),)
    return ""


def _of_texts(prompt: str, chosen: str, rejected: str) -> PreferencePair:
    """Answers as they stand behind the prompt; without one, behind what both begin with."""
    if not prompt:
        prompt = _common(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        for name, text in (("chosen", chosen), ("rejected", rejected)):
            check_filled(text, f"{name}, behind what both answers begin with,")
    return PreferencePair(Completion(prompt, chosen), Completion(prompt, rejected))


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (item, item_beside) in pairs if item != item_beside), min(len(first), len(second)))


def _common(chosen: str, rejected: str) -> str:
    """What both texts begin with, up to where the last answer begins, else up to the last white space."""
    alike = chosen[: common_length(chosen, rejected)]
    speakers = [match.end() for match in LAST_SPEAKER.finditer(alike)]
    if speakers:
        return alike[: speakers[-1]]
    if len(alike) == min(len(chosen), len(rejected)):
        alike = alike.rstrip()
    words = alike.split()
    return alike[: alike.rindex(words[-1])].rstrip() if words and not alike[-1].isspace() else alike.rstrip()


def _convert_swift(row: Row) -> PreferencePair:
    """ms-swift's rows: whole turns, and another answer in the place of the last one."""
    chosen = messages_of(value_of(row, "messages"), "messages")
    if len(chosen) < 2 or chosen[-1].role != "assistant":
        raise RowError("messages does not end with an assistant's answer to prefer")
    if chosen[-2].role == "assistant" and not chosen[-2].calls:
        raise RowError("messages ends with two answers, and rejected_response is beside one: leave one of them out")
    rejected = text_of(row, "rejected_response")
    check_filled(rejected, "rejected_response")
    return PreferencePair(
        _talk(chosen[:-1], chosen[-1:], row),
        _talk(chosen[:-1], (Message("assistant", rejected),), row),
        margin_of(row),
    )


FORMAT = Format(
    name="preference",
    fields=("chosen", "rejected", *reversed(ASKING), "input", "system", "tools", MARGIN),
    required=("chosen", "rejected"),
    kind="preferences",
    convert=pair_of,
    as_turns={"prompt": "question"},
    example='{"question": "Two and two?", "chosen": "Four.", "rejected": "Five."}',
)
SWIFT = Format(
    name="swift-preference",
    fields=("messages", "rejected_response", "system", "tools", MARGIN),
    required=("messages", "rejected_response"),
    kind="preferences",
    convert=_convert_swift,
    example='{"messages": [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "Four."}], '
    '"rejected_response": "Five."}',
)
