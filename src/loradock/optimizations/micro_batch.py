"""How many samples (packed: how many times max_length tokens) go through the GPU at once."""

from loradock.errors import OutOfMemory
from loradock.optimizations.base import Decision, Question, asked


def decide(question: Question) -> Decision:
    """The largest power of two that fits in memory, useful up to a token count where the device is busy."""
    wanted = question.config.train.micro_batch
    if wanted != "auto":
        return asked("micro_batch", wanted)
    length = question.row_tokens
    rows = 1 << (question.useful_rows.bit_length() - 1)
    while rows > 1 and need(question, rows) > question.memory_bytes:
        rows //= 2
    bytes_needed = need(question, rows)
    if question.on_gpu and bytes_needed > question.memory_bytes:
        raise OutOfMemory(
            f"one row of {length} tokens needs about {bytes_needed / 2**30:.1f} GiB, "
            f"{question.facts.gpu.name} has {question.memory_bytes / 2**30:.1f} GiB to plan with",
            hint=f"--set data.max_length={max(64, length // 2)}, a smaller model, or a larger card",
        )
    sizes = f"{bytes_needed / 2**30:.1f} of {question.memory_bytes / 2**30:.1f} GiB"
    return Decision(name="micro_batch", value=rows, why=f"{rows} x {length} tokens need about {sizes}")


def need(question: Question, rows: int) -> int:
    """Expected bytes in all for a micro-batch of `rows`."""
    decided = question.decided
    return question.expected_bytes(
        micro_batch=rows, checkpointing=decided["checkpointing"], optimizer=decided["optimizer"]
    )["total"]
