"""A mixture of experts in the fast engine: what is wrong in it is refused before a run, and files are PEFT's own.

That loss and gradients are those of a float64 twin is in tests/training/test_mixtures.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from faults.forking import Forking
from faults.pairs import arguments, begun, lines
from jobs import assert_close, job_of
from safetensors.torch import load_file
from whole_runs import losses, train

from loradock.training.backends.fast import families, self_check
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.families.parts import RouterParts, Unfit
from loradock.training.backends.fast.mlp.router import Balance, Router
from loradock.training.backends.fast.model import FastModel
from loradock.training.job import Job, Unsound

pytestmark = pytest.mark.thin(1)

EXPERTS = "lora.targets=[all-linear,experts]"
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixtures.make(tmp_path_factory.mktemp("mixture") / "qwen3_moe", "qwen3_moe")


@pytest.fixture(params=DTYPES)
def job(request: pytest.FixtureRequest, tmp_path: Path, mixture: Path, rows: Path) -> Job:
    settings = ("engine=fast", EXPERTS, f"model.compute_dtype={request.param}")
    return job_of(tmp_path, *settings, model=mixture, data=rows)


DELTA_RULE = ("qwen3_next", "qwen3_5_moe_text")
"""Of their decays' adapters the gradients are a thousandth of the others' and the differences of large sums."""


@pytest.mark.thin(8)
@pytest.mark.parametrize("kind", [*mixtures.FAST, *mixtures.SEEING])
@pytest.mark.parametrize("quantization", ["nf4", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_passes_and_the_peft_model_is_left_as_it_was(
    kind: str, quantization: str, dtype: str, tmp_path: Path, rows: Path
) -> None:
    settings = (f"model.quantization={quantization}", f"model.compute_dtype={dtype}", EXPERTS, "engine=fast")
    job = job_of(tmp_path, *settings, model=mixtures.make(tmp_path / "model", kind), data=rows)
    before = {name: each.dtype for name, each in job.model.named_parameters()}
    found = self_check.check(build(job)[0], job)
    assert found.exact.adapter < (1e-4 if kind not in DELTA_RULE else 1e-3)
    assert (found.rounded is None) == (dtype == "float32")
    assert {name: each.dtype for name, each in job.model.named_parameters()} == before
    assert all("forward" not in vars(module) for module in job.model.modules())


def test_a_dense_layer_among_them_and_weights_that_do_not_add_up_to_one_are_computed(
    tmp_path: Path, rows: Path
) -> None:
    shape = {"mlp_only_layers": [0], "num_hidden_layers": 3, "norm_topk_prob": False, "attention_bias": True}
    base = mixtures.make(tmp_path / "model", "qwen3_moe", **shape)
    job = job_of(tmp_path, "engine=fast", EXPERTS, "lora.dropout=0", model=base, data=rows)
    model = build(job)[0]
    assert [len(layer.mlp.linears()) for layer in model.layers] == [2, 0, 0]
    assert self_check.check(model, job).exact.adapter < 1e-4


@pytest.mark.parametrize("shape", [{"use_qk_norm": False}, {"attn_temperature_tuning": False}])
def test_a_llama_4_without_norms_or_temperature_is_computed(tmp_path: Path, rows: Path, shape: dict[str, bool]) -> None:
    base = mixtures.make(tmp_path / "model", "llama4_text", **shape)
    job = job_of(tmp_path, "engine=fast", EXPERTS, "lora.dropout=0", model=base, data=rows)
    assert self_check.check(build(job)[0], job).exact.adapter < 1e-4


def test_experts_are_chosen_by_their_logits_where_sigmoids_are_all_one() -> None:
    parts = RouterParts(weight=torch.tensor([[40.0], [50.0], [45.0]]), active=1, scores="sigmoid", is_normalised=False)
    assert Router(parts, Balance(), layer=0).forward(torch.ones(2, 1)).experts.tolist() == [[1], [1]]


def test_a_document_is_cut_into_chunks_from_its_own_start() -> None:
    documents = Documents(bounds=(0, 7, 9, 14), cu_seqlens=torch.tensor([0, 7, 9, 14], dtype=torch.int32), longest=7)
    cut = documents.cut(3)
    assert cut.bounds == (0, 3, 6, 7, 9, 12, 14) == tuple(cut.cu_seqlens.tolist())
    assert cut.longest == 3
    assert documents.cut(7) is documents is documents.cut(None)


def changed(model: FastModel, **parts: Any) -> None:
    """The router of one layer does something else."""
    mlp: Any = model.layers[1].mlp
    mlp.router.parts = replace(mlp.router.parts, **parts)


def scaled(model: FastModel) -> None:
    """An adapter on experts is off by one per cent."""
    wrong: Any = model.layers[1].mlp.frozen()[1]
    wrong.scale *= 1.01


def shifted(model: FastModel) -> None:
    """Each expert is multiplied with the matrix of the next."""
    weight: Any = model.layers[1].mlp.frozen()[1]
    weight.weight.packed = [*weight.weight.packed[1:], weight.weight.packed[0]]


def without_router_gradient(model: FastModel) -> None:
    """The hidden states get no gradient through the routing weights."""
    mlp: Any = model.layers[1].mlp
    mlp.router.backward_ = lambda dx, *_: dx


def not_normalised(model: FastModel) -> None:
    """The weights of a token do not add up to one."""
    changed(model, is_normalised=False)


def another_router(model: FastModel) -> None:
    """It chooses others, in a layer of which the choice is taken from PEFT."""
    mlp: Any = model.layers[1].mlp
    choice = mlp.router.balance.choice
    mlp.router.balance.choice = lambda experts, layer: choice((experts + 1) % 8, layer=layer)


def unbalanced(model: FastModel) -> None:
    """The balancing loss is counted twice."""
    whole = model.balance.loss
    model.balance.loss = lambda weight: whole(2 * weight)


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    "fault", [scaled, shifted, without_router_gradient, not_normalised, another_router, unbalanced]
)
def test_what_is_wrong_is_refused(fault: Callable[[FastModel], None], job: Job) -> None:
    if fault is unbalanced:
        job.model.config.router_aux_loss_coef = 1.0  # so that it weighs as much as the likelihood
    model, _ = build(job)
    self_check.check(model, job)
    fault(model)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def without_correction(model: FastModel) -> None:
    """Experts are chosen by their scores alone."""
    changed(model, correction=None)


def without_groups(model: FastModel) -> None:
    """Experts are chosen from all groups."""
    changed(model, groups=None)


def without_factor(model: FastModel) -> None:
    """The weights of the experts are not scaled."""
    changed(model, factor=1.0)


def by_softmax(model: FastModel) -> None:
    """The scores are another function of the logits."""
    changed(model, scores="softmax")


def without_shared(model: FastModel) -> None:
    """The expert of all tokens is left out."""
    mlp: Any = model.layers[1].mlp
    mlp.shared = None


def without_gate(model: FastModel) -> None:
    """The shared expert counts as much for each token."""
    mlp: Any = model.layers[1].mlp
    mlp.shared.gate = None


def without_gate_gradient(model: FastModel) -> None:
    """The shared expert's gate gets none."""
    mlp: Any = model.layers[1].mlp
    mlp.shared.dense.along_product = lambda dproduct, _: torch.zeros(len(dproduct), 1)


