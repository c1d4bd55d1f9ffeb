"""Planted wrong results: each kernel that is damaged (tests/checks/wrenches) is found, and named, by its own check."""

from __future__ import annotations

from pathlib import Path

from loradock import demo

WRENCHES = Path(__file__).with_name("wrenches")
DEMO = Path(demo.__file__).parent


def damaged(*names: str) -> dict[str, str]:
    """The environment of a process whose libraries are damaged so."""
    return {"PYTHONPATH": str(WRENCHES), "LORADOCK_WRENCHES": " ".join(names), "OMP_NUM_THREADS": "2"}


def configured(folder: Path, attention: str) -> str:
    """A configuration of the demo's model with this attention."""
    file = folder / "run.yaml"
    file.write_text(
        f"model: {{name: {DEMO / 'base'}, attention: {attention}}}\n"
        f"data: {{sources: [{{path: {DEMO / 'train.jsonl'}}}]}}\n"
    )
    return str(file)


def test_a_wrong_nf4_table_and_a_wrong_gradient_are_told_apart_and_training_names_quantisation(examined, faults):
    seen = examined("--only", "quantised-linear,training", env=damaged("nf4_table", "quantised_gradient"))
    table = seen.one("quantised-linear", containing="published table")
    faults.seen("two values of the NF4 table swapped", made="real", finding=table, check="quantised-linear")
    gradient = seen.one("quantised-linear", containing="gradient")
    faults.seen("gradient of a 4-bit layer halved", made="real", finding=gradient, check="quantised-linear")
    assert [each["check"] for each in seen.content["findings"]].count("quantised-linear") == 2
    training = seen.one("training", containing="quantisation is at fault")
    faults.seen("4-bit weights unpacked wrongly", made="real", finding=training, check="training")
    assert seen.exit_code == 71


def test_a_wrong_mask_in_sdpa_is_found_and_training_names_that_attention(examined, faults):
    seen = examined("--only", "attention-kernels,training", env=damaged("sdpa_mask"))
    kernels = seen.one("attention-kernels")
    assert kernels["what"].startswith("sdpa flash, sdpa math attention")
    assert "eager" in seen.one("attention-kernels", containing="matches float64")["what"]
    faults.seen("SDPA sees one token ahead", made="real", finding=kernels, check="attention-kernels")
    training = seen.one("training")
    assert "eager" not in training["what"]
    assert training["remedy"] == "--set model.attention=eager"
    faults.seen("SDPA sees one token ahead, in training", made="real", finding=training, check="training")


def test_eager_attention_without_its_mask_is_an_error_where_the_configuration_asks_for_it(examined, faults, tmp_path):
    config = configured(tmp_path, "eager")
    seen = examined("--only", "attention-kernels,training", "--config", config, env=damaged("eager_mask"))
    kernels, training = seen.one("attention-kernels"), seen.one("training")
    assert kernels["severity"] == training["severity"] == "error"
    assert "sdpa" not in kernels["what"] + training["what"]
    faults.seen("eager attention ignores its mask", made="real", finding=kernels, check="attention-kernels")
    faults.seen("eager attention ignores its mask, in training", made="real", finding=training, check="training")


def test_an_attention_that_is_wrong_in_4_bit_models_alone_is_named_together_with_nf4(examined, faults):
    seen = examined("--only", "training", env=damaged("flash_with_nf4"))
    finding = seen.one("training")
    assert finding["what"].startswith("sdpa flash")
    assert "together" in finding["what"]
    faults.seen("a kernel wrong in 4-bit models alone", made="real", finding=finding, check="training")


def test_damaged_products_and_a_damaged_fused_adamw_are_each_found_by_their_own_check(examined, faults):
    seen = examined("--only", "dtypes,optimizer", env=damaged("float32_product", "fused_adamw"))
    faults.seen("float32 products in bfloat16", made="real", finding=seen.one("dtypes"), check="dtypes")
    finding = seen.one("optimizer")
    assert finding["remedy"] == "--set train.optimizer=adamw"
    faults.seen("fused AdamW steps twice as far", made="real", finding=finding, check="optimizer")
