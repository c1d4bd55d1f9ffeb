"""Architecture: torch's kernels are compiled for this GPU."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok
from loradock.env_check.known import Runtime, runtime
from loradock.facts import Facts, Gpu
from loradock.machine import Host


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Compare each GPU's compute capability with what the wheel holds."""
    needed = runtime()
    visible = (host.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(len(facts.gpus))))).split(",")
    fit = [name.strip() for name, gpu in zip(visible, facts.gpus, strict=False) if needed.serves(gpu.capability)]
    remedy = f"export CUDA_VISIBLE_DEVICES={','.join(fit)}" if fit else "loradock train --set device=cpu ..."
    wrong = [_unserved(gpu, needed, remedy) for gpu in dict.fromkeys(facts.gpus) if not needed.serves(gpu.capability)]
    served = ", ".join(dict.fromkeys(_dotted(gpu.capability) for gpu in facts.gpus))
    return wrong or [ok(f"compute capability {served}, torch has kernels for it")]


def _unserved(gpu: Gpu, needed: Runtime, remedy: str) -> Finding:
    """Code for a compute capability runs on the same major version and the same or a later minor one."""
    what = f"{gpu.name} has compute capability {_dotted(gpu.capability)}"
    if gpu.capability < min(needed.architectures):
        first = _dotted(min(needed.architectures))
        what = f"{what}, torch's CUDA {needed.cuda} wheel begins at {first}"
    else:
        what = f"{what}, for which torch's CUDA {needed.cuda} wheel has no kernels"
    return error(what, remedy=remedy)


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)


CHECK = Check(
    name="architecture",
    group="gpu",
    proves="The locked torch has kernels for the compute capability of each GPU.",
    look=look,
    needs="gpu",
)
