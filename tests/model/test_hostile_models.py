"""Model directories from outside: decayed, edited or hostile. Each is refused soon, with the file and the field."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.forking import Forking
from proven import unchecked
from safetensors.torch import load_file
from tiny import copy_tree

from loradock.config.schema import RunConfig
from loradock.config.sections.model import ModelConfig
from loradock.errors import InputMissing, ModelError, StorageError
from loradock.model import attention_shape, content, shape, source, tokenizer, whole
from loradock.model.description import describe

Change = Callable[[Path], object]


def edited(name: str, **changes: Any) -> Change:
    """Sets keys of a JSON file."""

    def change(directory: Path) -> None:
        file = directory / name
        file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")

    return change


def config(**changes: Any) -> Change:
    return edited("config.json", **changes)


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


CONFIGS: dict[str, tuple[Change, str]] = {
    "zero heads": (config(num_attention_heads=0), "num_attention_heads is 0: it has to be from 1"),
    "zero layers": (config(num_hidden_layers=0), "num_hidden_layers is 0: it has to be from 1 to 1,000"),
    "2^40 layers": (config(num_hidden_layers=1 << 40), "num_hidden_layers is 1,099,511,627,776: it has to be"),
    "2^40 wide": (config(hidden_size=1 << 40), "hidden_size is 1,099,511,627,776: it has to be"),
    "2^40 labels": (config(num_labels=1 << 40), "num_labels is 1,099,511,627,776: it has to be"),
    "a number of 1,000 digits": (config(vocab_size=10**1000), "vocab_size is a number of more digits"),
    "infinite layers": (config(num_hidden_layers=float("inf")), "num_hidden_layers is inf, not a whole number"),
    "a text for a number": (config(num_hidden_layers="2"), "num_hidden_layers is '2', not a whole number"),
    "a truth for a number": (config(hidden_size=True), "hidden_size is True, not a whole number"),
    "a list for a number": (config(hidden_size=[]), "hidden_size is [], not a whole number"),
    "a field of a part": (config(text_config={"hidden_size": -4}), "text_config.hidden_size is -4: it has to be"),
    "an unknown activation": (config(hidden_act="smooth"), "hidden_act is 'smooth'"),
    "an unknown RoPE type": (config(rope_parameters={"rope_type": "dEfault", "rope_theta": 1e4}), "rope_type is 'dEf"),
    "int8": (config(dtype="int8"), "dtype is 'int8', not a floating-point type"),
    "int8 as it was named before": (config(torch_dtype="int8"), "torch_dtype is 'int8', not a floating-point type"),
    "a dtype that is none": (config(dtype="x"), "dtype is 'x', not a floating-point type"),
    "a pad id out of range": (config(pad_token_id=10**6), "pad_token_id is 1,000,000, and vocab_size"),
    "a dropout of 1e15": (
        config(attention_dropout=1e15),
        "attention_dropout is 1000000000000000.0: it has",
    ),
    "deep nesting": (config(rope_parameters=nested(500)), "is nested more than 64 levels deep"),
    "deeper nesting": (
        lambda d: (d / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        "is nested more than 64 levels deep",
    ),
    "no UTF-8": (lambda d: (d / "config.json").write_bytes(b"\xff\xfe{}"), "is not JSON"),
    "too large": (lambda d: (d / "config.json").write_bytes(b" " * (65 << 20)), "has 68,157,440 bytes"),
    "another width than the weights": (
        config(hidden_size=128),
        "hidden_size is 128, and the weights' embeddings",
    ),
    "more layers than the weights": (config(num_hidden_layers=900), "num_hidden_layers is 900, and the weights hold 2"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_describes_no_model_is_refused_by_its_field(case: str, tmp_path: Path, llama: Path) -> None:
    change, words = CONFIGS[case]
    directory = copy_tree(llama, tmp_path / "model")
    change(directory)
    before = time.process_time()
    with pytest.raises(ModelError) as refused:
        shape.inspect(describe(ModelConfig(name=str(directory))), RunConfig())
    assert words in str(refused.value)
    assert "config.json" in str(refused.value)
    assert refused.value.exit_code == 78
    assert time.process_time() - before < 5


def test_all_fields_that_are_wrong_are_told_at_once(tmp_path: Path, llama: Path) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    config(num_hidden_layers=0, hidden_size="64", dtype="int8")(directory)
    with pytest.raises(ModelError) as refused:
        source.find(ModelConfig(name=str(directory)))
    assert len(refused.value.problems) == 3


def test_a_pad_id_that_counts_from_the_end_is_taken(tmp_path: Path, llama: Path) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    config(pad_token_id=-1)(directory)
    assert shape.inspect(describe(ModelConfig(name=str(directory))), RunConfig()).layers == 2


def test_a_bug_of_ours_is_no_fault_of_the_model(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(shape, "linear_shapes", broken)
    with pytest.raises(KeyError):
        shape.inspect(describe(ModelConfig(name=str(llama))), RunConfig())


def test_a_hostile_config_says_nothing_about_attention(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"num_attention_heads": 1e400, "hidden_size": 4}', encoding="utf-8")
    assert attention_shape.attention_shape(file) is None


def with_header(header: object) -> Change:
    """Replaces the header of the weights, and its length with it."""

    def change(directory: Path) -> None:
        file = directory / "model.safetensors"
        raw = file.read_bytes()
        old = int.from_bytes(raw[:8], "little")
        new = json.dumps(header(json.loads(raw[8 : 8 + old])) if callable(header) else header).encode()
        file.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + old :])

    return change


def in_entry(**changes: Any) -> Change:
    """Changes the header's entry of the final norm."""
    return with_header(lambda header: header | {"model.norm.weight": header["model.norm.weight"] | changes})


