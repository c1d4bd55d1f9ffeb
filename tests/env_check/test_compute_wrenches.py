"""Planted wrong results: each kernel that is damaged (tests/env_check/wrenches) is found, and named, by its own check.

A process costs ten seconds of imports, so each also has a fault of Triton's or of the network, told in its own check.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from env_check.conftest import namespace
from env_check.damage import damaged

from loradock import demo

pytestmark = pytest.mark.thin(6)
DEMO = Path(demo.__file__).parent


def configured(folder: Path, attention: str) -> str:
    """A configuration of the demo's model with this attention."""
    file = folder / "run.yaml"
    file.write_text(
        f"model: {{name: {DEMO / 'base'}, attention: {attention}}}\n"
        f"data: {{sources: [{{path: {DEMO / 'train.jsonl'}}}]}}\n"
    )
    return str(file)


def cache(folder: Path, options: str) -> tuple[list[str], dict[str, str | None]]:
    """Triton's cache on a mount with these options: what to run within, and the environment."""
    place = folder / "triton"
    place.mkdir()
    return namespace(f"mount -t tmpfs -o {options} none {place}"), {"TRITON_CACHE_DIR": f"{place}/cache", "CC": None}


def test_a_wrong_nf4_table_gradient_and_adamw_are_told_apart_and_training_names_quantisation(
    examined, faults, tmp_path
):
    within, env = cache(tmp_path, "size=64k")
    env = {**env, **damaged("nf4_table", "quantised_gradient", "fused_adamw"), "GLOO_SOCKET_IFNAME": "nosuch0"}
    seen = examined("--only", "collective,optimizer,triton,quantised-linear,training", within=within, env=env)
    table = seen.one("quantised-linear", containing="published table")
    faults.seen("two values of the NF4 table swapped", made="real", finding=table, check="quantised-linear")
    gradient = seen.one("quantised-linear", containing="gradient")
    faults.seen("gradient of a 4-bit layer halved", made="real", finding=gradient, check="quantised-linear")
    assert [each["check"] for each in seen.content["findings"]].count("quantised-linear") == 2
    training = seen.one("training", containing="quantisation is wrong")
    faults.seen("4-bit weights unpacked wrongly", made="real", finding=training, check="training")
    fused = seen.one("optimizer")
    assert fused["remedy"] == "loradock train --set train.optimizer=adamw ..."
    faults.seen("fused AdamW steps twice as far", made="real", finding=fused, check="optimizer")
    gloo = seen.one("collective")
    assert (gloo["severity"], gloo["remedy"]) == ("warning", "unset GLOO_SOCKET_IFNAME")
    faults.seen("GLOO_SOCKET_IFNAME names no interface", made="real", finding=gloo, check="collective")
    full = seen.one("triton", containing="is full")
    faults.seen("TRITON_CACHE_DIR on a full file system", made="real", finding=full, check="triton")
    assert seen.exit_code == 71


def test_a_wrong_mask_in_sdpa_is_found_and_training_names_that_attention(examined, faults):
    env = {**damaged("sdpa_mask"), "CC": None}
    within = namespace("PATH=/nonexistent")
    seen = examined("--only", "triton,attention-kernels,training", within=within, env=env)
    kernels = seen.one("attention-kernels")
    assert kernels["what"].startswith("sdpa flash, sdpa math, sdpa attention")
    assert "eager" in seen.one("attention-kernels", containing="matches float64")["what"]
    faults.seen("SDPA sees one token ahead", made="real", finding=kernels, check="attention-kernels")
    training = seen.one("training")
    assert "eager" not in training["what"]
    assert training["remedy"] == "loradock train --set model.attention=eager ..."
    faults.seen("SDPA sees one token ahead, in training", made="real", finding=training, check="training")
    faults.seen("C compiler removed", made="real", finding=seen.one("triton"), check="triton")


def test_eager_attention_without_its_mask_and_one_that_is_wrong_in_4_bit_models_alone_are_told_apart(
    examined, faults, tmp_path
):
    config = configured(tmp_path, "eager")
    within, env = cache(tmp_path, "noexec")
    env = {**env, **damaged("eager_mask", "flash_with_nf4")}
    only = "triton,attention-kernels,training"
    seen = examined("--only", only, "--config", config, within=within, env=env)
    kernels, training = seen.one("attention-kernels"), seen.one("training", containing="eager attention is wrong")
    assert kernels["severity"] == training["severity"] == "error"
    assert "sdpa" not in kernels["what"] + training["what"]
    faults.seen("eager attention ignores its mask", made="real", finding=kernels, check="attention-kernels")
    faults.seen("eager attention ignores its mask, in training", made="real", finding=training, check="training")
    pair = seen.one("training", containing="together")
    assert pair["what"].startswith("sdpa flash attention and nf4")
    faults.seen("a kernel wrong in 4-bit models alone", made="real", finding=pair, check="training")
    refused = seen.one("triton", containing="noexec mount")
    assert refused["remedy"].startswith("export TRITON_CACHE_DIR=")
    faults.seen("TRITON_CACHE_DIR on a noexec mount", made="real", finding=refused, check="triton")


def test_a_check_that_breaks_is_undecided_and_hinders_no_run(examined):
    seen = examined("--only", "training", env=damaged("twin_refused"))
    (found,) = seen.content["findings"]
    assert (found["severity"], found["remedy"]) == (
        "warning",
        "loradock env-check --only gpu,packages,compute --report",
    )
    assert found["what"].startswith("undecided on cpu in float32: the check itself failed at ")
    assert "not a multiple of the number of attention heads (6).; please report it" in found["what"]
    assert seen.exit_code == 0
