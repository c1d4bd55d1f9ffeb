"""Which files are one training set: one rule for directories, patterns, single files and saved data sets."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from datasets import Dataset, DatasetDict
from datasets.data_files import DataFilesDict, get_data_patterns

from loradock import demo
from loradock.cli import cli
from loradock.config.load import load
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.read import chosen, files
from loradock.data.shards import told
from loradock.data.sources import held_out_files
from loradock.errors import DataError, InputMissing, LoradockError

pytestmark = pytest.mark.thin(2)

ROW = json.dumps({"instruction": "Say 1.", "output": "1"})

LAYOUTS: dict[str, str] = {
    "train.jsonl test.jsonl": "train.jsonl",
    "train.jsonl validation.jsonl test.jsonl": "train.jsonl",
    "train.jsonl valid.jsonl": "train.jsonl",
    "train.jsonl val.jsonl": "train.jsonl",
    "train.jsonl dev.jsonl": "train.jsonl",
    "train.jsonl eval.jsonl": "train.jsonl",
    "train.jsonl evaluation.jsonl": "train.jsonl",
    "training.jsonl testing.jsonl": "training.jsonl",
    "gsm_train.jsonl gsm_test.jsonl": "gsm_train.jsonl",
    "gsm-train.jsonl gsm-dev.jsonl": "gsm-train.jsonl",
    "gsm.train.jsonl gsm.test.jsonl": "gsm.train.jsonl",
    "my train set.jsonl my test set.jsonl": "my train set.jsonl",
    "train1.jsonl train2.jsonl test1.jsonl": "train1.jsonl train2.jsonl",
    "train_0.jsonl train_1.jsonl test_0.jsonl": "train_0.jsonl train_1.jsonl",
    "boolq_train.json boolq_test.json": "boolq_train.json",
    "a_train_v2.csv a_test_v2.csv": "a_train_v2.csv",
    "train.jsonl.gz test.jsonl.gz": "train.jsonl.gz",
    "train-00000-of-00002.parquet train-00001-of-00002.parquet test-00000-of-00001.parquet": (
        "train-00000-of-00002.parquet train-00001-of-00002.parquet"
    ),
    "train_sft-00000-of-00001.parquet test_sft-00000-of-00001.parquet": "train_sft-00000-of-00001.parquet",
    "TRAIN.jsonl Test.jsonl": "TRAIN.jsonl",
    "train.jsonl extra.jsonl test.jsonl": "train.jsonl",
    "train.jsonl train_eval.jsonl": "train.jsonl",
    "train.jsonl extra.jsonl": "extra.jsonl train.jsonl",
    "math_train.jsonl code_train.jsonl": "code_train.jsonl math_train.jsonl",
    "test_a.jsonl test_b.jsonl": "test_a.jsonl test_b.jsonl",
    "part-0.jsonl part-1.jsonl": "part-0.jsonl part-1.jsonl",
    "strain.jsonl contest.jsonl device.jsonl": "contest.jsonl device.jsonl strain.jsonl",
    "part-00000-of-00002.jsonl part-00001-of-00002.jsonl": "part-00000-of-00002.jsonl part-00001-of-00002.jsonl",
    "code-00000-of-00001.jsonl math-00000-of-00001.jsonl": "code-00000-of-00001.jsonl math-00000-of-00001.jsonl",
    "rows.json dataset_infos.json": "rows.json",
    "train.json test.json dataset_info.json": "train.json",
    "rows.jsonl config.json": "rows.jsonl",
    "part.arrow cache-01ab.arrow": "part.arrow",
    "gsm-train.arrow gsm-test.arrow dataset_info.json": "gsm-train.arrow",
}
"""Names in a directory, and those that are trained on."""

NESTED: dict[str, str] = {
    "data/train-00000-of-00001.parquet data/test-00000-of-00001.parquet": "data/train-00000-of-00001.parquet",
    "train/a.jsonl test/a.jsonl": "train/a.jsonl",
    "train/0.arrow validation/0.arrow": "train/0.arrow",
    "my_train/a.jsonl my_dev/a.jsonl": "my_train/a.jsonl",
    "en/train.jsonl en/test.jsonl de/train.jsonl": "de/train.jsonl en/train.jsonl",
    "train/test_questions.jsonl test/test_questions.jsonl": "train/test_questions.jsonl",
    ".cache/test.jsonl data/train.jsonl __pycache__/test.jsonl": "data/train.jsonl",
    "a/rows.jsonl b/rows.jsonl": "a/rows.jsonl b/rows.jsonl",
}
"""The same below a directory without files of rows of its own, which the hint's pattern reads."""

