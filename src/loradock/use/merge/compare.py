"""Both merges on the held-out rows of the run: onto the weights of training, and onto the original ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from loradock.data.corpus import prepare_corpus
from loradock.errors import UsageError
from loradock.machine import Host, probe
from loradock.model import load, prequantised
from loradock.model.tokenizer import open_tokenizer
from loradock.model.whole import quiet
from loradock.training.run_dir import fetching
from loradock.training.run_dir.resume import recorded_config
from loradock.use.merge.job import Job
from loradock.use.merge.merge import computed
from loradock.use.merge.plan import MergePlan, Onto, make
from loradock.use.merge.proof import of_adapter

MOST_ROWS = 200
Row = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Loss a learned token (nats) over the first `rows` held-out rows; `wins`: rows on which the first is lower."""

    rows: int
    tokens: int
    adapter: float
    trained: float
    original: float
    trained_wins: int


def compare(job: Job, *, progress: Callable[[int], None]) -> Compared:
    """Both merges, rounded to the dtype of the result, and the adapter itself, in float32 on the CPU.

    `progress` is called with the rows done, of all three. UsageError without a run, held-out rows or NF4 weights.
    """
    if not job.plan.asked.storage.is_dequantised or prequantised.is_nf4(job.plan.base.config):
        raise UsageError(
            "--compare needs a run that quantised its base to NF4: otherwise there is one merge",
            hint="leave out --compare",
        )
    rows = held_out(job)
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress(done)

    trained = losses(merged_in_memory(job, "trained"), rows, count)
    original = losses(merged_in_memory(job, "original"), rows, count)
    adapter = losses(of_adapter(replace(job, plan=_plan(job, "trained"))), rows, count)
    tokens = int(sum(int(mask.sum()) for _, mask in rows))
    return Compared(
        rows=len(rows),
        tokens=tokens,
        adapter=float(adapter.sum()) / tokens,
        trained=float(trained.sum()) / tokens,
        original=float(original.sum()) / tokens,
        trained_wins=int((trained < original).sum()),
    )


def held_out(job: Job) -> list[Row]:
    """(ids, which are learned) of the rows that the run did not train on, as it prepared them."""
    if not job.record:
        raise UsageError("--compare needs a run: an adapter alone has no held-out rows", hint="name the run directory")
    config = recorded_config(job.record, job.given)
    fetching.refuse_data(config.data.sources)
    decisions = {decision["name"]: decision["value"] for decision in job.record["plan"]["decisions"]}
    tokenizer = open_tokenizer(job.origin.base, add_tokens=config.tokenizer.add_tokens)
    facts = probe.gather(Host())
    corpus = prepare_corpus(config, tokenizer=tokenizer, max_length=decisions["max_length"], facts=facts)
    part = corpus.rows.validation if corpus.rows else None
    if part is None:
        raise UsageError("the run held out no rows (data.validation)", hint="leave out --compare; loradock evaluate")
    fitted = part.fitted
    columns = (fitted.rows, fitted.starts, fitted.lengths, fitted.contexts)
    rows: list[Row] = []
    for row, start, length, context in zip(*(column[:MOST_ROWS].tolist() for column in columns), strict=True):
        ids, mask = part.prepared.row(row, start=start, length=length, context=context)
        rows.append((torch.tensor(ids, dtype=torch.long), torch.tensor(mask)))
    return rows


def merged_in_memory(job: Job, onto: Onto) -> Any:
    """The model that a merge onto these weights would leave, in float32."""
    plan = _plan(job, onto)
    unquantised = plan.asked.model_copy(update={"quantization": "none"})
    with quiet():
        model = load.load_whole(plan.base, unquantised, dtype="auto", device="cpu")
    weights = {step.weight for step in plan.steps}
    for step in plan.steps:
        if step.kind == "copy" or step.weight not in plan.adapted.names:
            continue
        value = torch.nn.Parameter(computed(step, plan, {}), requires_grad=False)
        for name in {step.weight} | (plan.adapted.tied_to(step.weight) - weights):
            parent, _, key = name.rpartition(".")
            setattr(model.get_submodule(parent), key, value)
    return model.float().eval()


def _plan(job: Job, onto: Onto) -> MergePlan:
    plan = job.plan
    if plan.onto == onto:
        return plan
    return make(
        plan.base,
        plan.adapter,
        asked=plan.asked,
        load_dtype=plan.load_dtype,
        onto=onto,
        dtype=job.dtype,
        device=plan.device,
    )


def losses(model: Any, rows: Sequence[Row], count: Callable[[], None]) -> torch.Tensor:
    """The negative log-likelihood in nats of each row's learned tokens, float64 [rows]."""
    losses_found: list[float] = []
    for ids, mask in rows:
        with torch.no_grad():
            logits = model(ids[None]).logits[0, :-1].double()
        loss_of_row = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")
        losses_found.append(float(loss_of_row[mask[1:]].sum()))
        count()
    return torch.tensor(losses_found, dtype=torch.float64)
