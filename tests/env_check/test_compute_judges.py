"""What the compute group makes of figures and of texts, among them those of machines that are not here."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from loradock.env_check.compute import attention_kernels, collective, dtypes, optimizer, quantised_linear, verdict
from loradock.env_check.compute.attention_kernels import Outcome
from loradock.env_check.compute.collective import Exchange
from loradock.env_check.compute.exact_attention import LENGTH, cases
from loradock.env_check.compute.implementations import implementations
from loradock.env_check.compute.places import Device
from loradock.env_check.compute.verdict import Trial
from loradock.env_check.remedies import as_locked
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model.attention_shape import AttentionShape
from loradock.model.nf4 import CODE_BOOK, clear_of_ties, codes, rebuilt

CPU = Device(device="cpu", dtype="float32")
A100 = Device(device="cuda:0", dtype="bfloat16", capability=(8, 0))
T4 = Device(device="cuda:0", dtype="float16", capability=(7, 5))


def facts(**packages: str) -> Facts:
    return Facts(platform="", python="", cpus=2, memory_bytes=2**34, in_container=False, packages=packages)


def again(*names: str) -> str:
    """As here: these packages again."""
    return as_locked(Host(), *names)


def as_found(finding, check: str) -> dict:
    return {**asdict(finding), "check": check}


def test_a_missing_cuda_library_of_bitsandbytes_is_named_with_its_wheel(faults):
    # The text is that of bitsandbytes-foundation/bitsandbytes issue 1905, of CUDA 13 there.
    said = "libnvJitLink.so.13: cannot open shared object file: No such file or directory"
    finding = quantised_linear.judge_library(said.replace("13", "12"), {}, is_gpu=True, again=again)
    assert "--no-deps nvidia-nvjitlink-cu12==12." in finding.remedy
    thirteen = quantised_linear.judge_library(said, {}, is_gpu=True, again=again)
    assert thirteen.remedy.endswith("--no-deps nvidia-nvjitlink")
    made = {"made": "recorded", "check": "quantised-linear"}
    faults.seen("libnvJitLink missing", finding=as_found(finding, "quantised-linear"), **made)


def test_a_stale_cuda_version_for_bitsandbytes_is_to_be_unset(faults):
    # The text is that of bitsandbytes-foundation/bitsandbytes issue 1651.
    said = "Configured CUDA binary not found at /mnt/workspace/bitsandbytes/libbitsandbytes_cuda121.so"
    finding = quantised_linear.judge_library(said, {"BNB_CUDA_VERSION": "121"}, is_gpu=True, again=again)
    made = {"made": "recorded", "check": "quantised-linear"}
    faults.seen("BNB_CUDA_VERSION of another image", finding=as_found(finding, "quantised-linear"), **made)


def test_nccl_without_an_interface_names_its_variable(faults):
    # The text is that of EvolvingLMMs-Lab/open-r1-multimodal issue 7, where NCCL_SOCKET_IFNAME was eth0.
    said = (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2588, internal error - please "
        "report this issue to the NCCL developers, NCCL version 2.21.5\n"
        "ncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found"
    )
    fault = collective.first_line(RuntimeError(said))
    assert fault == "Bootstrap : no socket interface found"
    exchange = Exchange(backend="nccl", ranks=2, faults=(fault, fault))
    finding = collective.judge(exchange, {"NCCL_SOCKET_IFNAME": "eth0"}, ("enp1s0", "lo"), is_needed=True)
    assert finding.remedy == "unset NCCL_SOCKET_IFNAME"
    plain = collective.judge(exchange, {}, ("enp1s0", "lo"), is_needed=True)
    assert "no socket interface" in plain.what
    made = {"made": "recorded", "check": "collective"}
    faults.seen("NCCL_SOCKET_IFNAME of another machine", finding=as_found(finding, "collective"), **made)


def test_a_rank_that_says_nothing_is_counted():
    exchange = Exchange(backend="nccl", ranks=8, faults=(None,) * 7, silent=1)
    finding = collective.judge(exchange, {}, ("lo",), is_needed=True)
    assert finding.what.startswith("1 of 8 processes did not finish")
    assert finding.severity == "error"
    alone = collective.judge(exchange, {}, ("lo",), is_needed=False)
    assert alone.severity == "warning"


SOUND, WRONG = Trial(setting="sdpa"), Trial(setting="sdpa", wrong="w")
BOTH, EAGER = Trial(setting="sdpa", wrong="w", whole="w"), Trial(setting="eager")


@pytest.mark.parametrize(
    ("trials", "named"),
    [
        ({"flash": BOTH, "math": SOUND, "eager": EAGER}, ["flash attention is wrong"]),
        ({"flash": WRONG, "math": SOUND, "eager": EAGER}, ["flash attention and nf4 together"]),
        ({"flash": WRONG, "math": WRONG, "eager": Trial(setting="eager", wrong="w")}, ["quantisation is wrong"]),
        ({"flash": BOTH, "math": BOTH, "eager": Trial(setting="eager", wrong="w", whole="w")}, ["training is wrong"]),
        ({"flash": BOTH, "math": WRONG, "eager": Trial(setting="eager", wrong="w")}, ["flash", "quantisation"]),
        (
            {"flash": SOUND, "math": Trial(setting="sdpa", cannot=True), "eager": EAGER},
            ["a small nf4 training run on cpu in float32 matches the float64 reference"],
        ),
    ],
)
def test_the_verdict_names_attention_quantisation_the_pair_or_neither(trials, named):
    found = verdict.judge(trials, storage="nf4", place="cpu in float32", wanted="sdpa", again="uv")
    assert len(found) == len(named)
    assert all(text in finding.what for text, finding in zip(named, found, strict=True)), found


def test_an_attention_that_the_run_does_not_use_is_a_warning():
    trials = {"flash": SOUND, "eager": Trial(setting="eager", wrong="w", whole="w")}
    (finding,) = verdict.judge(trials, storage="nf4", place="cpu", wanted="sdpa", again="uv")
    assert (finding.severity, finding.remedy) == ("warning", "loradock train --set model.attention=sdpa ...")


def test_a_backend_that_raises_hinders_no_run_where_sdpa_left_to_choose_is_right():
    trials = {
        "sdpa cudnn": Trial(setting="sdpa", wrong="it fails: no such plan", whole="it fails: no such plan"),
        "sdpa": Trial(setting="sdpa"),
        "eager": EAGER,
    }
    found = verdict.judge(trials, storage="nf4", place="cuda:0", wanted="sdpa", again="uv")
    assert [finding.severity for finding in found] == ["ok", "ok"]
    assert found[1].what == "sdpa on cuda:0 skips sdpa cudnn, which does not train: no such plan"
    wrong = {**trials, "sdpa": Trial(setting="sdpa", wrong="it fails: too", whole="it fails: too")}
    assert verdict.judge(wrong, storage="nf4", place="cuda:0", wanted="sdpa", again="uv")[0].severity == "error"
    numbers = {**trials, "sdpa cudnn": BOTH}
    assert verdict.judge(numbers, storage="nf4", place="cuda:0", wanted="sdpa", again="uv")[0].severity == "error"


def judged(outcomes, place=A100, shape=None, setting="sdpa"):
    return attention_kernels.judge(outcomes, place, shape or AttentionShape(), setting, again="uv")


def test_a_kernel_that_raises_is_told_and_no_fault_where_its_setting_goes_past_it():
    right = ("causal", "padded", "packed")
    raising = Outcome(setting="sdpa", right=("causal", "padded"), wrong=("packed",), said="misaligned")
    outcomes = {"sdpa efficient": raising, "sdpa": Outcome(setting="sdpa", right=right)}
    found = judged(outcomes)
    assert [each.severity for each in found] == ["ok", "ok"]
    assert found[0].what.endswith("skips sdpa efficient, which fails: misaligned (packed)")
    alone = {"sdpa efficient": raising, "sdpa": Outcome(setting="sdpa", right=("causal",), wrong=("packed",), said="x")}
    assert judged(alone)[0].severity == "error"
    off = {**outcomes, "sdpa efficient": Outcome(setting="sdpa", right=("causal",), wrong=("padded", "packed"))}
    assert judged(off)[0].severity == "error"


def test_a_kernel_that_no_setting_leads_to_is_a_warning_where_it_is_wrong_alone():
    sdpa = Outcome(setting="sdpa", right=("causal", "padded", "packed"))
    raising = Outcome(setting=None, wrong=("causal",), said="misaligned")
    assert {each.severity for each in judged({"varlen": raising, "sdpa": sdpa})} == {"ok"}
    (wrong, *_) = judged({"varlen": Outcome(setting=None, wrong=("causal",)), "sdpa": sdpa})
    assert (wrong.severity, wrong.remedy) == ("warning", "uv")


def test_a_softcap_makes_sdpa_impossible_and_leaves_eager():
    able, cannot = Outcome(setting="eager", right=("causal", "padded", "packed")), ("causal", "padded", "packed")
    outcomes = {"sdpa math": Outcome(setting="sdpa", cannot=cannot, obstacle="no softcap"), "eager": able}
    shape = AttentionShape(softcap=50.0)
    found = judged(outcomes, CPU, shape)
    assert (found[0].severity, found[0].remedy) == ("error", "loradock train --set model.attention=eager ...")
    assert "softcap" in found[0].what
    found = judged(outcomes, CPU, shape, "eager")
    assert {each.severity for each in found} == {"ok"}


def test_a_kernel_without_a_mask_is_said_and_no_fault():
    right = ("causal", "padded", "packed")
    outcomes = {
        "sdpa flash": Outcome(setting="sdpa", right=("causal",), cannot=("padded", "packed")),
        "sdpa math": Outcome(setting="sdpa", right=right),
    }
    found = judged(outcomes)
    assert [each.severity for each in found] == ["ok", "ok"]
    assert "sdpa flash (not padded and packed)" in found[1].what


def test_a_gpu_has_all_kernels_and_flash_attention_2_only_from_sm80():
    names = [each.name for each in implementations(A100, facts(**{"flash-attn": "2.8.3"}), AttentionShape())]
    assert names == ["sdpa flash", "sdpa efficient", "sdpa cudnn", "sdpa math", "sdpa", "varlen", "flash-attn", "eager"]
    older = [each.name for each in implementations(T4, facts(**{"flash-attn": "2.8.3"}), AttentionShape())]
    assert "flash-attn" not in older
    assert "varlen" not in older


def test_a_tf32_override_is_named_and_imitated_bfloat16_refused(faults):
    exact = {"float32": 1e-7, "float16": 1e-4, "tf32": 1e-4, "bfloat16": 1e-3}
    assert [each.severity for each in dtypes.judge(A100, exact)] == ["ok"]
    (finding,) = dtypes.judge(A100, {**exact, "float32": 1e-4}, tf32_override="1")
    assert (finding.severity, finding.remedy) == ("warning", "unset NVIDIA_TF32_OVERRIDE")
    faults.seen("NVIDIA_TF32_OVERRIDE=1", made="constructed", finding=as_found(finding, "dtypes"), check="dtypes")
    old = Device(device="cuda:0", dtype="bfloat16", capability=(7, 5))
    (finding,) = dtypes.judge(old, {"float32": 1e-7, "float16": 1e-4})
    assert finding.remedy == "loradock train --set model.compute_dtype=float16 ..."
    faults.seen("bfloat16 on sm75", made="constructed", finding=as_found(finding, "dtypes"), check="dtypes")


def test_an_optimiser_that_the_run_does_not_use_is_a_warning():
    (finding,) = optimizer.judge(A100, {"adamw_fused": None, "adamw": None, "adamw_8bit": "failed: x"}, "adamw_fused")
    assert finding.severity == "warning"


def test_nf4_here_is_the_published_table():
    book = torch.tensor(CODE_BOOK, dtype=torch.float64)
    weights = torch.randn(130, 72, generator=torch.Generator().manual_seed(0))
    distance = (codes(weights)[..., None] - book).abs().amin(dim=-1)
    assert float(distance.max()) == 0.0
    assert rebuilt(weights).shape == weights.shape
    cleared = clear_of_ties(weights)
    assert torch.equal(codes(cleared), codes(weights))


@pytest.mark.parametrize("window", [None, 4096])
def test_documents_see_themselves_backwards_only_and_padding_sees_something(window):
    for case in cases(AttentionShape(window=window)):
        allowed = case.allowed()
        assert bool(allowed.any(dim=-1).all())
        assert not bool(allowed.triu(1).any())
        for row, first, length in case.documents:
            inside = allowed[row, first : first + length]
            assert not bool(inside[:, :first].any())
            assert int(inside[-1].sum()) == min(length, case.window or LENGTH)