UNCLEAR: dict[str, str] = {
    "rows.jsonl rows_test.jsonl": "rows.jsonl",
    "a.jsonl b.jsonl dev.jsonl": "a.jsonl b.jsonl",
    "unit_test_tasks.jsonl review_tasks.jsonl": "review_tasks.jsonl",
    "test.jsonl validation.jsonl": "validation.jsonl",
    "train_sft-00000-of-00001.parquet train_gen-00000-of-00001.parquet test_sft-00000-of-00001.parquet": (
        "train_gen-00000-of-00001.parquet"
    ),
    "rows.csv config.yaml info.json": "rows.csv",
    "a.csv info.json more.json": "a.csv",
    "a.jsonl b.jsonl c.csv": "a.jsonl b.jsonl",
}
"""Those that are refused, and what the hint leads to."""


def laid_out(folder: Path, names: str) -> None:
    """Files with these names: rows, but for JSON that describes."""
    for name in re.findall(r"\S(?:[^.]|\.(?!jsonl))*?\.(?:jsonl\.gz|jsonl|json|csv|parquet|arrow|yaml)", names):
        path = folder / name.strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        is_csv = path.suffix == ".csv"
        describes = path.name.startswith(("info", "more", "config"))
        path.write_text('{"version": 1}' if describes else "instruction,output\na,b\n" if is_csv else f"{ROW}\n")


def named(folder: Path, path: str = "", **settings: str) -> str:
    source = SourceConfig.model_validate({"path": path or str(folder), **settings})
    return " ".join(str(file.relative_to(folder)) for file in files(source))


def by_datasets(folder: Path) -> set[str]:
    """What `datasets` would train on: its own resolution of the directory."""
    found = DataFilesDict.from_patterns(get_data_patterns(str(folder)), base_path=str(folder))
    return {str(Path(file).relative_to(folder)) for file in found.get("train", [])}


def followed(error: LoradockError) -> list[str]:
    """The paths that a hint names."""
    words = shlex.split(str(error.hint))
    paths = [word for word in words if "/" in word]
    assert paths, error.hint
    return paths


@pytest.mark.parametrize("names", LAYOUTS)
def test_a_directory_and_a_pattern_are_trained_on_without_what_their_names_hold_out(names: str, tmp_path: Path) -> None:
    laid_out(tmp_path, names)
    assert named(tmp_path) == LAYOUTS[names]
    assert named(tmp_path, f"{tmp_path}/*") == LAYOUTS[names]
    assert named(tmp_path, f"{tmp_path}/**/*") == LAYOUTS[names]
    source = SourceConfig(path=str(tmp_path))
    left = {name for name in names.split() if name.startswith(("t", "v", "dev", "gsm", "a_", "boolq", "extra"))}
    unread = left - set(LAYOUTS[names].split()) - {"testing.jsonl", "training.jsonl"}
    lines = " ".join(told(source, chosen(source)))
    assert all(name in lines for name in unread if "dataset_info" not in name)


