"""Preference data that no format takes as they are, or that supervised training is given: what to do with them."""

from __future__ import annotations

from collections.abc import Sequence

from loradock.config.sections.data import SourceConfig
from loradock.data.formats.fields import Row, RowError, RowsChange, is_list, is_object
from loradock.data.formats.guess import setting
from loradock.data.remedies import command_on

CHOSEN, REJECTED = "chosen", "rejected"
PAIRS = (
    ("accepted", "rejected"),
    ("winner", "loser"),
    ("response_j", "response_k"),
    ("response_0", "response_1"),
)
"""Other columns of two answers of which one is preferred; the first is the better one, but for response_0."""

VERDICTS = ("label", "kto_tag", "thumbs_up")
"""Columns that say of one answer whether it was liked (KTO)."""

JUDGING = "--set objective=preference --set preference.loss=kto"
ANSWERS = frozenset(("completion", "output", "messages", "conversations"))


class Preference(RowError):
    """Rows of preference data; `hint` makes supervised ones of them."""


def refuse_pairs(row: Row, source: SourceConfig, *, index: int) -> None:
    """Preference where the columns are those of pairs of answers by other names, and no field takes them."""
    for better, worse in PAIRS:
        is_judged = better == "response_0" and "better_response_id" in row
        if better in row and worse in row and not is_judged and {better, worse}.isdisjoint(source.fields.values()):
            what = f"preference data (columns {better} and {worse}): one answer would be learned without the other"
            if better == "response_0":
                raise Preference(what, hint="write the better answer of each row into chosen, the other into rejected")
            names = ((CHOSEN, better), (REJECTED, worse))
            fields = " ".join(setting(index, field, column) for field, column in names if field != column)
            alone = only_the_better(row, better, worse, source, index=index)
            hint = f"--set objective=preference {fields}, or {alone}"
            raise Preference(what, hint=hint, change=_one_turn(row, better, worse))


def instead(row: Row, source: SourceConfig, *, index: int, files: Sequence[str]) -> str:
    """What to type where preference data are to be learned without preferences: the better answers alone."""
    better, worse = (source.fields.get(name, name) for name in (CHOSEN, REJECTED))
    if "rejected_response" not in row and not {better, worse} <= {*row}:
        return f"leave the file out (data.sources.{index}: {source.path})"
    if better not in row or worse not in row:
        return f"to learn the chosen answers alone: --set 'data.sources.{index}.ignore=[rejected_response]'"
    alone = only_the_better(row, better, worse, source, index=index)
    change = _one_turn(row, better, worse)
    return f"{alone}: {command_on(files[0], change, more=files[1:])}" if change else alone


def refuse_verdict(row: Row, *, index: int, first: Row, place: str) -> None:
    """Preference where this row's answer was disliked: `label: false` beside an answer.

    `first` is the row at `place` whose columns said what the rows are: where it has no label, the labels of the others
    are read only if their format is asked for.
    """
    for column in VERDICTS:
        if is_false(row.get(column)) and not ANSWERS.isdisjoint(row):
            field = next((f" {setting(index, name, column)}" for name in VERDICTS[:1] if name != column), "")
            what = f"preference data ({column} is false)"
            if not is_verdict(first.get(column)):
                has = f"has no {column}" if first.get(column) is None else f"has {first[column]!r} as {column}"
                what = f"{what}, but {place}, which says what the rows are, {has}"
                field += f" --set data.sources.{index}.format=judgement"
            raise Preference(
                f"{what}: an answer that was disliked would be learned as a good one",
                hint=f"{JUDGING}{field}, or keep the liked ones",
                change=_liked(column),
            )


def liked_alone(row: Row, source: SourceConfig, *, index: int, files: Sequence[str]) -> str:
    """What to type where labelled answers are to be learned without their labels: the desirable ones, or all."""
    column = source.fields.get("label") or next((name for name in VERDICTS if name in row), VERDICTS[0])
    everything = f"--set 'data.sources.{index}.ignore=[{column}]' learns all answers"
    return f"{everything}, or keep the desirable ones: {command_on(files[0], _liked(column), more=files[1:])}"


def _liked(column: str) -> RowsChange:
    """The rows whose label is not false, without it."""
    return RowsChange(
        column=column,
        jq='select((.COLUMN | tostring | ascii_downcase) != "false") | del(.COLUMN)',
        method="filter(lambda r: str(r[COLUMN]).lower() != 'false').remove_columns([COLUMN])",
    )


def _one_turn(row: Row, better: str, worse: str) -> RowsChange | None:
    """The command that puts the better turns of each row behind what comes before them, where no setting does."""
    if is_behind_text(row, better):
        asked = "[{'role': 'user', 'content': r['prompt']}]"
        return RowsChange(
            column=better,
            jq=f'{{messages: ([{{role: "user", content: .prompt}}] + .COLUMN)}} + del(.COLUMN, .{worse}, .prompt)',
            method=f"map(lambda r: {{'messages': {asked} + r[COLUMN]}}, remove_columns=[COLUMN, {worse!r}, 'prompt'])",
        )
    if not (is_object(row[better]) and is_list(row.get("conversations"))):
        return None
    added = "{'conversations': r['conversations'] + [r[COLUMN]]}"
    return RowsChange(
        column=better,
        jq=f".conversations += [.COLUMN] | del(.COLUMN, .{worse})",
        method=f"map(lambda r: {added}, remove_columns=[COLUMN, {worse!r}])",
    )


def is_behind_text(row: Row, better: str) -> bool:
    """Whether the better answer is turns of an assistant alone, and the prompt before them a text."""
    turns = row[better] if is_list(row[better]) else []
    roles = {turn.get("role", turn.get("from")) for turn in turns if is_object(turn)}
    return isinstance(row.get("prompt"), str) and bool(roles) and roles.isdisjoint(("user", "human", "system"))


def is_false(value: object) -> bool:
    """True for false as JSON and Parquet hold it, and as text of a CSV file."""
    return value is False or (isinstance(value, str) and value.strip().lower() == "false")


def is_verdict(value: object) -> bool:
    """True for true and false, as `is_false` takes them."""
    return str(value).strip().lower() in ("true", "false")


def only_the_better(row: Row, better: str, worse: str, source: SourceConfig, *, index: int) -> str:
    """The options that train on the better answers, and leave the worse ones out."""
    if is_behind_text(row, better) or (is_object(row[better]) and is_list(row.get("conversations"))):
        return f"to learn the {better} turns alone"
    prompt = next((name for name in ("instruction", "prompt", "question", "query") if name in row), None)
    turns = row[better] if is_list(row[better]) else []
    roles = [turn.get("role", turn.get("from")) for turn in turns if is_object(turn)]
    if any(role in ("user", "human") for role in roles):
        fields, left = {"messages": better}, [worse, *([prompt] if prompt else [])]
    elif prompt == "instruction":
        fields, left = {"output": better}, [worse]
    elif prompt in ("question", "query"):
        fields, left = {"instruction": prompt, "output": better}, [worse]
    elif prompt:
        fields, left = {"prompt": prompt, "completion": better}, [worse]
    else:
        fields, left = {"text": better}, [worse]
    known = {name: column for name, column in source.fields.items() if name not in (CHOSEN, REJECTED)} | fields
    sets = " ".join(setting(index, name, column) for name, column in known.items() if name != column)
    return f"to learn the {better} answers alone: {sets} --set 'data.sources.{index}.ignore=[{', '.join(left)}]'"