def swapped(model: FastModel) -> None:
    """Two experts have each other's adapter."""
    a: Any = model.layers[1].mlp.frozen()[0]
    bind = a.bind

    def swap(adapters: Any) -> None:
        bind(adapters)
        order = [1, 0, *range(2, len(a.adapters.a))]
        a.adapters = replace(a.adapters, a=a.adapters.a[order], b=a.adapters.b[:, :, order])

    a.bind = swap
    swap(model.adapters)


def in_halves(model: FastModel) -> None:
    """Rotary columns turn with those of the other half."""
    mixer: Any = model.layers[1].mixer
    mixer.parts = replace(mixer.parts, is_interleaved=False)


def without_bias(model: FastModel) -> None:
    """The logits of a router have none."""
    changed(model, bias=None)


def without_experts_bias(model: FastModel) -> None:
    """The experts' outputs have none."""
    down: Any = model.layers[1].mlp.frozen()[1]
    down.bias = None


def without_bias_gradient(model: FastModel) -> None:
    """The gradient of routing weights leaves the experts' biases out."""
    down: Any = model.layers[1].mlp.frozen()[1]
    down.along_bias = lambda dy, _: torch.zeros(len(dy))


def without_sinks(model: FastModel) -> None:
    """The scores of a head have none."""
    mixer: Any = model.layers[1].mixer
    parts = mixer.parts
    mixer.parts = replace(parts, rule=replace(parts.rule, sinks=None))


def without_window(model: FastModel) -> None:
    """A layer sees whole documents."""
    mixer: Any = model.layers[0].mixer
    parts = mixer.parts
    mixer.parts = replace(parts, rule=replace(parts.rule, window=None))


