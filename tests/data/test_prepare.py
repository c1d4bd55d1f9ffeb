"""The cache of prepared rows: keys, faults, problems, workers and memory."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.cache import EntryWriter, writing
from loradock.data.prepare import choose_workers, prepare
from loradock.data.prepared import Prepared
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, DataError, DiskFull, NotWritable, StorageError

pytestmark = pytest.mark.thin(1)


def write_rows(path: Path, *, rows: int, first: int = 0) -> SourceConfig:
    lines = [
        json.dumps({"instruction": f"say {i} 日", "input": "", "output": f"it is {i}"})
        for i in range(first, first + rows)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return SourceConfig(path=str(path))


@pytest.fixture
def spec(tokenizers: dict[str, PreTrainedTokenizerFast]) -> TokenizerSpec:
    return TokenizerSpec.of(tokenizers["byte-level"])


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    return DataConfig(sources=(write_rows(tmp_path / "rows.jsonl", rows=600),))


def contents(prepared: Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(prepared.directory.iterdir()) if path.suffix != ".json"}


def test_a_second_preparation_reads_the_cache(data: DataConfig, spec: TokenizerSpec, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    first = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", progress=lambda *done: calls.append(done))
    assert calls[-1] == (first.rows, first.tokens) == (600, int(first.offsets[-1]))
    calls.clear()
    assert prepare(data, tokenizer=spec, cache_dir=tmp_path / "c", progress=lambda *d: calls.append(d)) == first
    assert not calls
    assert first.supervised_tokens == first.learned.sum() == sum(first.row(i)[1].sum() for i in range(600))


def test_the_key_follows_what_tokens_depend_on_and_nothing_else(
    data: DataConfig, spec: TokenizerSpec, tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    def key(**changes: object) -> str:
        return prepare(data.model_copy(update=changes), tokenizer=spec, cache_dir=tmp_path / "c").key

    (source,) = data.sources
    same = [
        key(max_length=5, seed=3, validation=0.5, workers=2, long_rows="drop"),
        key(sources=(source.model_copy(update={"weight": 0.5}),)),
    ]
    assert set(same) == {key()}
    other_tokenizer = prepare(data, tokenizer=tokenizers["sentencepiece"], cache_dir=tmp_path / "c").key
    different = [key(), key(template="chatml"), key(loss="all"), key(sources=(source, source)), other_tokenizer]
    write_rows(Path(source.path), rows=601)
    different.append(key())
    assert len(set(different)) == len(different)


def test_an_entry_found_under_another_path_names_the_path_of_today(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    moved = write_rows(tmp_path / "moved.jsonl", rows=600)
    again = prepare(data.model_copy(update={"sources": (moved,)}), tokenizer=spec, cache_dir=tmp_path / "c")
    assert again.place(41) == f"{tmp_path}/moved.jsonl:42"
    assert len(list((tmp_path / "c").iterdir())) == 1


@pytest.mark.thin(4)
@pytest.mark.parametrize("fault", ["flipped byte", "cut file", "no manifest", "forged manifest", "missing file"])
def test_a_damaged_entry_is_rebuilt(data: DataConfig, spec: TokenizerSpec, tmp_path: Path, fault: str) -> None:
    prepared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    sound = contents(prepared)
    tokens, manifest = prepared.directory / "tokens.i32", prepared.directory / "manifest.json"
    if fault == "flipped byte":
        with tokens.open("r+b") as file:
            file.seek(100)
            file.write(bytes([sound["tokens.i32"][100] ^ 1]))
    elif fault == "cut file":
        os.truncate(tokens, tokens.stat().st_size - 4)
    elif fault == "forged manifest":
        manifest.write_text(manifest.read_text().replace('"learned_tokens": ', '"learned_tokens": 9'))
    else:
        (manifest if fault == "no manifest" else tokens).unlink()
    again = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    assert again == prepared
    assert contents(again) == sound


def test_all_problems_of_all_files_come_in_one_error_and_leave_no_entry(spec: TokenizerSpec, tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    write_rows(one, rows=3)
    good = one.read_text().splitlines()
    one.write_text("\n".join([good[0], "{broken", good[1], '{"instruction": "a", "output": ""}', good[2]]))
    messages = [[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], [{"role": "assistant"}]]
    two.write_text("\n".join(json.dumps({"messages": m}) for m in messages))
    data = DataConfig(sources=(SourceConfig(path=str(one)), SourceConfig(path=str(two))))
    with pytest.raises(DataError) as raised:
        prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    places = [(problem.file, problem.line) for problem in raised.value.problems]
    assert places == [(str(one), 2), (str(one), 4), (str(two), 1), (str(two), 2)]
    assert raised.value.what.startswith("4 problems")
    assert not list((tmp_path / "c").iterdir())


def test_rows_that_the_template_refuses_are_named_by_line(spec: TokenizerSpec, tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    turns = [("user", "assistant"), ("user", "user", "assistant"), ("user", "assistant")]
    path.write_text("\n".join(json.dumps({"messages": [{"role": r, "content": "x"} for r in row]}) for row in turns))
    data = DataConfig(sources=(SourceConfig(path=str(path)),), template="gemma")
    with pytest.raises(DataError, match=r"chats\.jsonl:2: .*alternate"):
        prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for message in messages %}\n{{ message['content'] }}", r"broken\.jinja, line 2: .*end of template"),
        ("{{ raise_exception('never mind') }}", "no row can be rendered, all 3 for one reason: .*never mind"),
        ("{{ messages[0].nothing.at_all }}", "no row can be rendered, all 3 for one reason: .*has no attribute"),
        ("the same for all", "no row can be rendered, all 3 for one reason: .*cannot locate"),
    ],
)
def test_a_template_that_renders_no_row_is_told_once_as_a_configuration_error(
    text: str, said: str, spec: TokenizerSpec, tmp_path: Path
) -> None:
    template = tmp_path / "broken.jinja"
    template.write_text(text)
    data = DataConfig(sources=(write_rows(tmp_path / "rows.jsonl", rows=3),), template=str(template))
    with pytest.raises(ConfigError, match=f"data.template: .*{said}") as raised:
        prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    assert raised.value.exit_code == 78
    assert not list((tmp_path / "c").glob("*"))


def test_the_same_problem_is_told_once_with_its_count_and_three_places(spec: TokenizerSpec, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", rows=1)
    with Path(source.path).open("a") as file:
        file.write('{"instruction": "a", "output": ""}\n' * 1500 + '{"instruction": 3, "output": "b"}\n')
    with pytest.raises(DataError) as raised:
        prepare(DataConfig(sources=(source,)), tokenizer=spec, cache_dir=tmp_path / "c")
    first, second = map(str, raised.value.problems)
    assert raised.value.what.startswith("1501 problems")
    places = ", ".join(f"{source.path}:{line}" for line in (2, 3, 4))
    assert first == f"{places} and 1497 more: output is empty: there is nothing to train on"
    assert second == f"{source.path}:1502: instruction is a number, not text"


def test_problems_are_all_counted_and_the_first_thousand_kinds_kept(spec: TokenizerSpec, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    turns = [{"role": f"role{number}", "content": "a"} for number in range(1500)]
    path.write_text("".join(json.dumps({"messages": [turn]}) + "\n" for turn in turns))
    with pytest.raises(DataError) as raised:
        prepare(DataConfig(sources=(SourceConfig(path=str(path)),)), tokenizer=spec, cache_dir=tmp_path / "c")
    assert raised.value.what.startswith("1500 problems")
    assert len(raised.value.problems) == 1000


@pytest.mark.thin(4)
def test_any_number_of_workers_gives_the_same_files(data: DataConfig, spec: TokenizerSpec, tmp_path: Path) -> None:
    alone = prepare(data, tokenizer=spec, cache_dir=tmp_path / "one")
    shared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "two", workers=2)
    assert contents(shared) == contents(alone)
    assert shared.key == alone.key


def _prepare_in(cache_dir: Path, data: DataConfig, spec: TokenizerSpec) -> None:
    prepare(data, tokenizer=spec, cache_dir=cache_dir)


@pytest.mark.thin(4)
def test_two_preparers_at_once_leave_one_sound_entry(data: DataConfig, spec: TokenizerSpec, tmp_path: Path) -> None:
    sound = contents(prepare(data, tokenizer=spec, cache_dir=tmp_path / "alone"))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_prepare_in, args=(tmp_path / "c", data, spec)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    (entry,) = (tmp_path / "c").iterdir()
    assert contents(prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")) == sound
    assert {path.name: path.read_bytes() for path in entry.iterdir() if path.suffix != ".json"} == sound


def test_a_living_builder_keeps_its_place_however_old_and_what_a_killed_one_left_goes(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    cache = tmp_path / "c"
    long_ago = time.time() - 9 * 24 * 3600
    living = EntryWriter(cache, key="a" * 64)
    killed = multiprocessing.get_context("fork").Process(target=_die_building, args=(cache,))
    killed.start()
    killed.join()
    staged = list(cache.glob(".staged-*"))
    assert len(staged) == 2
    for each in staged:
        os.utime(each, (long_ago, long_ago))
    prepare(data, tokenizer=spec, cache_dir=cache)
    (left,) = cache.glob(".staged-*")
    with living:
        assert (left / ("a" * 64) / "tokens.i32").exists()
        living.commit(blocks=b"[]")
    assert not list(cache.glob(".staged-*"))
    assert not list(cache.glob("*/lock"))


def _die_building(cache: Path) -> None:
    _writer = EntryWriter(cache, key="b" * 64)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", ["tokens.i32", "supervised.u8", "offsets.i64", "learned.i32"])
def test_prepared_rows_that_are_cut_while_they_are_used_are_an_error(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path, name: str
) -> None:
    prepared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    os.truncate(prepared.directory / name, 4)
    with pytest.raises(StorageError, match=f"{name}: it became shorter") as caught:
        assert [prepared.row(row) for row in range(prepared.rows)] == list(prepared.learned)
    assert caught.value.exit_code == 74


def test_prepared_rows_that_cannot_be_closed_say_nothing(
    data: DataConfig,
    spec: TokenizerSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """An error in a finaliser ends nothing, but is a traceback on the screen."""
    prepared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    prepared.row(0)
    closed: list[int] = []

    def refuse(descriptor: int) -> None:
        closed.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", refuse)
        del prepared
        gc.collect()
    assert closed
    assert capfd.readouterr().err == ""
    for descriptor in closed:
        os.close(descriptor)


def test_prepared_rows_that_vanish_while_they_are_used_are_an_error(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    prepared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    again = pickle.loads(pickle.dumps(prepared))
    prepared.row(0)
    shutil.rmtree(prepared.directory)
    assert len(prepared.row(1)[0])
    with pytest.raises(StorageError, match=r"offsets\.i64: no such file"):
        again.row(0)


def test_what_a_killed_preparer_left_is_swept_a_day_later(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    old, fresh = tmp_path / "c" / ".staged-old", tmp_path / "c" / ".staged-fresh"
    for left in (old, fresh):
        left.mkdir(parents=True)
        (left / "tokens.i32").touch()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    assert not old.exists()
    assert fresh.exists()


def test_a_cache_that_cannot_be_written_ends_with_77(data: DataConfig, spec: TokenizerSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match=r"--set data\.cache="):
        prepare(data, tokenizer=spec, cache_dir=tmp_path / "file" / "cache")


def test_a_cache_that_cannot_even_be_looked_into_names_the_cache_not_the_output(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match=r"--set data\.cache="):
        prepare(data, tokenizer=spec, cache_dir=tmp_path / ("long" * 100))


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EROFS, NotWritable), (errno.EIO, StorageError)],
)
def test_a_failed_write_becomes_the_error_with_its_exit_code(code: int, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="prepared data"), writing(tmp_path):
        raise OSError(code, os.strerror(code))


def _prepare_under_a_file_size_limit(cache_dir: Path, data: DataConfig, spec: TokenizerSpec) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        prepare(data, tokenizer=spec, cache_dir=cache_dir)
    except StorageError as error:
        sys.exit(error.exit_code)


def test_a_write_that_fails_half_way_leaves_nothing_behind(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_prepare_under_a_file_size_limit, args=(tmp_path / "c", data, spec)
    )
    process.start()
    process.join()
    assert process.exitcode == StorageError.exit_code
    assert not list((tmp_path / "c").iterdir())


def test_workers_follow_data_cpus_and_memory() -> None:
    mebibyte, gibibyte = 1 << 20, 1 << 30
    assert choose_workers(mebibyte, cpus=16, memory_bytes=64 * gibibyte) == 1
    assert choose_workers(64 * mebibyte, cpus=16, memory_bytes=64 * gibibyte) == 4
    assert choose_workers(gibibyte, cpus=16, memory_bytes=64 * gibibyte) == 16
    assert choose_workers(gibibyte, cpus=16, memory_bytes=3 * gibibyte) == 2
    assert choose_workers(gibibyte, cpus=1, memory_bytes=gibibyte // 2) == 1


MEASURE = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.prepare import prepare
backend = Tokenizer(models.WordLevel({"</s>": 0, "<s>": 1, "<unk>": 2}, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
peaks = []
for path in sys.argv[2:]:
    data = DataConfig(sources=(SourceConfig(path=path),), template="chatml")
    prepare(data, tokenizer=tokenizer, cache_dir=Path(sys.argv[1]))
    status = Path("/proc/self/status").read_text()
    peaks.append(int(status.split("VmHWM:")[1].split()[0]) << 10)
print(json.dumps(peaks))
"""


