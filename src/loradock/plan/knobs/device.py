"""Where the run computes: the GPU where there is one, else the CPU, and never a silent fall from one to the other."""

from loradock.errors import EnvironmentUnfit
from loradock.plan.context import Context
from loradock.plan.plan import Decision

NOTICEABLE_BYTES = 256 << 20


def decide(context: Context) -> Decision[str]:
    """A GPU when one is visible; a request for cuda without a GPU is refused."""
    setting = context.config.device
    facts = context.facts
    if setting == "cuda" and not facts.has_gpu:
        raise EnvironmentUnfit(
            "device is cuda, but no GPU is visible to this process",
            hint="start the container with --gpus all, check CUDA_VISIBLE_DEVICES, or use --set device=cpu",
        )
    if setting == "cpu" or not facts.has_gpu:
        why = "set in the configuration" if setting == "cpu" else "no GPU is visible"
        return Decision(name="device", value="cpu", why=why)
    gpu = facts.gpu
    why = f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, {gpu.architecture}"
    if gpu.runtime_bytes is not None:
        why += f"; CUDA itself takes {gpu.runtime_bytes / 2**20:,.0f} MiB of it"
    if gpu.taken_bytes > NOTICEABLE_BYTES:
        why += f"; other processes hold {gpu.taken_bytes / 2**30:.1f} GiB"
    return Decision(name="device", value="cuda", why=why)