@pytest.mark.parametrize("names", [names for names in LAYOUTS if "test" in names or "dev" in names])
def test_a_file_that_datasets_holds_out_is_not_trained_on(names: str, tmp_path: Path) -> None:
    laid_out(tmp_path, names.lower())
    theirs = by_datasets(tmp_path)
    ours = {str(file.relative_to(tmp_path)) for file in files(SourceConfig(path=str(tmp_path)))}
    one_split = {"test_a.jsonl test_b.jsonl"}
    assert ours == theirs or names in one_split or theirs - ours <= {"train_eval.jsonl"}, (ours, theirs)


@pytest.mark.parametrize("names", NESTED)
def test_the_pattern_for_files_below_a_directory_reads_what_is_to_be_trained_on(names: str, tmp_path: Path) -> None:
    laid_out(tmp_path, names)
    with pytest.raises(DataError, match="a directory without files of rows") as caught:
        files(SourceConfig(path=str(tmp_path)))
    (pattern,) = followed(caught.value)
    assert named(tmp_path, pattern) == NESTED[names]
    assert by_datasets(tmp_path) == set(NESTED[names].split())


@pytest.mark.parametrize("names", UNCLEAR)
@pytest.mark.parametrize("pattern", ["", "/*"])
def test_files_that_may_mean_several_sets_are_refused_and_the_hint_names_one(
    names: str, pattern: str, tmp_path: Path
) -> None:
    laid_out(tmp_path, names)
    with pytest.raises((DataError, InputMissing), match=r"several|has no split") as caught:
        files(SourceConfig(path=f"{tmp_path}{pattern}"))
    paths = followed(caught.value)
    assert " ".join(named(tmp_path, path) for path in paths) == UNCLEAR[names]


@pytest.mark.parametrize(
    ("splits", "asked", "read"),
    [
        ("train test", "train", "train"),
        ("train test", "test", "test"),
        ("train validation test", "train+validation", "train validation"),
        ("train_sft test_sft", "train", "train_sft"),
        ("test", "train", "test"),
        ("train_sft train_gen test_sft", "train_gen", "train_gen"),
    ],
)
def test_the_split_that_is_asked_for_is_read_of_saved_and_of_plain_data_alike(
    splits: str, asked: str, read: str, tmp_path: Path
) -> None:
    rows = {name: Dataset.from_list([{"instruction": name, "output": "b"}]) for name in splits.split()}
    DatasetDict({**rows}).save_to_disk(tmp_path / "saved")
    laid_out(tmp_path / "plain", " ".join(f"{name}-00000-of-00001.parquet" for name in rows))
    saved = SourceConfig(path=str(tmp_path / "saved"), split=asked)
    assert " ".join(file.parent.name for file in files(saved)) == read
    assert named(tmp_path / "plain", split=asked).replace("-00000-of-00001.parquet", "") == read
    others = set(rows) - set(read.split())
    assert all(name in " ".join(told(saved, chosen(saved))) for name in others)


def test_a_split_that_is_not_there_is_missing_and_the_hint_names_one_that_is(tmp_path: Path) -> None:
    DatasetDict({name: Dataset.from_list([{"text": name}]) for name in ("en", "de")}).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputMissing, match="has no split 'train'; it has de, en") as caught:
        files(SourceConfig(path=str(tmp_path / "saved")))
    (path,) = followed(caught.value)
    assert [file.parent.name for file in files(SourceConfig(path=path))] == ["de"]
    laid_out(tmp_path, "rows.jsonl")
    with pytest.raises(DataError, match="no split"):
        files(SourceConfig(path=str(tmp_path / "rows.jsonl"), split="test"))


def test_what_is_evaluated_or_held_out_is_never_the_training_part_of_several(tmp_path: Path) -> None:
    laid_out(tmp_path, "gsm_train.jsonl gsm_test.jsonl")
    (source,) = held_out_files(DataConfig(validation=str(tmp_path)))
    with pytest.raises(DataError, match=r"several splits \(test: gsm_test.jsonl; train: gsm_train.jsonl\)"):
        files(source)
    (source,) = held_out_files(DataConfig(validation=f"{tmp_path}/*test*"))
    assert files(source) == [tmp_path / "gsm_test.jsonl"]


