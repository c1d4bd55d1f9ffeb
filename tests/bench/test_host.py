"""The host cost's method: what counts as a launch, backward without autograd's engine, launches that do nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from bench.host.arms import Setting, trl
from bench.host.backward import backward
from bench.host.card import fake_card
from bench.host.launches import Launches
from bench.host.measures import ARMS, count, narrow, quiet_machine, time_around
from bench.host.silent import silent_launches
from bench.host.tables import rows
from bench.train.models import settings
from loradock.training.backends.fast.kernels import fused, launch

pytestmark = pytest.mark.thin(1)

LAYERS = 2


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    with pytest.warns(match="is_activation_checkpointing"):
        return count({**settings("mistral-7b"), "num_hidden_layers": LAYERS}, tokens=4096)


def test_a_kernel_counts_once_and_views_and_allocations_do_not() -> None:
    with fake_card(), Launches() as launches:
        x = torch.empty(8, 8, device="cuda")
        y = (x.t()[:4].view(4, 8) @ x).split(4, dim=1)[0]
        y.add_(1.0).reshape(-1)
    assert launches.by_name == {"aten::mm": 1, "aten::add_": 1, "aten::clone": 1}


@pytest.mark.thin(4)
def test_bitsandbytes_forward_counts_as_four_launches_and_its_backward_as_three_and_a_product(
    counted: dict[str, Any],
) -> None:
    names = counted["trl"]["by_name"]
    linears = 7 * LAYERS
    assert names["bitsandbytes::gemm_4bit"] == 4 * linears
    assert names["bitsandbytes::dequantize_4bit"] == names["bitsandbytes::dequantize_blockwise"] == linears - 3


def test_the_fast_engine_launches_a_third_of_trl_at_most_and_never_waits(counted: dict[str, Any]) -> None:
    launches = {name: each["launches"] for name, each in counted.items()}
    assert launches["fast"] <= launches["trl"] / 3
    assert launches["fast, cached"] < launches["fast"]
    assert launches["fast, checkpointed"] <= launches["trl, checkpointed"] / 3
    assert counted["fast"]["waits"] == 0 < counted["trl"]["waits"]


def test_backward_without_the_engine_gives_its_gradients() -> None:
    def leaves() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(3)]

    def loss(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        inner: Any = checkpoint(lambda x: torch.tanh(x @ b) * x.split(2, dim=1)[0].repeat(1, 2), a, use_reentrant=False)
        return ((inner + a * c[:1]) @ b).square().mean()

    theirs, ours = leaves(), leaves()
    loss(*theirs).backward()
    backward(loss(*ours))
    for one, other in zip(theirs, ours, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_backward_without_the_engine_runs_the_operators_that_the_engine_runs() -> None:
    values = {**settings("llama-3-8b"), "num_hidden_layers": 1}
    setting = narrow(values)
    found = []
    for run in (torch.Tensor.backward, backward):
        step = trl(Setting(**vars(setting)), is_checkpointed=False)
        step()  # from now on gradients are added
        with pytest.MonkeyPatch.context() as patch, Launches() as launches:
            patch.setattr(torch.Tensor, "backward", run)
            step()
        found.append(launches.by_name)
    assert found[0] == found[1]


def test_a_kernel_launched_again_gets_what_triton_itself_would_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[tuple[object, ...]] = []
    monkeypatch.setattr("bench.host.silent.SilentDriver.launcher_cls", lambda *_: lambda *args: handed.append(args))
    launcher = launch.Launcher()
    monkeypatch.setattr(launch, "launch", launcher)
    x, weight = torch.ones(8, 64), torch.ones(64)
    with silent_launches():
        for like_x in (x, x, torch.ones(8, 65)[:, :64], torch.ones(513)[1:].view(8, 64), x.to(torch.float16), x):
            fused.rms_norm(like_x, weight, 1e-5, offset=False)
    first, again, other_stride, _, _, third = handed
    assert len(launcher.compiled) == 4
    assert [len(each) for each in handed] == [len(first)] * 6
    assert all(is_alike(one, other) for one, other in zip(less_hooks(first), less_hooks(again), strict=True))
    assert all(is_alike(one, other) for one, other in zip(less_hooks(first), less_hooks(third), strict=True))
    assert other_stride[10] == 65


def less_hooks(handed: tuple[object, ...]) -> tuple[object, ...]:
    """Without what Triton hands over for profilers."""
    return handed[:6] + handed[9:]


def is_alike(one: object, other: object) -> bool:
    """Equal, or tensors of one shape and dtype."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return one == other


def test_every_arm_takes_its_way_for_cards_with_launches_that_do_nothing() -> None:
    with quiet_machine(), silent_launches():
        for arm in ARMS.values():
            assert arm(narrow({**settings("phi-3-mini"), "num_hidden_layers": 1}))().shape == ()


@pytest.mark.thin(2)
def test_an_optimiser_step_around_its_micro_step_launches_less_than_half_of_trls_and_never_waits() -> None:
    found = time_around({**settings("phi-3-mini"), "num_hidden_layers": 1}, rounds=1)
    assert 2 * found["fast"]["launches"] < found["trl"]["launches"]
    assert (found["fast"]["waits"], found["trl"]["waits"] > 0) == (0, True)


def test_shares_are_of_the_arm_with_the_same_checkpointing() -> None:
    kernels = {"trl": {"launches": 90, "waits": 2}, "fast": {"launches": 30, "waits": 0}}
    milliseconds = {"trl": {"min": 10.0, "median": 11.0}, "fast": {"min": 2.0, "median": 3.0}}
    assert rows(kernels, milliseconds)[1] == "fast | 30 | 0.333 | 0 | 2.0 (3.0) | 0.200 | 0.204"
