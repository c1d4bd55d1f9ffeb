"""The made-up rows of each form are what their names say: ten of each by `data show`, learned where they should be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.forms.__main__ import words_of
from bench.forms.rows import CITIES, COUNT, FORMS, Form, question
from loradock.cli import cli


@pytest.mark.thin(6)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_ten_rows_of_each_form_are_shown_with_what_is_learned(form: Form, tmp_path: Path, llama: Path) -> None:
    words = [*words_of(form, form.write(tmp_path)), "--set", f"data.cache={tmp_path / 'cache'}"]
    done = CliRunner().invoke(cli, ["data", "show", "--model", str(llama), *words, "--sample", str(COUNT)])
    assert done.exit_code == 0, done.output
    rows = [text for text in re.split(r"^row \d+, ", done.stdout, flags=re.MULTILINE)[1:] if "learned" in text]
    assert len(rows) == COUNT * (2 if form.name == "preference" else 1)
    learned = ["".join(re.findall(r"⟦(.*?)⟧", row, flags=re.DOTALL)) for row in rows]
    for city in CITIES:
        expected = form.learned.format(city=city)
        assert sum(expected in text for text in learned) == 1, (expected, learned)
    assert not [text for text in learned if question("")[:12] in text]
