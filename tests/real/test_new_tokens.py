"""`tokenizer.add_tokens` with the tokenizers that people train: one id each, and the files that are written say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real.conftest import Real
from transformers import AutoTokenizer

from loradock.data.render import Rendering
from loradock.data.tokenise import Encoder, TokenizerSpec
from loradock.model import new_tokens
from loradock.model.tokenizer_copy import copy_tokenizer, put_tokens

TOKENS = ("<|go|>", "<to it>", "[Über日]", "🙂ok", "ﬁn")
"""The last is what Unicode's compatibility forms would write otherwise."""
TEXTS = (
    *TOKENS,
    *(f"x{token}y" for token in TOKENS),
    *(f" {token} {token}\n" for token in TOKENS),
    "".join(TOKENS),
    "A row <|go|>, its 2nd\n  line [Über日].",
)


@pytest.mark.thin(6)
@pytest.mark.parametrize("name", ["qwen3", "llama3.1", "gemma3", "mistral-v3"])
def test_each_is_one_id_in_rows_and_in_the_files_that_are_written(name: str, real: Real, tmp_path: Path) -> None:
    folder = real(name)
    plain: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert all(len(plain(token, add_special_tokens=False)["input_ids"]) > 1 for token in TOKENS)
    ids = new_tokens.add(tokenizer, TOKENS)
    assert list(ids.values()) == [max(plain.get_vocab().values()) + 1 + place for place in range(len(TOKENS))]
    copy_tokenizer(folder, tmp_path, tokenizer=plain)
    put_tokens(tmp_path, ids)
    written: Any = AutoTokenizer.from_pretrained(tmp_path)
    encode = Encoder(TokenizerSpec.of(tokenizer))
    for text in TEXTS:
        read = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert [number for number in read if number in ids.values()] == expected(text, ids)
        assert written(text, add_special_tokens=False)["input_ids"] == read
        assert encode(Rendering(text, (), add_special_tokens=False))[0] == read
    sentence = "The quick brown fox, naïve café 12345"
    assert written(sentence)["input_ids"] == plain(sentence)["input_ids"]
    shown = written.decode(list(ids.values()), skip_special_tokens=True)
    assert shown.replace(" ", "") == "".join(TOKENS).replace(" ", "")


def expected(text: str, ids: dict[str, int]) -> list[int]:
    """The ids of the tokens in a text, in their order."""
    places = sorted((place, number) for token, number in ids.items() for place in starts(text, token))
    return [number for _, number in places]


def starts(text: str, token: str) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(token, place)]
