"""GPUs: those that were requested are present and answer; a run never falls back to the CPU silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.seen import on_host
from loradock.errors import GpuSuspect
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import DriverState, GpuState
from loradock.text.amounts import counted

VISIBLE, INJECTED = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
HIDDEN = ("", "-1", "NoDevFiles")
WITHOUT = "loradock train --set device=cpu ..."
RUN = "docker run --gpus all ..."


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """What stands between this process and a GPU, the nearest cause alone."""
    if plan.refuses_gpu:
        return [ok("the configuration asks for the CPU")]
    states = host.gpu_states()
    silent = [gpu for gpu in states if gpu.failure and gpu.is_permitted]
    if any(gpu.is_visible for gpu in silent):
        return on_host([_silent(gpu) for gpu in silent if gpu.is_visible], facts)
    findings = _there(facts, states) if facts.has_gpu else missing(facts, host.driver(), states, host.environ, plan)
    return on_host([findings, *map(_hidden, silent)], facts)


def _there(facts: Facts, states: tuple[GpuState, ...]) -> Finding:
    names = ", ".join(f"{count} x {name}" for name, count in Counter(gpu.name for gpu in facts.gpus).items())
    keeps_driver_loaded = {
        f"gpu_{gpu.index}_is_persistent": float(gpu.is_persistent) for gpu in states if gpu.is_persistent is not None
    }
    return ok(f"{counted(len(facts.gpus), 'GPU')}: {names}", **keeps_driver_loaded)


def _silent(gpu: GpuState) -> Finding:
    return error(
        f"{gpu.label} does not answer: {gpu.failure}",
        remedy=f"sudo nvidia-smi --gpu-reset -i {gpu.index} || sudo reboot",
        ends=GpuSuspect,
    )


def _hidden(gpu: GpuState) -> Finding:
    """A GPU that the user has taken out of the run stops none, and is still to be fixed."""
    return warning(
        f"{gpu.label} does not answer: {gpu.failure}; this process does not use it",
        remedy=f"sudo nvidia-smi --gpu-reset -i {gpu.index} || sudo reboot",
    )


def missing(
    facts: Facts, driver: DriverState, states: tuple[GpuState, ...], environ: Mapping[str, str], plan: Intent
) -> Finding:
    """Why no GPU can be used, where one should be; ok where nothing promises one."""
    if permitted := tuple(gpu for gpu in states if gpu.is_permitted):
        return _out_of_reach(permitted, environ.get(VISIBLE), plan)
    if states:
        return _denied(facts, states, plan)
    if driver.is_installed and not (facts.in_container and not driver.nodes):
        return _broken(facts, driver)
    visible, injected = environ.get(VISIBLE), environ.get(INJECTED, "")
    if visible is not None and visible not in HIDDEN:
        return error(f"{VISIBLE} is {visible!r}, and this machine shows no GPU", remedy=f"unset {VISIBLE}")
    if facts.in_container and injected not in ("", "void", "none"):
        return _not_injected(injected, plan)
    if plan.wants_gpu:
        return error("the configuration asks for a GPU, and there is none", remedy=_give_one(facts, driver))
    if driver.devices or driver.module:
        count = counted(len(driver.devices), "NVIDIA GPU") if driver.devices else "an NVIDIA driver"
        return warning(
            f"the machine has {count}, which this process cannot use, so a run trains on the CPU",
            remedy=_give_one(facts, driver),
        )
    return ok("no GPU, a run trains on the CPU")


def _out_of_reach(states: tuple[GpuState, ...], visible: str | None, plan: Intent) -> Finding:
    """NVML shows GPUs, CUDA would see none of them."""
    present = counted(len(states), "GPU")
    entries = [entry.strip() for entry in (visible or "").split(",")]
    if len(set(entries)) < len(entries):
        what = f"{VISIBLE} is {visible!r}, which names a GPU twice: CUDA then shows none of {present}"
        return error(what, remedy=f"export {VISIBLE}={','.join(dict.fromkeys(filter(None, entries)))}")
    if visible is not None and not any(gpu.is_visible for gpu in states):
        if visible in HIDDEN and not plan.wants_gpu:
            return ok(f"{present}, none of them assigned to this process: a run trains on the CPU")
        return error(f"{VISIBLE} is {visible!r}, which leaves none of {present}", remedy=f"unset {VISIBLE}")
    divided = [gpu for gpu in states if gpu.is_mig and not gpu.mig_instances]
    if divided:
        return error(
            f"{divided[0].label} is in MIG mode without an instance, so CUDA sees no GPU",
            remedy=f"sudo nvidia-smi -i {divided[0].index} -mig 0",
        )
    return error(f"NVML shows {present} without saying what they are", remedy="sudo reboot")


def _denied(facts: Facts, states: tuple[GpuState, ...], plan: Intent) -> Finding:
    """A cgroup keeps every GPU for others, as a scheduler has it for a job that asked for none."""
    present = counted(len(states), "GPU")
    if plan.wants_gpu:
        what = f"the configuration asks for a GPU, and none of {present} is assigned to this process"
        return error(what, remedy=RUN if facts.in_container else "srun --gpus 1 loradock train ...")
    return ok(f"{present}, none of them assigned to this process: a run trains on the CPU")


def _broken(facts: Facts, driver: DriverState) -> Finding:
    """The driver is installed, and NVML does not work: say which of the known causes it is."""
    failure = driver.nvml_failure or "NVML shows no GPU"
    message = failure.lower()
    if "mismatch" in message:
        versions = f"the kernel module is {driver.module}, the library {driver.nvml_library or 'another version'}"
        return error(f"driver and library do not match: {versions}", remedy="sudo reboot")
    if "not found" in message and "library" in message:
        what = "the NVIDIA driver is loaded, its library libnvidia-ml.so.1 is not found"
        return error(what, remedy=RUN if facts.in_container else "sudo ldconfig && ldconfig -p | grep libnvidia-ml")
    if "unknown error" in message and facts.in_container:
        return error(
            "this container lost its access to the GPUs (NVML: Unknown Error), as after systemctl daemon-reload",
            remedy="docker restart CONTAINER",
        )
    remedy = "sudo chmod a+rw /dev/nvidia*" if "permission" in message else "sudo modprobe nvidia && nvidia-smi"
    return error(f"the NVIDIA driver is installed, but shows no GPU: {failure}", remedy=remedy)


def _not_injected(injected: str, plan: Intent) -> Finding:
    """A container that was to get GPUs. CUDA's images set `all` everywhere, so that alone is no promise."""
    what = f"{INJECTED} is {injected!r}, and this container has no GPU"
    if plan.wants_gpu or injected != "all":
        return error(what, remedy=RUN)
    return warning(f"{what}, so a run trains on the CPU", remedy=RUN)


def _give_one(facts: Facts, driver: DriverState) -> str:
    if facts.in_container:
        return RUN
    return "sudo modprobe nvidia && nvidia-smi" if driver.devices else WITHOUT


CHECK = Check(
    name="gpus",
    group="gpu",
    proves="A GPU that was requested is present and answers; a run never falls back to the CPU silently.",
    look=look,
)
