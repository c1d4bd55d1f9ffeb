"""`loradock plan` as a person types it: with config.json and a tokenizer alone, with rows and without."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from faults.forking import Forking
from terminal import lines_at
from tiny import BASE, write_rows

from bench.train.models import MODELS
from loradock.analysis.report.audit import set_line
from loradock.cli import cli
from loradock.errors import OutOfMemory, UsageError
from loradock.plan import gpu_table

pytestmark = pytest.mark.thin(2)

MISTRAL = {
    **{name: value for name, value in MODELS["mistral-7b"].items() if name != "source"},
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DESCRIBED = ("--rows", "5000", "--mean-tokens", "155", "--longest-tokens", "518")


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with config.json and the demo's tokenizer, without a weight."""
    folder = tmp_path_factory.mktemp("mistral")
    (folder / "config.json").write_text(json.dumps(MISTRAL), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        if (BASE / name).exists():
            shutil.copy(BASE / name, folder / name)
    return folder


def plan(*arguments: str | Path) -> Result:
    """The command in this process."""
    return CliRunner().invoke(cli, ["plan", *(str(each) for each in arguments)])


def content(*arguments: str | Path) -> dict[str, Any]:
    """What --json prints."""
    result = plan(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def test_a_preset_is_audited_for_a_gpu_that_is_not_here_from_a_config_without_weights(mistral: Path) -> None:
    arguments = ("--preset", "mistral-a10", "--model", mistral, "--gpu", "a10", *DESCRIBED, "--price-per-hour", "0.75")
    result = plan(*arguments)
    assert result.exit_code == 0, result.exception
    text = " ".join(result.stdout.split())
    for words in (
        "MistralForCausalLM",
        "NVIDIA A10, 22 GiB, sm86",
        "memory expected",
        "possible improvements",
        "already good",
        "considered and rejected",
        "conservative (no risk to accuracy or stability)",
        "at the given price",
        "--set train.checkpointing=auto",
    ):
        assert words in text, words
    assert "diagnose" in result.stderr


def test_the_line_it_proposes_is_taken_and_leaves_nothing_conservative_to_gain(mistral: Path) -> None:
    arguments = ("--preset", "mistral-a10", "--model", mistral, "--gpu", "a10", *DESCRIBED)
    before = content(*arguments)
    settings = [part for each in before["conservative"]["settings"] for part in ("--set", each)]
    assert settings
    after = content(*arguments, *settings)
    factor = before["finish"]["seconds"] / after["finish"]["seconds"]
    assert factor == pytest.approx(before["conservative"]["gain"]["expected"], rel=1e-6)
    assert factor > 1.1
    assert after["conservative"]["gain"]["expected"] == pytest.approx(1, abs=0.02)


def test_the_rows_themselves_are_counted_where_they_are_given(mistral: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", rows=64, longest=40)
    found = content(
        "--model", mistral, "--data", rows, "--gpu", "h200", "--set", f"data.cache={tmp_path}",
        "--set", "data.max_length=128", "--set", "data.validation=8",
    )  # fmt: skip
    data = found["plan"]["data"]
    assert (data["train_rows"], data["validation_rows"]) == (56, 8)
    assert 0 < data["supervised_tokens"] < data["tokens"] <= 56 * 128
    assert found["finish"]["tokens"] == pytest.approx(data["tokens"], abs=1)
    assert found["finish"]["steps"] == 4


def test_it_plans_for_the_machine_it_runs_on_where_no_gpu_is_named(llama: Path) -> None:
    found = content("--model", llama, "--rows", "100", "--mean-tokens", "20")
    decided = {each["name"]: each["value"] for each in found["plan"]["decisions"]}
    assert decided["device"] in ("cpu", "cuda")


def test_machines_multiply_the_processes_of_a_named_gpu_and_of_this_machine(llama: Path) -> None:
    asked = ("--model", llama, "--rows", "100", "--mean-tokens", "20", "--batch-size", "8", "--nodes", "4")
    for machine in ((), ("--gpu", "a10", "--gpus", "2")):
        found = content(*asked, *machine)
        (mode,) = [each["value"] for each in found["plan"]["decisions"] if each["name"] == "parallel"]
        assert mode == "ddp"
    refused = plan(*asked, "--gpu", "a10", "--gpus", "4").exception
    assert getattr(refused, "exit_code", None) == 78
    assert "16 processes" in str(refused)


def test_what_gpus_send_one_another_is_said_not_to_be_counted(mistral: Path) -> None:
    """Half a byte a weight of the linear layers, two the others; twice, seven of eight parts come from the others."""
    shared = plan("--model", mistral, *DESCRIBED, "--gpu", "a10", "--gpus", "8", "--set", "train.parallel=fsdp").stdout
    linear, all_weights = 6_979_321_856, 7_241_732_096
    a_pass = 2 * 7 / 8 * (linear / 2 + 2 * (all_weights - linear)) / 2**30
    assert f"communication between 8 ranks, {a_pass:.2f} GiB of weights a pass and " in shared
    whole = plan("--model", mistral, *DESCRIBED, "--gpu", "h100", "--gpus", "8").stdout
    assert "not included: communication between 8 ranks, 280.0 MiB of gradients per step" in whole
    assert "not included: communication" not in plan("--model", mistral, *DESCRIBED, "--gpu", "h100").stdout


@pytest.mark.parametrize(("gpu", "length"), [("rtx-2080-ti", 2048), ("rtx-3090", 32768)])
def test_a_model_that_does_not_fit_a_gpu_may_fit_several(mistral: Path, gpu: str, length: int) -> None:
    large = ("--set", "model.quantization=none", "--set", f"data.max_length={length}")
    refused = plan("--model", mistral, *DESCRIBED, "--gpu", gpu, *large).exception
    assert isinstance(refused, OutOfMemory)
    assert "several GPUs (--gpus, loradock launch), or a larger GPU" in str(refused.hint)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 64, "--model DIR"),
        (("--model", "."), 64, "--data FILE, or --rows 10000"),
        (("--rows", "10"), 64, "--rows 10000 --mean-tokens 166"),
        (("--rows", "10", "--mean-tokens", "9", "--longest-tokens", "8"), 64, "--longest-tokens 9"),
        (("--model", "./nowhere", *DESCRIBED), 66, "give a directory"),
        (("--gpu", "a11", *DESCRIBED), 64, "did you mean a10"),
        (("--data", "rows.jsonl", *DESCRIBED), 64, "leave out --data, or --rows and --mean-tokens"),
    ],
)
def test_what_cannot_be_planned_ends_with_what_to_type(arguments: tuple[str, ...], code: int, words: str) -> None:
    given = arguments or DESCRIBED
    error = plan(*given).exception
    assert getattr(error, "exit_code", None) == code
    assert words in str(error)