def with_index(entries: Any) -> Change:
    def change(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory / "model-1.safetensors")
        text = json.dumps(entries)
        (directory / "model.safetensors.index.json").write_text(text, encoding="utf-8")

    return change


WEIGHTS: dict[str, tuple[Change, str]] = {
    "a header of 2^40 bytes": (
        lambda d: (d / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + bytes(100)),
        "model.safetensors: is truncated or not a safetensors file",
    ),
    "a header that is a list": (with_header([1]), "model.safetensors: has no safetensors header"),
    "a deep header": (with_header({"a": nested(500)}), "model.safetensors: has no safetensors header"),
    "an entry that is none": (
        with_header(lambda h: h | {"model.norm.weight": 3}),
        "'model.norm.weight': not an object",
    ),
    "an unknown dtype": (in_entry(dtype="F31"), "header entry 'model.norm.weight': dtype is 'F31'"),
    "another dtype": (in_entry(dtype="F64"), "F64 of shape [64] takes 512 bytes, and 256 are its own"),
    "another shape": (in_entry(shape=[65]), "F32 of shape [65] takes 260 bytes"),
    "a shape of texts": (in_entry(shape=["64"]), "shape is not a list of counts"),
    "a negative shape": (in_entry(shape=[-64]), "shape is not a list of counts"),
    "offsets beyond the end": (in_entry(data_offsets=[1 << 40, (1 << 40) + 256]), "the one before ends at"),
    "offsets that are none": (in_entry(data_offsets=None), "data_offsets are not two places"),
    "index: a number for a file": (with_index({"weight_map": {"a": 1}}), "weight_map does not name a file"),
    "index: no map": (with_index({"weight_map": 3}), "weight_map does not name a file"),
    "index: an empty name": (with_index({"weight_map": {"a": ""}}), "index.json: names '', which is not a file in"),
    "index: the directory itself": (with_index({"weight_map": {"a": "."}}), "names ., which is not a file in"),
    "index: a way out": (with_index({"weight_map": {"a": "../x"}}), "names ../x, which is not a file in"),
    "index: a null character": (with_index({"weight_map": {"a": "a\0"}}), "which is not a file in the same"),
    "index: a name too long": (with_index({"weight_map": {"a": "x" * 10_000}}), "which is not a file in the same"),
    "index: deep": (with_index({"weight_map": nested(500)}), "not a weight index: is nested more than 64"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weight_files_that_decayed_are_refused_by_their_entry(case: str, tmp_path: Path, llama: Path) -> None:
    change, words = WEIGHTS[case]
    directory = copy_tree(llama, tmp_path / "model")
    change(directory)
    with pytest.raises(ModelError) as refused:
        source.find(ModelConfig(name=str(directory)))
    assert words in str(refused.value)


class Calls:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch called",)


PICKLES: dict[str, tuple[Any, str]] = {
    "code": ({"a": Calls()}, "it holds more than tensors, or is broken"),
    "a list": ([1], "it holds a list, not tensors by their names"),
    "numbers": ({"a": 1}, "AttributeError"),
    "nothing": (None, "it holds a NoneType"),
}


@pytest.mark.parametrize("case", [*PICKLES, "empty", "cut short"])
def test_a_pickle_that_torch_refuses_is_told_to_be_converted(
    case: str, tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = copy_tree(llama, tmp_path / "model")
    file, weights = directory / "pytorch_model.bin", directory / "model.safetensors"
    what, words = PICKLES.get(case, (load_file(weights), "pickle"))
    weights.unlink()
    torch.save(what, file)
    if case in ("empty", "cut short"):
        file.write_bytes(file.read_bytes()[: 0 if case == "empty" else 5_000])
    with pytest.raises(ModelError, match="pickle that torch does not read") as refused:
        whole.check(source.find(ModelConfig(name=str(directory))))
    assert words in str(refused.value)
    assert str(file) in str(refused.value)
    assert "hint: convert it to safetensors" in str(refused.value)
    assert not Path("called").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["a FIFO", "a character device"])
def test_what_is_no_regular_file_is_not_opened(name: str, kind: str, tmp_path: Path, llama: Path) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    (directory / name).unlink()
    if kind == "a FIFO":
        os.mkfifo(directory / name)
    else:
        (directory / name).symlink_to("/dev/zero")
    for door in (source.find, describe):
        with pytest.raises(ModelError, match=f"{name}: is {kind}, not a regular file"):
            door(ModelConfig(name=str(directory)))


FAILURES = [(errno.EACCES, InputMissing, 66), (errno.EIO, StorageError, 74)]


@pytest.mark.parametrize(("number", "kind", "code"), FAILURES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_cannot_be_read_is_told_as_that(
    name: str, number: int, kind: type[Exception], code: int, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def failing(path: Any, *rest: Any, **named: Any) -> int:
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(kind, match=f"cannot read .*{name}: {os.strerror(number)}") as refused:
        source.find(ModelConfig(name=str(llama)))
    assert getattr(refused.value, "exit_code", None) == code
    assert "--output" not in str(refused.value)


def test_a_file_that_vanished_before_it_is_hashed_is_told_as_unreadable(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"cannot read .*gone\.safetensors"):
        content.digest([tmp_path / "gone.safetensors"])


def normaliser(**settings: Any) -> Change:
    return edited("tokenizer.json", normalizer=settings)


TOKENIZERS: dict[str, tuple[Change, str]] = {
    "a normaliser that aborts the process": (
        normaliser(type="Replace", pattern={"String": "a"}, content="x" * 1_000_000),
        "tokenizer.json",
    ),
    "a normaliser that is broken": (normaliser(type="Precompiled", precompiled_charsmap="AAAA"), "tokenizer.json"),
    "a regular expression that is none": (
        normaliser(type="Replace", pattern={"Regex": "("}, content="x"),
        "tokenizer.json cannot be read",
    ),
    "100,000 tokens for a letter": (normaliser(type="Prepend", prepend="q" * 100_000), "tokenizer.json"),
    "a vocabulary of texts": (edited("tokenizer.json", model={"type": "BPE", "vocab": {"a": "b"}}), "tokenizer.json"),
    "a class of its own": (edited("tokenizer_config.json", tokenizer_class=3), "holds a tokenizer that cannot be read"),
    "an EOS that is a number": (edited("tokenizer_config.json", eos_token=7), "tokenizer"),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_tokenizer_that_breaks_its_process_does_not_break_ours(case: str, tmp_path: Path, llama: Path) -> None:
    change, words = TOKENIZERS[case]
    directory = copy_tree(llama, tmp_path / "model")
    change(directory)
    with pytest.raises(ModelError) as refused:
        tokenizer.open_tokenizer(source.find(ModelConfig(name=str(directory))))
    assert words in str(refused.value)


def test_the_command_names_file_and_field_and_ends_with_78(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    directory = copy_tree(llama, tmp_path / "model")
    config(num_hidden_layers=1 << 40)(directory)
    for verb in (["plan"], ["train", "--output", str(tmp_path / "run"), unchecked("it is refused before")]):
        done = forking.run(tmp_path, *verb, "--model", str(directory), "--data", str(rows))
        assert done.returncode == 78, done.stderr
        assert "config.json: num_hidden_layers is 1,099,511,627,776" in done.stderr