@pytest.mark.thin(4)
def test_peak_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    files = {tmp_path / "small.jsonl": 1_000, tmp_path / "large.jsonl": 18_000}
    escaped = ("\\u0078" * 150 + " ") * 13
    row = f'{{"instruction": "{escaped}", "input": "", "output": "yes"}}\n'
    for path, rows in files.items():
        with path.open("w") as file:
            for _ in range(rows // 100):
                file.write(row * 100)
    assert (tmp_path / "large.jsonl").stat().st_size > 200e6
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "c"), *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
    )
    small, large = json.loads(output.stdout)
    assert large - small < 32 << 20, f"{(large - small) >> 20} MiB more for 18 times the data"


def test_a_row_reads_the_same_from_a_pickled_copy(data: DataConfig, spec: TokenizerSpec, tmp_path: Path) -> None:
    prepared = prepare(data, tokenizer=spec, cache_dir=tmp_path / "c")
    prepared.row(0)
    pickled = pickle.dumps(prepared)
    assert len(pickled) < 2000
    assert np.array_equal(pickle.loads(pickled).row(5)[0], prepared.row(5)[0])


def test_a_template_that_writes_todays_date_writes_the_one_that_was_asked_for(
    data: DataConfig, spec: TokenizerSpec, tmp_path: Path
) -> None:
    template = tmp_path / "dated.jinja"
    template.write_text("{{ strftime_now('%Y/%m/%d') }} {% for m in messages %}{{ m.content }}</s>{% endfor %}")
    dated = data.model_copy(update={"template": str(template)})

    def on(date: str | None) -> Prepared:
        asked = dated.model_copy(update={"date": date})
        return prepare(asked, tokenizer=spec, cache_dir=tmp_path / "c")

    first, again, other = on("2024-02-29"), on("2024-02-29"), on("2024-03-01")
    assert (first.date, first.key, first.digest) == ("2024-02-29", again.key, again.digest)
    assert other.key != first.key
    assert other.digest != first.digest
    assert on(None).date == datetime.now(UTC).date().isoformat()
    words = Tokenizer.from_str(spec.backend).decode(first.row(0)[0].tolist())
    assert words.startswith("2024/02/29 say 0")
    plain = prepare(data.model_copy(update={"date": "2024-02-29"}), tokenizer=spec, cache_dir=tmp_path / "c")
    assert (plain.date, plain.key) == (None, prepare(data, tokenizer=spec, cache_dir=tmp_path / "c").key)
