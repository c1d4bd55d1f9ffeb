"""Label masks against an oracle that knows each template's text by hand and counts characters."""

from __future__ import annotations

from pathlib import Path

import pytest
from data.oracle import FAMILIES, expected, generated
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.formats.base import Completion, Conversation
from loradock.data.prepare import prepare
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.sources import samples
from loradock.data.templates import named
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import Problem


def covered(tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids, and the characters each covers: by counting bytes where tokens spell bytes, else as the tokenizer says."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if "ByteLevel" not in str(tokenizer.backend_tokenizer.pre_tokenizer):
        return encoded["input_ids"], encoded["offset_mapping"]
    special = set(tokenizer.get_added_vocab())
    character_of_byte = [index for index, character in enumerate(text) for _ in character.encode()]
    spans, position = [], 0
    for token in encoded.tokens():
        size = len(token.encode()) if token in special else len(token)
        spans.append((character_of_byte[position], character_of_byte[position + size - 1] + 1))
        position += size
    assert position == len(character_of_byte)
    return encoded["input_ids"], spans


def oracle(tokenizer: PreTrainedTokenizerFast, *, text: str, learned: list[bool]) -> tuple[list[int], list[int]]:
    """Ids and mask of a text: a token is learned where it covers a learned character, the first never is."""
    ids, spans = covered(tokenizer, text)
    return ids, [int(index > 0 and any(learned[a : max(b, a + 1)])) for index, (a, b) in enumerate(spans)]


def preparer(tokenizer: PreTrainedTokenizerFast, *, template: str, loss: str) -> ChunkPreparer:
    return ChunkPreparer(
        Task(spec=TokenizerSpec.of(tokenizer), template=named(template), loss=loss, special_tokens="as_control")  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize("loss", ["completion", "assistant", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_masks_equal_the_oracle_over_generated_conversations(
    tokenizer: PreTrainedTokenizerFast, family: str, loss: str
) -> None:
    prepare_rows = preparer(tokenizer, template=family, loss=loss)
    for messages in generated(seed=len(family), rows=40):
        text, learned = expected(list(FAMILIES[family](messages)), loss=loss)
        chat = [{"role": message.role, "content": message.content} for message in messages]
        assert text == tokenizer.apply_chat_template(chat, chat_template=named(family).text, tokenize=False)
        chunk, refused = prepare_rows([(1, Conversation(tuple(messages)))])
        assert not refused
        rows = chunk.ids.tolist(), chunk.supervised.tolist()
        assert rows == oracle(tokenizer, text=text, learned=learned), messages


TOKENIZER_OF = {"alpaca": "byte-level", "chatml": "sentencepiece", "mistral": "across-newlines"}


@pytest.mark.parametrize("family", TOKENIZER_OF)
def test_masks_equal_the_oracle_on_every_row_of_the_real_files(
    tokenizers: dict[str, PreTrainedTokenizerFast], family: str, shared_data: Path, tmp_path: Path
) -> None:
    tokenizer = tokenizers[TOKENIZER_OF[family]]
    for file in sorted(shared_data.glob("*.json")):
        source = SourceConfig(path=str(file))
        prepared = prepare(DataConfig(sources=(source,), template=family), tokenizer=tokenizer, cache_dir=tmp_path)
        loaded = list(samples(source))
        assert prepared.rows == len(loaded) > 0
        for index, (line, sample) in enumerate(loaded):
            assert isinstance(sample, Conversation)
            text, learned = expected(list(FAMILIES[family](list(sample.messages))), loss="completion")
            ids, mask = prepared.row(index)
            assert (ids.tolist(), mask.tolist()) == oracle(tokenizer, text=text, learned=learned)
            assert prepared.place(index) == f"{file}:{line}"


def test_raw_text_gets_one_bos_and_one_learned_eos_as_the_tokenizer_adds_them(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    for name, tokenizer in tokenizers.items():
        prepare_rows = preparer(tokenizer, template="alpaca", loss="completion")
        for prompt, completion in (("Q: 日本?\nA:", " yes"), ("", "plain  text\n"), ("<s>x ", "y</s>"), ("a", "é")):
            chunk, _ = prepare_rows([(1, Completion(prompt, completion))])
            text = prompt + completion.removesuffix("</s>") + "</s>"
            bos = [] if text.startswith("<s>") or name != "sentencepiece" else [tokenizer.bos_token_id]
            learned = [index >= len(prompt) for index in range(len(text))]
            ids, inner = oracle(tokenizer, text=text, learned=learned)
            mask = [0] * len(bos) + inner
            if bos and learned[0]:
                mask[1] = 1
            assert chunk.ids.tolist() == bos + ids
            assert chunk.supervised.tolist() == mask
            assert chunk.ids[-1] == tokenizer.eos_token_id
            assert chunk.supervised[-1] == 1


def test_every_real_generative_row_of_the_pair_format_ends_in_a_learned_eos(
    tokenizers: dict[str, PreTrainedTokenizerFast], shared_data: Path
) -> None:
    prepare_rows = preparer(tokenizers["byte-level"], template="alpaca", loss="completion")
    eos = tokenizers["byte-level"].eos_token_id
    for file in sorted((shared_data / "gritlm").glob("*generative*.jsonl")):
        rows = [(line, sample) for line, sample in samples(SourceConfig(path=str(file)))]
        assert rows
        assert not [sample for _, sample in rows if isinstance(sample, Problem)]
        chunk, refused = prepare_rows(rows)  # pyright: ignore[reportArgumentType]
        assert not refused
        ends = chunk.lengths.cumsum() - 1
        assert (chunk.ids[ends] == eos).all()
        assert chunk.supervised[ends].all()
