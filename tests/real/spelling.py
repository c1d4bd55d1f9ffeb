"""Which characters each token of a text covers, counted from the bytes that the tokens spell: no tokenizer's offsets.

It holds for byte-level vocabularies (GPT-2's alphabet) and for SentencePiece's (▁ is a space, <0xNN> a byte).
"""

from __future__ import annotations

import re

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

Spans = list[tuple[int, int]]
BYTES = {character: bytes([value]) for value, character in bytes_to_unicode().items()}


def spelled(token: str, *, is_byte_level: bool) -> bytes:
    """The bytes that a token of the vocabulary stands for."""
    if is_byte_level:
        return b"".join(BYTES.get(character, character.encode()) for character in token)
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def covered(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], Spans]:
    """Token ids of a text, and the characters [first, last) that each covers.

    A space that the tokenizer itself puts in front is not a character of the text; a token of nothing else counts as
    covering the next one.
    """
    encoded = tokenizer(text, add_special_tokens=False)
    added = tokenizer.get_added_vocab()
    whole = text.encode()
    character_of_byte = [index for index, character in enumerate(text) for _ in character.encode()]
    is_byte_level = "ByteLevel" in str(tokenizer.backend_tokenizer.decoder)
    spans: Spans = []
    position = 0
    for token in encoded.tokens():
        content = spelled(token, is_byte_level=is_byte_level)
        readings = ([token.encode()] if token in added else []) + [content, content.removeprefix(b" ")]
        content = next((each for each in readings if whole.startswith(each, position)), None)
        assert content is not None, (token, whole[position : position + 20])
        last = position + max(len(content), 1) - 1
        spans.append((character_of_byte[position], character_of_byte[last] + 1))
        position += len(content)
    assert position == len(whole)
    return encoded["input_ids"], spans


def learned_tokens(tokenizer: PreTrainedTokenizerFast, text: str, learned: list[bool]) -> tuple[list[int], list[int]]:
    """Ids and label mask of a text: a token is learned where it covers a learned character, the first never is."""
    ids, spans = covered(tokenizer, text)
    return ids, [int(index > 0 and any(learned[first:last])) for index, (first, last) in enumerate(spans)]
