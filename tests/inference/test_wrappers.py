"""A run on a base that also sees answers, is evaluated, and its card's program loads it by the published class."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from greedy import greedy
from merge.test_wrappers import ROUTERS, make_adapter
from whole_runs import train
from wrappers import KINDS, ONE_KIND, make_wrapper

from loradock.cli import cli
from loradock.use.inference.opener import open_model

SETTINGS = ("train.max_steps=2", "train.learning_rate=1e-2", "lora.rank=4", "train.global_batch=8")
IDS = torch.randint(800, (2, 24), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Path:
    """The directory of a finished run on a base of one of the kinds; in NF4, but for widths below its CPU kernel's."""
    folder = tmp_path_factory.mktemp(request.param)
    base = make_wrapper(folder / "base", request.param)
    stored = f"model.quantization={'none' if request.param in ('gemma4', 'qwen3_5') else 'nf4'}"
    return train(folder / "run", *SETTINGS, stored, model=base, data=rows).directory


def typed(*arguments: str | Path) -> Any:
    """A command in this process."""
    result = CliRunner().invoke(cli, [*map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.thin(6)
def test_a_row_is_answered_in_a_batch_as_alone_and_by_the_merged_model_too(tmp_path: Path, run: Path) -> None:
    typed("merge", run, tmp_path / "merged", "--dtype", "f32")
    opened, merged = open_model(run), open_model(tmp_path / "merged")
    prompts = [list(range(10, 10 + length)) for length in (4, 17, 9)]
    together = [each.ids for each in greedy(opened, prompts, max_new_tokens=8)]
    assert together == [greedy(opened, [prompt], max_new_tokens=8)[0].ids for prompt in prompts]
    assert together == [each.ids for each in greedy(merged, prompts, max_new_tokens=8)]
    with opened.computing():
        own = opened.model(IDS).logits
        with opened.without_adapter():
            assert not torch.equal(opened.model(IDS).logits, own)


@pytest.mark.thin(6)
def test_it_is_evaluated_beside_its_base(tmp_path: Path, run: Path, rows: Path) -> None:
    asked = ("--data", rows, "--metric", "loss", "--limit", "4", "--base", "-o", tmp_path / "out", "--json")
    found = json.loads(typed("evaluate", run, *asked).stdout)
    assert "loss" in json.dumps(found)


@pytest.mark.thin(6)
@pytest.mark.parametrize("run", ONE_KIND, indirect=True)
def test_the_program_in_the_card_loads_the_adapter_by_the_published_class(run: Path) -> None:
    card = (run / "adapter" / "README.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[-1]
    named = json.loads((run.parent / "base" / "config.json").read_text())["architectures"][0]
    assert f"base = {named}.from_pretrained(" in program
    quiet = ("-W", "error:Found missing adapter keys:UserWarning")
    done = subprocess.run(
        [sys.executable, *quiet, "-c", program], cwd=run / "adapter", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.thin(6)
@pytest.mark.parametrize("tower", [0.0, 0.05])
@pytest.mark.parametrize("kind", KINDS)
def test_lora_on_a_tower_changes_no_answer_and_is_told(tmp_path: Path, rows: Path, kind: str, tower: float) -> None:
    base = make_wrapper(tmp_path / "base" / kind, kind)
    saved = make_adapter(
        tmp_path / "adapter", base, target_modules="all-linear", exclude_modules=ROUTERS.get(kind), tower=tower
    )
    opened = open_model(tmp_path / "adapter")
    with torch.no_grad():
        wanted = saved(IDS).logits
    with opened.computing():
        torch.testing.assert_close(opened.model(IDS).logits, wanted, atol=2e-5, rtol=0)
    asked = ("--input", rows, "-o", tmp_path / "answers.jsonl", "--max-new-tokens", "1")
    told = typed("generate", tmp_path / "adapter", *asked).stderr
    how = r"\d+ of them trained" if tower else "none of them trained"
    assert re.search(rf"note: \d+ tensors of .* are passed over \({how}\)", told), told
