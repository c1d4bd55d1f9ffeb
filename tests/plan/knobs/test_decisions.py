"""Every decision, in each of its branches: what is decided, and that the reason names the figure behind it."""

from __future__ import annotations

from typing import Any

import pytest
from facts.recorded import config, data, decision, gpus, machine, models, planned

from loradock.errors import EnvironmentUnfit, OutOfMemory
from loradock.plan.plan import DataLoader

OLD = tuple(key for key, gpu in gpus().items() if gpu.capability < (8, 0))
NEW = tuple(key for key in gpus() if key not in OLD)
PEFT = config(engine="peft")
LONG = data(mean=1800, longest=2048, limit=2048)


@pytest.mark.parametrize("gpu", OLD)
def test_a_gpu_before_sm80_gets_float16_sdpa_and_no_tf32(gpu: str) -> None:
    plan = planned(facts=machine(gpu, flash=True), model=models()["tinyllama-1.1b"])
    assert (plan.compute_dtype.value, plan.attention.value, plan.tf32.value) == ("float16", "sdpa", False)
    architecture = gpus()[gpu].architecture
    assert all(architecture in decision(plan, name).why for name in ("device", "compute_dtype", "attention", "tf32"))


@pytest.mark.parametrize("gpu", NEW)
def test_a_gpu_from_sm80_on_gets_bfloat16_flash_attention_and_tf32(gpu: str) -> None:
    plan = planned(facts=machine(gpu, flash=True))
    assert plan.compute_dtype.value == "bfloat16"
    assert plan.attention.value == "flash_attention_2"
    assert plan.tf32.value is True
    architecture = gpus()[gpu].architecture
    assert all(architecture in decision(plan, name).why for name in ("device", "compute_dtype", "tf32"))
    assert "2.8.3" in decision(plan, "attention").why


def test_without_the_package_attention_is_sdpa_and_says_that_it_is_not_installed() -> None:
    found = decision(planned(facts=machine("h200")), "attention")
    assert found.value == "sdpa"
    assert "not installed" in found.why


def test_float32_compute_leaves_neither_flash_attention_nor_tf32() -> None:
    plan = planned(facts=machine("h200", flash=True), config=config(model={"compute_dtype": "float32"}))
    assert (plan.attention.value, plan.tf32.value) == ("sdpa", False)
    assert all("float32" in decision(plan, name).why for name in ("attention", "tf32"))


def test_without_a_gpu_the_run_is_on_the_cpu_in_float32_unpacked() -> None:
    plan = planned(facts=machine(), model=models()["tinyllama-1.1b"], config=PEFT)
    assert plan.device.value == "cpu"
    assert "no GPU" in decision(plan, "device").why
    assert (plan.compute_dtype.value, plan.packing.value, plan.tf32.value) == ("float32", False, False)
    loader = DataLoader(workers=0, pin_memory=False, persistent_workers=False, prefetch_factor=None)
    assert plan.dataloader.value == loader


def test_the_cpu_asked_for_is_used_though_a_gpu_is_there() -> None:
    plan = planned(facts=machine("h200"), config=config(device="cpu"), model=models()["tinyllama-1.1b"])
    assert (plan.device.value, decision(plan, "device").why) == ("cpu", "set in the configuration")


def test_each_process_looks_at_the_gpu_of_its_local_rank() -> None:
    both = (gpus()["h200"], gpus()["t4"])
    plan = planned(
        facts=machine(gpus=both, world_size=2, rank=1, local_rank=1), model=models()["tinyllama-1.1b"], data=data()
    )
    assert "Tesla T4, 15 GiB, sm75" in decision(plan, "device").why