def head_by_head(model: FastModel) -> None:
    """The norm of all query heads is taken of each."""
    mixer: Any = model.layers[1].mixer
    norm = mixer.parts.query_norm
    mixer.parts = replace(mixer.parts, query_norm=replace(norm, weight=norm.weight[: mixer.parts.heads[2]]))


def without_multiplier(model: FastModel) -> None:
    """What a layer's halves give is added to the residual as it is."""
    model.layers[1].parts = replace(model.layers[1].parts, residual_scale=1.0)


def without_logit_scale(model: FastModel) -> None:
    """Logits are not divided."""
    model.head.scale = 1.0


def without_embedding_scale(model: FastModel) -> None:
    """Embeddings are not multiplied."""
    model.embedding_scale = 1.0


def usual_scores(model: FastModel) -> None:
    """A layer's scores are divided by the square root of a head's size."""
    mixer: Any = model.layers[0].mixer
    parts = mixer.parts
    mixer.parts = replace(parts, rule=replace(parts.rule, scale=parts.heads[2] ** -0.5))


def turned(model: FastModel) -> None:
    """A layer that turns nothing turns by positions."""
    angles = torch.outer(torch.arange(512.0), 1e4 ** -(torch.arange(0.0, 16.0, 2.0) / 16)).repeat(1, 2)
    mixer: Any = model.layers[1].mixer
    mixer.table = mixer.query_table = angles.cos(), angles.sin()


def scaled_outputs(model: FastModel) -> None:
    """The weights of a token's experts multiply what comes out of them."""
    mlp: Any = model.layers[3].mlp
    mlp.scales_inputs = False


def without_temperature(model: FastModel) -> None:
    """A layer without positions has queries as they are."""
    mixer: Any = model.layers[3].mixer
    mixer.table = mixer.query_table = None


def tempered_keys(model: FastModel) -> None:
    """Keys have the temperature, too."""
    mixer: Any = model.layers[3].mixer
    mixer.parts = replace(mixer.parts, turns_keys=True)


def without_chunks(model: FastModel) -> None:
    """A layer sees whole documents."""
    mixer: Any = model.layers[1].mixer
    parts = mixer.parts
    mixer.parts = replace(parts, rule=replace(parts.rule, chunk=None))


def without_head_norms(model: FastModel) -> None:
    """Queries and keys are as long as they are."""
    mixer: Any = model.layers[1].mixer
    mixer.parts = replace(mixer.parts, query_norm=None, key_norm=None)


def along(model: FastModel) -> None:
    """The adapter of experts is read as that of a class that says how its matrices lie."""
    a: Any = model.layers[1].mlp.frozen()[1]  # down, whose inputs and outputs are as many
    bind = a.bind

    def turn(adapters: Any) -> None:
        bind(adapters)
        made = a.adapters
        a.adapters = replace(
            made,
            a=made.b.permute(2, 1, 0),
            b=made.a.permute(2, 1, 0),
            fresh_a=made.fresh_b.permute(2, 1, 0),
            fresh_b=made.fresh_a.permute(2, 1, 0),
        )

    a.bind = turn
    turn(model.adapters)


@pytest.mark.thin(8)
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("glm4_moe", without_correction),
        ("glm4_moe", without_groups),
        ("glm4_moe", without_factor),
        ("glm4_moe", by_softmax),
        ("glm4_moe", without_shared),
        ("glm4v_moe", without_correction),
        ("glm4v_moe", without_shared),
        ("qwen3_vl_moe", without_head_norms),
        ("qwen3_vl_moe", swapped),
        ("qwen2_moe", without_gate),
        ("qwen2_moe", without_gate_gradient),
        ("qwen2_moe", swapped),
        ("ernie4_5_moe", without_correction),
        ("ernie4_5_moe", in_halves),
        ("minimax_m2", head_by_head),
        ("granitemoe", without_multiplier),
        ("granitemoe", without_logit_scale),
        ("granitemoe", without_embedding_scale),
        ("granitemoe", usual_scores),
        ("granitemoeshared", without_shared),
        ("granitemoehybrid", turned),
        ("llama4_text", scaled_outputs),
        ("llama4_text", without_temperature),
        ("llama4_text", tempered_keys),
        ("llama4_text", without_chunks),
        ("llama4_text", without_head_norms),
        ("llama4_text", along),
        ("llama4_text", without_shared),
        ("gpt_oss", without_bias),
        ("gpt_oss", without_experts_bias),
        ("gpt_oss", without_bias_gradient),
        ("gpt_oss", without_sinks),
        ("gpt_oss", without_window),
        ("gpt_oss", swapped),
    ],
)
def test_what_is_wrong_in_a_router_or_a_shared_expert_is_refused(
    kind: str, fault: Callable[[FastModel], None], tmp_path: Path, rows: Path
) -> None:
    settings = (EXPERTS, "engine=fast", "model.compute_dtype=bfloat16")
    job = job_of(tmp_path, *settings, model=mixtures.make(tmp_path / "model", kind), data=rows)
    model = build(job)[0]
    self_check.check(model, job)
    fault(model)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, job)


