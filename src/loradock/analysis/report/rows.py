"""Rows as the model sees them, for a terminal (in colours and without) and as a page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.text import Text

from loradock.data.show import Piece, ShownRow

LEARNED, CONTROL, BEYOND = ("\u27e6", "\u27e7"), ("\u2039", "\u203a"), ("\u2e28", "\u2e29")
"""Around learned text, around control tokens, and around what lies beyond the longest length."""
COLOURS = {"learned": "green", "control": "cyan", "beyond": "red"}
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
body{color:#222;background:#fff}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #ccc;border-radius:4px;padding:1em}
.learned{background:#d3f0d8;color:#0b4a1c}.control{color:#7a3e00;font-weight:bold}
.beyond{text-decoration:line-through;color:#a00}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}.learned{background:#143d20;color:#b8efc5}
.control{color:#f0b070}.beyond{color:#ff8080}}"""


def legend(max_length: int, *, long_rows: str | None) -> str:
    """What the marks mean. `long_rows` None: rows are documents to embed, already cut."""
    if long_rows is None:
        return f"{LEARNED[0]}pooled{LEARNED[1]} (green), {CONTROL[0]}control tokens{CONTROL[1]} (cyan)"
    beyond = {"split": "in windows of their own", "truncate": "cut", "drop": "the row is left out"}[long_rows]
    return (
        f"{LEARNED[0]}learned{LEARNED[1]} (green), {CONTROL[0]}control tokens{CONTROL[1]} (cyan), "
        f"{BEYOND[0]}beyond data.max_length {max_length:,}{BEYOND[1]} (red; {beyond}: data.long_rows={long_rows})"
    )


def heading(row: ShownRow, *, long_rows: str | None) -> str:
    """Where a row came from, its counts, and what becomes of it."""
    counts = f"{row.tokens:,} tokens, {row.learned:,} {'learned' if long_rows else 'pooled'}"
    name = f"row {row.number:,}{f', {row.role}' if row.role else ''}, {row.place}"
    counts += f", margin {row.margin:g}" if row.margin else ""
    if not row.beyond:
        return f"{name}: {counts}"
    lost = f"; {row.beyond:,} beyond the length, {row.learned_beyond:,} of them learned"
    left_out = long_rows == "drop" or (long_rows == "truncate" and row.fate == "nothing left to learn")
    fate = "split into windows" if long_rows == "split" else "left out" if left_out else "cut"
    return f"{name}: {counts}{lost}; {fate}"


def parts(rows: Sequence[ShownRow], *, max_length: int, long_rows: str | None) -> Iterator[Text]:
    """All of it for a console; the marks stand there in colours too."""
    yield Text(legend(max_length, long_rows=long_rows))
    for row in rows:
        yield Text(f"\n{heading(row, long_rows=long_rows)}", style="bold")
        yield body(row)


def body(row: ShownRow) -> Text:
    """The text of a row with its marks; a mark is set where learned or cut text begins and where it ends."""
    line_text = Text()
    for piece, preceding, following in _neighbours(row.pieces):
        opening, closing = _marks(piece, preceding), _marks(piece, following)
        line_text.append("".join(mark[0] for mark in opening))
        text = f"{CONTROL[0]}{piece.text}{CONTROL[1]}" if piece.is_control else piece.text
        line_text.append(_visible(text), style=_style(piece))
        line_text.append("".join(mark[1] for mark in reversed(closing)))
    return line_text


def page(rows: Sequence[ShownRow], *, max_length: int, long_rows: str | None, title: str) -> str:
    """The same as an HTML document."""
    sections = "\n".join(
        f"<h2>{escape(heading(row, long_rows=long_rows))}</h2>\n<pre>{_html(row)}</pre>" for row in rows
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f"<p>{escape(legend(max_length, long_rows=long_rows))}</p>\n{sections}\n</body></html>\n"
    )


def _html(row: ShownRow) -> str:
    return "".join(
        f'<span class="{" ".join(_classes(piece)) or "context"}">{escape(_visible(piece.text))}</span>'
        for piece in row.pieces
    )


def _classes(piece: Piece) -> list[str]:
    flags = {"learned": piece.is_learned, "control": piece.is_control, "beyond": piece.is_beyond}
    return [name for name, is_set in flags.items() if is_set]


def _style(piece: Piece) -> str:
    classes = _classes(piece)
    return COLOURS[classes[-1]] + (" reverse" if piece.is_control and piece.is_learned else "") if classes else ""


def _neighbours(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Piece | None, Piece | None]]:
    yield from zip(pieces, [None, *pieces], [*pieces[1:], None], strict=False)


def _marks(piece: Piece, neighbour: Piece | None) -> list[tuple[str, str]]:
    """The marks of `piece` that the piece beside it does not share."""
    is_beyond = piece.is_beyond and not (neighbour and neighbour.is_beyond)
    is_learned = piece.is_learned and not (neighbour and neighbour.is_learned)
    return [*([BEYOND] if is_beyond else []), *([LEARNED] if is_learned else [])]


def _visible(text: str) -> str:
    """Text without what would move a terminal's cursor or colour it."""
    return "".join(char if char in "\n\t" or char.isprintable() else f"\\x{ord(char):02x}" for char in text)
