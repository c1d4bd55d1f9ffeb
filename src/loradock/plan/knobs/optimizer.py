"""The optimiser. An adapter's state is small, so 8-bit and paged states buy little and cost a sync a parameter."""

from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Decision, Question, asked


def decide(question: Question) -> Decision:
    """Fused AdamW; paged 8-bit only where the smallest batch does not fit with it."""
    wanted = question.config.train.optimizer
    if wanted.endswith("8bit") and not question.on_gpu:
        raise EnvironmentUnfit(f"optimizer {wanted} needs a GPU", hint="--set train.optimizer=adamw_fused")
    if wanted != "auto":
        return asked("optimizer", wanted)
    if question.decided["engine"] == "fast":
        why = "one kernel over all adapters at once; the fast engine's only one"
        return Decision(name="optimizer", value="adamw_fused", why=why)
    state = question.model.adapter_parameters(question.config.lora.rank) * 8
    need = question.expected_bytes(
        micro_batch=1, checkpointing=question.decided["checkpointing"], optimizer="adamw_fused"
    )["total"]
    if question.on_gpu and need > question.memory_bytes:
        return Decision(
            name="optimizer", value="paged_adamw_8bit", why=f"memory demands it: {state / 2**20:.0f} MiB less"
        )
    return Decision(name="optimizer", value="adamw_fused", why=f"one kernel; its state is {state / 2**20:.1f} MiB")
