"""Every command in README.md's code blocks, as it stands there: run, or in a table with the reason why not.

They run in one folder that has what the README names, with a tiny model in the place of the large ones; `scripts/run`
there starts this Python (what it does besides is for test_repo_scripts), or is forked from one that has all imported.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from faults.door import door
from faults.forking import Forking
from proven import knowing, unchecked
from tiny import make_llama, write_pairs, write_rows

from loradock.cli import cli
from loradock.data.formats import alpaca
from loradock.demo.exam import DIRECTORY

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
ASKED, ANSWERED = next(
    (match[1], match[2])
    for block in BLOCKS
    for line in block.splitlines()
    if (match := re.fullmatch(r"(.* chat runs/demo-001)\s+# (.+)", line))
)
"""The example of `chat`, and what it says that the demo answers."""
COMMANDS = [re.sub(r"\s+#.*", "", line) for block in BLOCKS for line in block.splitlines() if line.strip()]
TRAINS = "scripts/run train run.yaml --output runs/second"
SLOW = (
    "scripts/run train --demo",
    "scripts/run train --model ./Mistral-7B-v0.3 --data rows.jsonl --data more.parquet --output runs/first",
    "scripts/run train run.yaml --set lora.rank=32 --lr 1e-4",
    'scripts/run train --model "$(scripts/real-model smollm2)" --data rows.jsonl',
    "scripts/run train --preset commonsense-adapters --model ./base --data commonsense.json",
    "scripts/run launch --nproc 2 train run.yaml",
    "scripts/run launch train run.yaml",
    "scripts/run env-check",
    "scripts/run env-check --config run.yaml",
    "scripts/run env-check --level bench --json >a.json",
    "scripts/run net-check --nproc 2",
    "scripts/run diagnose run.yaml --budget 10m",
    "scripts/run profile run.yaml",
)
NEEDS_AN_IMAGE = "needs a container engine and the image of this version; "
NOT_RUN = {
    "scripts/test": "runs this test",
    "scripts/run build": NEEDS_AN_IMAGE + "tests/image/test_build.py builds one",
    "scripts/run bundle create run.tar --image loradock:0.1.0 --model ./base --data rows.jsonl": NEEDS_AN_IMAGE
    + "tests/image/test_bundle_image.py has a light one",
    "docker run --gpus all -v $PWD:/workspace --user $(id -u):0 loradock:0.1.0 train run.yaml": NEEDS_AN_IMAGE
    + "and a GPU; tests/image/test_container.py trains in one on a CPU",
    "docker run --rm loradock:0.1.0 lock verify": NEEDS_AN_IMAGE + "tests/image/test_container.py",
}
# What a verdict about the machine may end with.
VERDICTS = {"scripts/run env-check": (0, 71), "scripts/run net-check": (0, 71)}
MADE = ("runs", "merged", "demo-merged")
"""What commands of the README write and later ones read."""
RUN = """\
model: {name: ./base}
data: {sources: [rows.jsonl], max_length: 128}
lora: {rank: 4}
train: {max_steps: 2, global_batch: 16}
limits: {peer_seconds: 120}
"""


def is_read_later(training: str) -> bool:
    """Whether another command of the README reads what this one writes."""
    output = training.rpartition("--output ")[2]
    return any(output in each for each in COMMANDS if each != training)


@pytest.fixture(scope="module")
def place(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README's commands name."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("readme")
    knowing(folder / "cache")
    (folder / "base").symlink_to(llama)
    make_llama(folder / "Mistral-7B-v0.3", max_position_embeddings=4096)
    write_pairs(folder / "pairs.jsonl")
    preferences = [{"question": f"{n} stones", "chosen": "lamp", "rejected": "cat cat"} for n in range(48)]
    (folder / "preferences.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in preferences), "utf-8")
    write_rows(folder / "rows.jsonl", rows=48)
    rows = pd.read_json(write_rows(folder / "more.jsonl", rows=200, seed=1), lines=True)
    rows.to_parquet(folder / "more.parquet")
    rows.to_json(folder / "commonsense.json", orient="records")
    (folder / "run.yaml").write_text(RUN, encoding="utf-8")
    (folder / "any.yaml").write_bytes((ROOT / "docs" / "examples" / "kubernetes" / "job.yaml").read_bytes())
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "src" / "loradock" / "demo").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "loradock" / "demo" / "heldout.jsonl", folder / "src" / "loradock" / "demo")
    (folder / "scripts").mkdir()
    cold = f'exec ${{LORADOCK_TESTS_RUN:-{shlex.quote(sys.executable)} -m loradock}} "$@"'
    for name, does in (("run", cold), ("real-model", "echo ./base")):
        script = folder / "scripts" / name
        script.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        script.chmod(0o755)
    return folder


def typed(command: str, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The line in a shell, as a person types it."""
    environ = os.environ | {"LORADOCK_CACHE": str(place / "cache"), "NO_COLOR": "1"} | variables
    return subprocess.run(["bash", "-c", command], cwd=place, env=environ, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def forked(forking: Forking) -> Iterator[dict[str, str]]:
    """The variable with which `scripts/run` takes none of the seconds of a cold start."""
    with door(forking) as words:
        yield {"LORADOCK_TESTS_RUN": " ".join(words)}


@pytest.fixture(scope="module")
def trained(place: Path, forked: dict[str, str]) -> Path:
    """The folder after one of its trainings, with a copy of the run under the other name that a report is made of.

    The demo is trained for a few steps, too; tests/merge/test_demo.py trains it whole.
    """
    demo = f"scripts/run train --demo --set train.max_steps=4 {unchecked('the README does not type it')}"
    for command, variables in ((TRAINS, {}), (demo, forked)):
        done = typed(command, place, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(place / "runs" / "second", place / "runs" / "first")
    return place


def test_the_tables_name_commands_that_the_readme_has() -> None:
    assert {*SLOW, *NOT_RUN, TRAINS} <= set(COMMANDS)


@pytest.mark.parametrize("command", [each for each in COMMANDS if "loradock:" in each or "scripts/run" in each])
def test_each_command_has_options_that_there_are(
    command: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in place.iterdir():
        if each.name not in MADE:
            (tmp_path / each.name).symlink_to(each)
    for name in MADE:
        for each in ("places", "demo-001"):
            (tmp_path / name / each).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    typed_last = command.split(" | ")[-1]
    typed_last = re.sub(r"\$\(.*?\)", "printed", typed_last)  # the shell puts what a command prints there
    words = shlex.split(re.sub(r"\s*>\S+$", "", typed_last).split("loradock:0.1.0 ")[-1].replace("scripts/run ", ""))
    if "--image" in command:
        words = shlex.split(command.replace("scripts/run ", ""))
    named: click.Command = cli
    context = click.Context(cli)
    while isinstance(named, click.Group):
        found = named.get_command(context, words[0])
        assert found is not None, words[0]
        named, words = found, words[1:]
    named.make_context("loradock", words)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=[pytest.mark.thin(6)] if " train " in each and not is_read_later(each) else [])
        for each in COMMANDS
        if each not in (*SLOW, *NOT_RUN, TRAINS)
    ],
)
def test_a_command_of_the_readme_does_what_it_says(command: str, trained: Path, forked: dict[str, str]) -> None:
    """A training starts cold: a forked one is another Python, for which nothing is proven, and looks at all again."""
    done = typed(command, trained, **({} if " train " in command else forked))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_training_again_shows_that_it_is_finished(trained: Path, forked: dict[str, str]) -> None:
    done = typed(TRAINS, trained, **forked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is finished" in done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("command", SLOW)
def test_a_slow_command_of_the_readme_does_what_it_says(command: str, place: Path) -> None:
    shutil.rmtree(place / "runs", ignore_errors=True)
    done = typed(command, place)
    expected = next((codes for start, codes in VERDICTS.items() if command.startswith(start)), (0,))
    assert done.returncode in expected, done.stdout + done.stderr


def test_the_question_of_the_chat_example_has_the_form_of_the_demos_training_rows(
    place: Path, forked: dict[str, str]
) -> None:
    piped = typed(ASKED.split(" | ")[0], place, **forked).stdout.replace("\\\n", "\n").strip()
    instruction, words = piped.split("\n\n")
    row = {"instruction": instruction, "input": words, "output": ANSWERED}
    assert alpaca.conversation(row).messages[0].content == piped
    rows = (DIRECTORY / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert instruction in {json.loads(each)["instruction"] for each in rows}
    assert str(len(words.split(", "))) == ANSWERED


@pytest.mark.full
@pytest.mark.parametrize("instructions", ["avx2", "avx512"])
def test_the_demo_answers_the_chat_example_as_the_readme_says_on_each_instruction_set(
    instructions: str, place: Path
) -> None:
    """A CPU without the second one takes the best that it has."""
    shutil.rmtree(place / "runs", ignore_errors=True)
    for command, said in (("scripts/run train --demo", "accuracy before"), (ASKED, ANSWERED)):
        done = typed(command, place, ATEN_CPU_CAPABILITY=instructions)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout.splitlines()[-1]