@pytest.mark.parametrize(
    ("gpu", "asked", "said"),
    [
        (None, {"device": "cuda"}, "no GPU is visible"),
        (None, {"model": {"compute_dtype": "float16"}}, "float16 needs a GPU"),
        (None, {"model": {"attention": "flash_attention_2"}}, "needs a GPU"),
        (None, {"train": {"optimizer": "paged_adamw_8bit"}}, "needs a GPU"),
        (None, {"train": {"optimizer": "adamw_8bit"}}, "needs a GPU"),
        ("t4", {"model": {"compute_dtype": "bfloat16"}}, "sm75"),
        ("t4", {"model": {"attention": "flash_attention_2"}}, "sm75"),
        ("h200", {"model": {"attention": "flash_attention_2"}}, "not installed"),
    ],
)
def test_what_the_machine_cannot_do_is_refused_with_a_setting_to_type(
    gpu: str | None, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(EnvironmentUnfit, match=said) as refused:
        planned(facts=machine(gpu), config=config(**asked))
    assert refused.value.exit_code == 71
    assert "--set" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("asked", "name", "value"),
    [
        ({"model": {"compute_dtype": "float16"}}, "compute_dtype", "float16"),
        ({"model": {"attention": "eager"}}, "attention", "eager"),
        ({"train": {"packing": False}}, "packing", False),
        ({"train": {"checkpointing": True}}, "checkpointing", True),
        ({"train": {"optimizer": "adamw_8bit"}}, "optimizer", "adamw_8bit"),
        ({"train": {"micro_batch": 5}}, "micro_batch", 5),
        ({"train": {"tf32": False}}, "tf32", False),
        ({"train": {"compile": "default"}}, "compile", "default"),
    ],
)
def test_what_the_user_asked_for_is_decided_and_said_to_be_asked_for(
    asked: dict[str, Any], name: str, value: Any
) -> None:
    found = decision(planned(facts=machine("h200", flash=True), config=config(**asked)), name)
    assert (found.value, found.why) == (value, "set in the configuration")


def test_uneven_rows_are_packed_and_rows_of_like_length_are_not() -> None:
    uneven = decision(planned(facts=machine("h200"), config=PEFT), "packing")
    even = decision(planned(facts=machine("h200"), data=data(mean=950, longest=1024), config=PEFT), "packing")
    assert uneven.value is True
    assert "166 of 1024" in uneven.why
    assert even.value is False
    assert "7%" in even.why


def test_a_7b_model_checkpoints_long_rows_on_24_gib_and_keeps_short_ones_whole_on_an_h200() -> None:
    tight = decision(planned(facts=machine("rtx-4090"), data=LONG, config=PEFT), "checkpointing")
    roomy = decision(planned(facts=machine("h200"), config=PEFT), "checkpointing")
    assert tight.value is True
    assert "of 21.6" in tight.why
    assert roomy.value is False
    assert "GiB of 126.4" in roomy.why


def test_checkpointing_is_judged_by_the_rows_that_a_step_can_fill() -> None:
    large = config(engine="peft", train={"global_batch": 128})
    few = planned(facts=machine("rtx-3090"), model=models()["phi-3-mini"], config=PEFT)
    many = planned(facts=machine("rtx-3090"), model=models()["phi-3-mini"], config=large)
    assert (few.checkpointing.value, many.checkpointing.value) == (False, True)


def test_the_micro_batch_halves_until_it_fits() -> None:
    found = {
        gpu: planned(facts=machine(gpu), model=models()["llama-3-8b"], data=LONG, config=PEFT).micro_batch.value
        for gpu in ("rtx-4090", "t4", "rtx-2080-ti")
    }
    assert found == {"rtx-4090": 8, "t4": 4, "rtx-2080-ti": 2}


def test_the_micro_batch_is_a_power_of_two_within_a_ranks_share_of_the_step() -> None:
    even = data(mean=60, longest=64, limit=64)
    for world, expected in ((1, 16), (2, 8), (5, 4), (20, 1)):
        facts = machine("h200", world_size=world)
        asked = config(engine="peft", train={"global_batch": 20})
        assert planned(facts=facts, data=even, config=asked).micro_batch.value == expected


def test_the_micro_batch_stops_growing_where_the_device_is_busy() -> None:
    even = data(mean=1000, longest=1024)
    big = config(engine="peft", train={"global_batch": 512})
    gpu = decision(
        planned(facts=machine("b200"), model=models()["tinyllama-1.1b"], data=even, config=big), "micro_batch"
    )
    cpu = decision(planned(facts=machine(), model=models()["tinyllama-1.1b"], data=even, config=big), "micro_batch")
    assert (gpu.value, cpu.value) == (16, 4)
    assert "16 x 1024 tokens" in gpu.why


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-4090", "a10", "l4"])
def test_a_70b_model_on_a_24_gib_gpu_is_refused_before_it_is_loaded(gpu: str) -> None:
    with pytest.raises(OutOfMemory, match=r"base weights need about \d+\.\d GiB") as refused:
        planned(facts=machine(gpu), model=models()["llama-3-70b"])
    assert refused.value.exit_code == 80
    assert gpus()[gpu].name in refused.value.what
    assert "smaller" in (refused.value.hint or "")
    assert "max_length" not in (refused.value.hint or "")