@pytest.mark.parametrize(
    ("kind", "shape", "why"),
    [
        ("minimax_m2", {"router_jitter_noise": 0.01}, "routers read hidden states with noise"),
        ("olmoe", {"clip_qkv": 4.0}, "queries, keys and values are cut off"),
    ],
)
def test_what_it_does_not_compute_of_a_family_goes_to_peft_and_the_plan_says_why(
    kind: str, shape: dict[str, Any], why: str, tmp_path: Path, rows: Path
) -> None:
    job = job_of(tmp_path, model=mixtures.make(tmp_path / "model", kind, **shape), data=rows)
    ((name, value),) = shape.items()
    assert job.plan.engine.value == "peft"
    assert f"the model has {name} {value}" in job.plan.engine.why
    with pytest.raises(Unfit, match=why):
        families.read(job.model, positions=64)


def test_a_balancing_loss_is_that_of_a_softmax_whatever_a_router_chooses_by(tmp_path: Path, rows: Path) -> None:
    base = mixtures.make(tmp_path / "model", "minimax_m2", router_aux_loss_coef=1.0)
    job = job_of(tmp_path, "engine=fast", EXPERTS, "lora.dropout=0", model=base, data=rows)
    model = build(job)[0]
    assert model.balance.coefficient == 1.0
    assert self_check.check(model, job).exact.adapter < 1e-4
    unbalanced(model)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def test_two_processes_train_what_one_does(forking: Forking, tmp_path: Path, rows: Path) -> None:
    """But for the order of additions; dropout before a shared expert's adapters, and its gate's, too."""
    base = mixtures.make(tmp_path / "model", "qwen2_moe", router_aux_loss_coef=0.0)
    words = arguments(base, rows, "lora.dropout=0.1", "train.max_steps=4", engine="fast")
    runs = [begun(forking, tmp_path / str(count), words, count=count) for count in (1, 2)]
    assert [run.finish() for run in runs] == [[0], [0, 0]], runs[1].text()
    of_one, of_two = ([line["loss"] for line in lines(run.folder, "train")] for run in runs)
    assert len(of_one) == 4
    assert of_two == pytest.approx(of_one, rel=1e-5)
    weights = [load_file(run.folder / "out" / "adapter" / "adapter_model.safetensors") for run in runs]
    assert any("shared_expert_gate" in name for name in weights[0])
    assert_close(*weights, absolute=1e-5)


@pytest.mark.thin(8)
def test_twenty_steps_write_the_tensors_of_the_peft_engine(tmp_path: Path, mixture: Path, rows: Path) -> None:
    settings = ["train.max_steps=20", "train.global_batch=4", "train.micro_batch=2", "lora.rank=4", "logging.every=1"]
    settings += ["train.learning_rate=1e-3", "lora.init=gaussian", "data.max_length=64", EXPERTS]
    runs = [
        train(tmp_path / engine, *settings, f"engine={engine}", model=mixture, data=rows) for engine in ("fast", "peft")
    ]
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=2e-4)
    first, second = (load_file(run.adapter / "adapter_model.safetensors") for run in runs)
    assert any(".experts." in name for name in first)
    assert first.keys() == second.keys()
    for name, tensor in first.items():  # AdamW moves an expert that has next to no gradient as far as any other
        assert (tensor - second[name]).norm() < 1e-2 * tensor.norm(), name


def test_an_expert_without_a_token_keeps_its_adapter_still(job: Job) -> None:
    """Also where it had one in the micro-batch before."""
    model, _ = build(job)
    rows = self_check.first_rows(job)
    kind = self_check.Likelihood()
    kind.computed(model, rows)
    one = [row[:3] for row in rows[:1]]
    kind.computed(model, one)
    a: Any = model.layers[0].mlp.frozen()[0]
    moved = {int(each) for each in a.adapters.fresh_a.flatten(1).any(dim=1).nonzero()}
    moved_b = {int(each) for each in a.adapters.fresh_b.flatten(0, 1).any(dim=0).nonzero()}
    assert 1 < len(moved) <= 6
    assert moved_b <= moved
    assert not torch.isnan(a.adapters.fresh_a).any()