def test_the_help_lists_the_gpus() -> None:
    words = plan("--help").stdout.replace(",", " ").split()
    assert {gpu.key for gpu in gpu_table.table()} <= set(words)
    assert "this command writes nothing there" in " ".join(words)


def test_a_directory_without_a_config_is_named(tmp_path: Path) -> None:
    error = plan("--model", tmp_path, *DESCRIBED).exception
    assert f"{tmp_path} has no config.json" in str(error)


def test_a_terminal_of_80_columns_shows_all_of_it_and_lines_to_type_in_one_piece(
    mistral: Path, tmp_path: Path, forking: Forking
) -> None:
    lines = lines_at(
        forking, tmp_path, 80, "plan", "--preset", "seed-003", "--model", mistral, "--gpu", "a10", *DESCRIBED
    )
    long = [line for line in lines if len(line) > 80]
    assert long
    assert all(line.lstrip().startswith("--set ") for line in long)
    assert any(line.strip() == "--set engine=fast --set train.optimizer=auto" for line in lines)
    findings = lines[lines.index("possible improvements") + 1 : lines.index("phases")]
    assert len(findings) < 7 * len([line for line in findings if "risk to accuracy" in line])
    assert "7,241,732,096 weights" in " ".join(" ".join(lines).split())  # wherever the line is wrapped


def test_nothing_that_is_printed_is_read_as_markup(mistral: Path, tmp_path: Path) -> None:
    odd = tmp_path / "[bold]odd"
    shutil.copytree(mistral, odd)
    out = plan("--model", odd, "--gpu", "a10", "--set", "checkpoints.every=1", *DESCRIBED).stdout
    assert "[bold]odd" in out.replace("\n", "")
    assert set_line(("lora.targets=[q_proj, k_proj]",)) == "--set 'lora.targets=[q_proj, k_proj]'"


def test_a_pipe_gets_no_trailing_blanks(mistral: Path) -> None:
    lines = plan("--model", mistral, "--gpu", "a10", *DESCRIBED).stdout.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("price", ["nan", "inf", "1e400"])
@pytest.mark.parametrize("command", ["plan", "diagnose"])
def test_a_price_that_is_no_number_is_refused(command: str, price: str) -> None:
    done = CliRunner().invoke(cli, [command, "--price-per-hour", price])
    assert isinstance(done.exception, UsageError)
    assert (done.exception.exit_code, price in done.exception.what) == (64, True)


def test_described_rows_beyond_the_longest_allowed_lose_no_token_unless_they_are_cut(mistral: Path) -> None:
    long = ("--rows", "1000", "--mean-tokens", "8000", "--longest-tokens", "16000", "--gpu", "h200")
    arguments = ("--model", mistral, *long, "--epochs", "1", "--set", "data.max_length=2048")
    split = content(*arguments)
    assert split["finish"]["tokens"] == pytest.approx(8_000_000, rel=0.02)
    cut = plan(*arguments, "--set", "data.long_rows=truncate")
    assert "warning: over-long rows: " in cut.stdout
    assert "tokens are not trained on" in cut.stdout
    auto = plan("--model", mistral, *long[:4], "--longest-tokens", "90000", *long[6:])
    assert "no row is longer" not in auto.stdout
