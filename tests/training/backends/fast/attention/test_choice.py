"""Which attention backend serves a case, and the reason that is given."""

from typing import Any

import pytest
import torch

from loradock.errors import EnvironmentUnfit
from loradock.training.backends.fast.attention import choose
from loradock.training.backends.fast.attention.base import Attention

A100: dict[str, Any] = {
    "device": "cuda",
    "capability": (8, 0),
    "dtype": torch.bfloat16,
    "head_dim": 128,
    "softcap": None,
    "has_flash_attn": False,
    "asked": "auto",
}
T4 = A100 | {"capability": (7, 5), "dtype": torch.float16}
CPU = A100 | {"device": "cpu", "capability": None}


def ask(case: dict[str, Any], **other: Any) -> tuple[Attention, str]:
    return choose(**(case | other))


@pytest.mark.parametrize(
    ("case", "name", "reason"),
    [
        (A100, "flash-torch", "all documents in one launch (flash-attn is not installed)"),
        (A100 | {"has_flash_attn": True}, "flash-attn", "flash-attn's kernels, all documents in one launch"),
        (A100 | {"has_flash_attn": True, "asked": "sdpa"}, "flash-torch", "(model.attention is sdpa)"),
        (
            A100 | {"has_flash_attn": True, "asked": "flash_attention_2"},
            "flash-attn",
            "model.attention is flash_attention_2",
        ),
        (A100 | {"has_flash_attn": True, "softcap": 50.0}, "flash-attn", "one launch"),
        (A100 | {"softcap": 50.0}, "per-document", "flash-attn is not installed; torch's flash kernel has no softcap"),
        (A100 | {"dtype": torch.float32}, "per-document", "computes in fp16 and bf16, not in float32"),
        (A100 | {"head_dim": 320}, "per-document", "heads of 256 at most, these have 320"),
        (T4, "per-document", "needs sm80 or newer, this GPU is sm75"),
        (T4 | {"has_flash_attn": True}, "per-document", "needs sm80 or newer, this GPU is sm75"),
        (CPU, "flash-cpu", "torch's flash kernel for CPUs, document by document"),
        (CPU | {"dtype": torch.float32, "head_dim": 7}, "flash-cpu", "document by document"),
        (CPU | {"softcap": 50.0}, "per-document", "torch's flash kernel has no softcap"),
    ],
)
def test_the_fastest_that_can_serve_is_taken_and_says_why(case: dict[str, Any], name: str, reason: str) -> None:
    attention, why = ask(case)
    assert attention.name == name
    assert reason in why
    assert why.count("sm80") <= 1


@pytest.mark.parametrize(
    ("case", "message"),
    [(A100, "flash-attn is not installed"), (T4, "this GPU is sm75"), (CPU, "needs a GPU")],
)
def test_flash_attn_asked_for_by_name_is_not_replaced_in_silence(case: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentUnfit, match=message):
        ask(case, asked="flash_attention_2")


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ValueError, match="no attention backend is called eager"):
        ask(A100, asked="eager")


def test_only_backends_of_one_launch_may_be_replayed_by_a_graph() -> None:
    cases = [A100, A100 | {"has_flash_attn": True}, T4, CPU]
    assert [ask(case)[0].is_static for case in cases] == [True, True, False, False]