def test_a_row_too_long_for_the_gpu_is_refused_with_a_shorter_length_to_type() -> None:
    long = data(mean=30_000, longest=32_768, limit=32_768)
    with pytest.raises(OutOfMemory, match="one row of 32768 tokens") as refused:
        planned(facts=machine("rtx-2080-ti"), data=long)
    assert "--set data.max_length=16384" in (refused.value.hint or "")


def test_where_checkpointing_was_switched_off_the_remedy_is_to_switch_it_on() -> None:
    with pytest.raises(OutOfMemory) as refused:
        planned(facts=machine("rtx-2080-ti"), data=LONG, config=config(train={"checkpointing": False}))
    assert refused.value.hint == "--set train.checkpointing=true"


def test_the_fast_engine_says_what_an_optimiser_of_8_bits_would_save() -> None:
    plans = [planned(facts=machine(gpu), config=config(lora={"rank": 64})) for gpu in ("a10", "h200")]
    small, large = (decision(plan, "optimizer").why for plan in plans)
    assert "only one (8 bits would save 955 MiB, " in small
    assert "only one (8 bits would save 955 MiB, " in large
    assert small != large
    assert "8 bits" not in decision(planned(facts=machine(), model=models()["tinyllama-1.1b"]), "optimizer").why


def test_the_optimiser_is_paged_only_where_memory_demands_it() -> None:
    wide = config(engine="peft", lora={"rank": 192})
    roomy = decision(planned(facts=machine("a10"), config=wide, data=data(mean=900)), "optimizer")
    tight = decision(planned(facts=machine("t4"), config=wide, data=data(mean=900)), "optimizer")
    assert roomy.value == "adamw_fused"
    assert "3840.0 MiB" in roomy.why
    assert tight.value == "paged_adamw_8bit"
    assert "3840 MiB" in tight.why


@pytest.mark.parametrize(
    ("facts", "rows", "workers", "said"),
    [
        (machine("h200"), 1_999, 0, "1999 rows"),
        (machine("h200"), 2_000, 2, "2 of 16 CPUs"),
        (machine("h200", cpus=2), 50_000, 1, "1 of 2 CPUs"),
        (machine("h200", cpus=1), 50_000, 0, "no free CPU: 1 for 1"),
        (machine("h200", world_size=16), 50_000, 0, "no free CPU: 16 for 16"),
        (machine(), 50_000, 0, "on a CPU"),
    ],
)
def test_loader_workers_follow_the_size_of_the_data_and_the_cpus(
    facts: Any, rows: int, workers: int, said: str
) -> None:
    found = decision(planned(facts=facts, model=models()["tinyllama-1.1b"], data=data(rows=rows)), "dataloader")
    assert found.value.workers == workers
    assert found.value.persistent_workers is (workers > 0)
    assert (found.value.prefetch_factor is None) is (workers == 0)
    assert found.value.pin_memory is facts.has_gpu
    assert said in found.why


def test_threads_are_a_share_of_the_cores_few_beside_a_gpu_and_one_for_a_tiny_model() -> None:
    tiny = models()["tinyllama-1.1b"]
    assert planned(facts=machine(), model=tiny).threads.value == 16
    assert planned(facts=machine(world_size=4), model=tiny).threads.value == 4
    assert planned(facts=machine(cpus=1, world_size=4), model=tiny).threads.value == 1
    assert "16 CPUs for 4 process(es)" in decision(planned(facts=machine(world_size=4), model=tiny), "threads").why
    assert planned(facts=machine("h200")).threads.value == 4
    assert planned(facts=machine("h200", cpus=2)).threads.value == 2
    chosen = decision(planned(config=config(train={"threads": 3}), facts=machine(), model=tiny), "threads")
    assert (chosen.value, chosen.why) == (3, "set in the configuration")


def test_the_loss_over_preferences_is_said_with_all_that_is_added_and_what_it_costs() -> None:
    def of(**preference: Any) -> tuple[str, str]:
        found = decision(planned(config=config(objective="preference", preference=preference)), "loss")
        return found.value, found.why

    value, why = of(loss={"dpo": 0.8, "bco_pair": 0.2}, likelihood_weight=1)
    assert value == "0.8 dpo + 0.2 bco_pair + 1 likelihood of the chosen answers"
    assert "each loss times its weight" in why
    assert "by 1 pass more" in why
    assert of(loss="ipo")[0] == "ipo"
    assert "no pass is added" in of(loss="simpo")[1]
    assert of(loss="kto") == ("kto", "answers are compared with the model as it was, by 3 passes more without gradient")
    assert not decision(planned(), "loss").is_shown