def saved_in_two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LORADOCK_CACHE", str(folder / "cache"))
    made = {
        name: Dataset.from_list([{"prompt": f"{name} {n}?", "completion": f" {n}"} for n in range(count)])
        for name, count in (("train", 12), ("validation", 3))
    }
    DatasetDict({**made}).save_to_disk(folder / "saved")
    return folder / "saved"


def stats(*words: str) -> Result:
    return CliRunner().invoke(cli, ["data", "stats", "--model", str(Path(demo.__file__).parent / "base"), *words])


def test_a_split_of_a_saved_data_set_is_held_out_where_a_person_says_so_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = saved_in_two(tmp_path, monkeypatch)
    done = stats("--data", str(saved), "--json")
    assert done.exit_code == 0, done.exception
    line = next(line for line in done.stderr.splitlines() if "split train is read" in line)
    setting = line.partition("to hold it out: --set ")[2]
    assert setting == f"data.validation={saved}#validation"
    assert (json.loads(done.stdout)["rows"], json.loads(done.stdout)["validation_rows"]) == (12, 0)
    done = stats("--data", f"{saved}#train", "--set", setting, "--json")
    assert done.exit_code == 0, done.exception
    assert (json.loads(done.stdout)["train_rows"], json.loads(done.stdout)["validation_rows"]) == (12, 3)
    assert "to hold it out" not in done.stderr
    done = stats("--data", str(saved), "--set", f"data.validation={saved}#dev")
    assert "has no split 'dev'; it has train, validation" in str(done.exception)
    done = stats("--data", f"{saved}#train", "--set", f"data.validation={saved}#train")
    assert "is also trained on" in str(getattr(done.exception, "problems", ""))


def test_a_split_is_named_behind_a_pattern_and_a_directory_and_a_file_with_such_a_name_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out(tmp_path / "rows", "gsm_train.jsonl gsm_test.jsonl")
    for place in (tmp_path / "rows", tmp_path / "rows" / "*.jsonl"):
        source = SourceConfig(path=f"{place}#test")
        assert (source.path, source.split) == (str(place), "test")
        assert files(source) == [tmp_path / "rows" / "gsm_test.jsonl"]
    laid_out(tmp_path, "a#test.jsonl")
    assert SourceConfig(path=str(tmp_path / "a#test.jsonl")).split == "train"
    (tmp_path / "b#test").mkdir()
    laid_out(tmp_path / "b#test", "rows.jsonl")
    assert files(SourceConfig(path=str(tmp_path / "b#test"))) == [tmp_path / "b#test" / "rows.jsonl"]
    monkeypatch.chdir(tmp_path)
    loaded = load(None, overrides=["data.sources=rows#test", f"model.name={tmp_path}"])
    assert (loaded.config.data.sources[0].path, loaded.origins["data.sources.0.split"]) == ("rows", "--set")
    assert loaded.origins["data.sources.0.revision"] == "default"


def test_one_saved_data_set_has_no_splits_to_name(tmp_path: Path) -> None:
    Dataset.from_list([{"text": "a"}]).save_to_disk(tmp_path / "one")
    assert len(files(SourceConfig(path=str(tmp_path / "one")))) == 1
    with pytest.raises(InputMissing, match="has no split 'test': it is one data set"):
        files(SourceConfig(path=f"{tmp_path / 'one'}#test"))


def test_a_branch_of_what_is_held_out_is_told_and_a_commit_is_not() -> None:
    for revision, count in (("main", 1), ("b2" * 20, 0)):
        keys = [f"data.validation=hub:a/b@{revision}#test", "data.sources=rows.jsonl", "model.name=./base"]
        moving = [each for each in load(None, overrides=keys).warnings if "a branch or tag can move" in each]
        assert len(moving) == count
