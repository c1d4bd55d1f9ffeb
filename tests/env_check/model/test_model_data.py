"""Data files and disk: what is missing, empty, broken, or too large, named with its remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults, namespace

from loradock import demo

pytestmark = pytest.mark.thin(1)

ROWS = Path(demo.__file__).parent / "train.jsonl"
QUICK = ("--level", "quick", "--only")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = {"name": "someone/tiny-7b", "revision": COMMIT}
Write = Callable[..., str]


def test_data_that_are_missing_empty_or_broken_are_named_one_by_one(
    examined: Examine, written: Write, tmp_path: Path, faults: Faults
) -> None:
    shutil.copy(ROWS, tmp_path / "train.jsonl")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text("{'a': 1}\n", encoding="utf-8")
    names = ("trian.jsonl", "empty.jsonl", "broken.jsonl")
    data = {
        "sources": [str(tmp_path / name) for name in names],
        "validation": str(tmp_path / "held" / "out.jsonl"),
        "template": str(tmp_path / "chat.jinja"),
    }
    seen = examined(*QUICK, "data-files", "--config", written(data=data))
    for fault, words, exit_code in (
        ("data file missing", "trian.jsonl", 66),
        ("data file empty", "empty.jsonl", 65),
        ("data file broken", "broken.jsonl:1", 65),
        ("validation file missing", "out.jsonl", 66),
        ("template file missing", "chat.jinja", 66),
    ):
        finding = seen.one("data-files", containing=words)
        faults.seen(fault, made="real", finding=finding, check="data-files", exit_code=exit_code)
    near = seen.one("data-files", containing="trian.jsonl")["remedy"]
    assert near == f"loradock train --set data.sources.0.path={tmp_path / 'train.jsonl'} ..."
    assert seen.exit_code == 66


def test_a_disk_that_holds_neither_the_checkpoints_nor_the_model_is_named(
    examined: Examine, written: Write, cache: dict[str, str | None], tmp_path: Path, faults: Faults
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    within = namespace(f"mount -t tmpfs -o size=1m none {small}")
    config = written(output=str(small / "run"), lora={"rank": 256})
    seen = examined(*QUICK, "model-space", "--config", config, within=within).one("model-space")
    faults.seen("no space for checkpoints", made="real", finding=seen, check="model-space", exit_code=73)
    snapshot = f"{small}/hub/models--someone--tiny-7b/snapshots/{COMMIT}"
    index = '{"metadata": {"total_size": 140000000}, "weight_map": {}}'
    begun = f"mount -t tmpfs -o size=1m none {small}\nmkdir -p {snapshot}\n"
    within = namespace(f"{begun}echo '{index}' > {snapshot}/model.safetensors.index.json")
    env = {**cache, "HF_HOME": str(small)}
    seen = examined(*QUICK, "model-space", "--config", written(model=HUB), env=env, within=within).one("model-space")
    faults.seen("no space for the model", made="real", finding=seen, check="model-space", exit_code=73)
