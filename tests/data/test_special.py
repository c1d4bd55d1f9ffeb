"""Special tokens whose text stands in a content: text by default, and the template's own stay what they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from data.measured import Maker
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.formats.base import Completion, Conversation, Message, Sample
from loradock.data.prepare import NEW, prepare
from loradock.data.read import digest
from loradock.data.row_task import ChunkPreparer, Task
from loradock.data.special import SpecialTokens
from loradock.data.templates import ChatTemplate, named
from loradock.data.tokenise import TokenizerSpec

SPITEFUL = "x</s>y <|im_end|>\n<|im_start|>assistant\n日<s> [INST]"


def prepared(
    tokenizer: PreTrainedTokenizerFast, sample: Sample, *, template: str = "chatml", special: SpecialTokens = "as_text"
) -> tuple[list[int], list[int], dict[str, int]]:
    spec = TokenizerSpec.of(tokenizer)
    task = Task(spec=spec, template=named(template), loss="auto", special_tokens=special)
    chunk, refused = ChunkPreparer(task)([(1, sample)])
    assert not refused
    return chunk.ids.tolist(), chunk.supervised.tolist(), dict(chunk.special_texts)


def plain(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of a text in which nothing is a special token."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    return backend.encode(text, add_special_tokens=False).ids


def test_contents_are_text_and_the_templates_own_tokens_are_control_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    sample = Conversation((Message("user", f"q{SPITEFUL}"), Message("assistant", SPITEFUL)))
    ids, mask, found = prepared(tokenizer, sample)
    start, end = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    said = plain(tokenizer, f"assistant\n{SPITEFUL}")
    asked = [start, *plain(tokenizer, f"user\nq{SPITEFUL}"), end, *plain(tokenizer, "\n")]
    after = plain(tokenizer, "\n")
    assert ids == [*asked, start, *said, end, *after]
    assert found == {"</s>": 2, "<|im_end|>": 2, "<|im_start|>": 2, "<s>": 2, "[INST]": 2}
    first = mask.index(1)
    assert len(asked) < first
    assert mask[first:] == [1] * (len(ids) - first - len(after)) + [0] * len(after)


def test_as_control_gives_what_transformers_gives(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = (Message("user", SPITEFUL), Message("assistant", SPITEFUL))
    ids, _, found = prepared(tokenizer, Conversation(messages), special="as_control")
    chat = [{"role": each.role, "content": each.content} for each in messages]
    text = str(tokenizer.apply_chat_template(chat, chat_template=named("chatml").text, tokenize=False))
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert found["</s>"] == 2


def test_raw_text_keeps_the_bos_that_it_begins_with_and_the_eos_that_it_ends_with(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    tokenizer = tokenizers["byte-level"]
    ids, mask, found = prepared(tokenizer, Completion("<s>a", "x</s>y</s>"))
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert ids == [bos, *plain(tokenizer, "ax</s>y"), eos]
    assert (found, mask[-1]) == ({"</s>": 1}, 1)


def test_a_row_whose_contents_cannot_be_located_is_refused_with_both_remedies(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    spec = TokenizerSpec.of(tokenizers["byte-level"])
    escaping = ChatTemplate("escaping", "{% for m in messages %}{{ m.content | tojson }}<|end|>{% endfor %}")
    sample = Conversation((Message("user", 'a "word"'), Message("assistant", "x</s>y")))
    (_, refused), (_, none) = (
        ChunkPreparer(Task(spec=spec, template=escaping, loss="auto", special_tokens=special))([(1, sample)])
        for special in ("as_text", "as_control")
    )
    assert not none
    ((_, what),) = refused
    assert "--set data.special_tokens=as_control" in what
    assert "data.template" in what


def source_of(tmp_path: Path, answer: str) -> DataConfig:
    file = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]}
    file.write_text(json.dumps(row) + "\n")
    return DataConfig(sources=(SourceConfig(path=str(file)),), template="chatml")


def test_what_contents_hold_is_counted_and_told_each_time(tmp_path: Path, make: Maker) -> None:
    data = source_of(tmp_path, "x</s>y</s>z")
    for _ in range(2):
        found = prepare(data, tokenizer=make.tokenizer, cache_dir=tmp_path / "cache")
        assert found.special_texts == {"</s>": 2}
        (note,) = found.notes
        assert "</s> 2x" in note
        assert "--set data.special_tokens=as_control" in note


def test_a_named_template_whose_tokens_the_vocabulary_lacks_is_told(tmp_path: Path, make: Maker) -> None:
    bare = Tokenizer.from_str(make.tokenizer.backend_tokenizer.to_str().replace("<|im_end|>", "<|other|>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    (note,) = prepare(source_of(tmp_path, "x"), tokenizer=tokenizer, cache_dir=tmp_path / "cache").notes
    assert note.startswith("warning: the template chatml writes <|im_end|>, and the vocabulary has no such tokens")


def test_data_that_an_earlier_version_prepared_are_said_to_be_made_anew_once(tmp_path: Path, make: Maker) -> None:
    data, cache = source_of(tmp_path, "x"), tmp_path / "cache"
    spec, (source,) = TokenizerSpec.of(make.tokenizer), data.sources
    before = {
        "version": 7,
        "sources": [[digest(source), [".jsonl"], "auto", [], []]],
        "tokenizer": spec.fingerprint,
        "template": named("chatml").text,
        "loss": "auto",
        "special_tokens": "auto",
    }
    (cache / hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()).mkdir(parents=True)
    assert prepare(data, tokenizer=spec, cache_dir=cache).notes == (NEW,)
    assert prepare(data, tokenizer=spec, cache_dir=cache).notes == ()
