"""Answers that are each labelled as desirable or not (KTO), as TRL, ms-swift and LLaMA-Factory have them.

A row is one to answer from, in any of its forms, with a label beside it; the last answer is what is labelled.
"""

from __future__ import annotations

from dataclasses import replace

from loradock.data.formats import alpaca, messages, prompt_completion, sharegpt
from loradock.data.formats.base import Completion, Conversation, Format, Judgement
from loradock.data.formats.fields import Misfit, Row, RowError, listed, type_of, value_of

ANSWERED = (messages.FORMAT, sharegpt.FORMAT, alpaca.FORMAT, prompt_completion.FORMAT)
LABELS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


def _form(row: Row) -> Format | None:
    """What the row is beside its label."""
    return next((form for form in ANSWERED if form.detect(frozenset(row))), None)


def _judged(row: Row, column: str) -> Judgement:
    label = value_of(row, column)
    is_desirable = LABELS.get(str(label).strip().lower())
    if is_desirable is None:
        shown = repr(label) if isinstance(label, str | int | float) else type_of(label)
        raise RowError(f"{column} is {shown}: an answer is labelled with true or false")
    rest = {name: value for name, value in row.items() if name != column}
    form = _form(rest)
    if form is None:
        forms = "; ".join(", ".join(form.required) for form in ANSWERED)
        raise Misfit(f"the columns beside {column} are {listed(rest) or 'none'}: an answer stands in one of {forms}")
    answer = form.convert(rest)
    assert isinstance(answer, Conversation | Completion)
    if isinstance(answer, Conversation):
        answer = replace(answer, given=answer.given or len(answer.messages) - 1)
    return Judgement(answer, is_desirable)


def _with_label(name: str, column: str) -> Format:
    """Rows whose label stands in a column of this name."""

    def fits(row: Row) -> bool:
        """A label is recognised by true and false; 0 and 1 may be classes."""
        rest = {name: value for name, value in row.items() if name != column}
        return str(row[column]).strip().lower() in ("true", "false") and _form(rest) is not None

    fields = dict.fromkeys(field for form in ANSWERED for field in form.fields)
    return Format(
        name=name,
        fields=(column, *fields),
        required=(column,),
        kind="judgements",
        convert=lambda row: _judged(row, column),
        example=f'{{"prompt": "Two and two?", "completion": "Four.", "{column}": true}}',
        fits=fits,
        as_turns=prompt_completion.FORMAT.as_turns,
    )


FORMAT = _with_label("judgement", "label")
LLAMA_FACTORY = _with_label("kto-tag", "kto_tag")
