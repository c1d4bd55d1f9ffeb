"""What verdicts depend on: each subject as it is now, in one digest. While its digest stays, nothing of it changed.

A subject that cannot be told (no boot id, a folder that may not be read) has no digest, and nothing that depends on it
is kept. Of variables there is one digest of all of them, so that no secret could be guessed from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import loradock
from loradock.catalog import optimizers
from loradock.env_check.base import Intent, Subject
from loradock.env_check.child import Machine, answered, of_a_check
from loradock.env_check.compute.implementations import wanted
from loradock.env_check.compute.places import places
from loradock.env_check.system.cache_places import INDUCTOR, inductor_default
from loradock.errors import InputMissing, LoradockError
from loradock.facts import Facts
from loradock.machine import Host, marks
from loradock.machine.lockfile.pins import find_lock
from loradock.machine.machine import LIMITS
from loradock.model import hub_cache

GPUS_SECONDS = 30.0
BOOTED = re.compile(r"^btime \d+$", re.MULTILINE)
PROGRAMS = ("cc", "gcc", "clang", "ld", "as", "ptxas", "ldconfig")
"""What Triton and the checks call."""
# fmt: off
MOMENTARY = frozenset({
    "used_bytes", "processes", "corrected_volatile", "uncorrected_volatile", "uncorrected_aggregate", "slowdowns",
    "sm_mhz", "memory_mhz", "temperature_celsius", "pcie_generation", "pcie_width", "power_enforced_watts",
})
"""Of a GPU's state: what differs from one look to the next; checks of the group gpu judge it each time."""
OF_A_SESSION = frozenset({
    "_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "PS1", "LS_COLORS", "HISTFILE",
    "NO_COLOR", "FORCE_COLOR", "STY", "TMUX", "TMUX_PANE", "XDG_SESSION_ID", "XDG_RUNTIME_DIR", "INVOCATION_ID",
    "JOURNAL_STREAM", "LORADOCK_CACHE", "LORADOCK_HEARTBEAT", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK",
    "HF_HUB_DISABLE_PROGRESS_BARS", "TRANSFORMERS_VERBOSITY", "TOKENIZERS_PARALLELISM", "PYTEST_CURRENT_TEST",
    "HOSTNAME", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK",
})
"""Variables that say who types where, what is printed, or which launch it is; nothing is computed by them."""
# fmt: on
SESSION_PREFIXES = ("SSH_", "DBUS_", "VSCODE_", "TERM_", "TORCHELASTIC_", "SLURM_", "PMI")


def files(host: Host, facts: Facts, plan: Intent) -> Any:
    """Every file of the environment and of other folders of packages, the lock, and what lies beside it.

    Python's caches are left out: it writes them while it imports, and does not take one that is not of its source.
    """
    prefix = str(host.prefix())
    roots = {entry for entry in host.module_path() if entry.endswith(("/site-packages", "/dist-packages"))}
    if host.exists(f"{prefix}/pyvenv.cfg"):
        roots = {prefix, *(root for root in roots if not Path(root).is_relative_to(prefix))}
    try:
        lock: Any = _first_level(host, str(find_lock(host.prefix()).parent))
    except InputMissing:
        lock = None
    return lock, {root: marks.below(root, without=("__pycache__",)) for root in sorted(roots) if host.exists(root)}


def python(host: Host, facts: Facts, plan: Intent) -> Any:
    """The interpreter, its flags and its standard library, and what else lies on the module path.

    The working directory is left out, where loradock imports nothing from; `python-path` looks at it each time.
    """
    standard = str(host.standard_library())
    path = [entry for entry in host.module_path() if entry != os.getcwd()]
    inside = (standard, str(host.prefix()))
    others = {entry: _first_level(host, entry) for entry in path if not any(map(Path(entry).is_relative_to, inside))}
    library = marks.below(standard, without=("site-packages", "__pycache__"))
    executable = os.path.realpath(sys.executable)
    return sys.version, executable, marks.mark_of(executable), tuple(sys.flags), path, others, library


def _first_level(host: Host, folder: str) -> Any:
    """The names in a folder, with the marks of its files."""
    return {
        name: None if os.path.isdir(f"{folder}/{name}") else marks.mark_of(f"{folder}/{name}")
        for name in host.names(folder)
    }


def code(host: Host, facts: Facts, plan: Intent) -> Any:
    """Loradock itself, by content."""
    return marks.content_below(str(Path(loradock.__file__).parent))


def machine(host: Host, facts: Facts, plan: Intent) -> Any:
    """This boot of this kernel, its CPU, and its loopback (up or down); None where nothing tells boots apart."""
    started = BOOTED.search(host.read_text("/proc/stat") or "")
    boot = host.read_text("/proc/sys/kernel/random/boot_id") or (started and started[0])
    if not boot:
        return None
    processor = (host.read_text("/proc/cpuinfo") or "").partition("\n\n")[0].splitlines()
    fixed = [line for line in processor if line.partition("\t")[0] in ("vendor_id", "model name", "flags", "microcode")]
    loopback = host.read_text("/sys/class/net/lo/flags")
    kernel = host.platform(), host.read_text("/proc/version"), host.glibc()
    return boot, kernel, fixed, facts.instruction_set, host.memory_bytes(), facts.image_digest, loopback


def limits(host: Host, facts: Facts, plan: Intent) -> Any:
    """CPUs, cgroup and limits of this process."""
    memory = host.cgroup_values("memory", v2="memory.max", v1="memory.limit_in_bytes")
    tasks = host.cgroup_values("pids", v2="pids.max", v1="pids.max")
    of_process = {name: host.limit(name) for name in LIMITS}
    return facts.cpus, facts.memory_bytes, host.cpus_allowed(), host.cpu_quotas(), memory, tasks, of_process


def user(host: Host, facts: Facts, plan: Intent) -> Any:
    """Who this process is."""
    return host.uid(), os.getegid(), sorted(os.getgroups())


def libraries(host: Host, facts: Facts, plan: Intent) -> Any:
    """Shared libraries and programs of the system, the driver's among them."""
    named = [*filter(None, host.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    found = {f"{folder}/{name}" for folder in named for name in host.libraries_in(folder)}
    preloaded = host.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    programs = {name: host.program(name) for name in PROGRAMS}
    paths = {*host.system_libraries().values(), *found, *preloaded, *filter(None, programs.values())}
    return programs, marks.marks_of({*paths, "/etc/ld.so.cache", "/etc/ld.so.preload"})


def gpus(host: Host, facts: Facts, plan: Intent) -> Any:
    """Driver, its module's parameters, and GPUs with their modes."""
    module = [host.read_text(f"/proc/driver/nvidia/{name}") for name in ("version", "params")]
    usable = [asdict(replace(gpu, taken_bytes=0, runtime_bytes=None)) for gpu in facts.gpus]
    return facts.driver, module, usable, [_modes(asdict(state)) for state in _states(host, facts)]


def _states(host: Host, facts: Facts) -> Iterable[Any]:
    if not facts.has_gpu:
        return ()
    return answered(lambda: host.gpu_states(afresh=True), limit_seconds=GPUS_SECONDS, what="the GPU driver (NVML)")


def _modes(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in MOMENTARY}


def variables(host: Host, facts: Facts, plan: Intent) -> Any:
    """The environment as a check has it, without what belongs to a terminal and what torch sets at its import."""
    environ = of_a_check((host, facts, plan))
    if environ.get(INDUCTOR) == str(inductor_default(host, plan)):
        del environ[INDUCTOR]
    return sorted(
        (name, value)
        for name, value in environ.items()
        if name not in OF_A_SESSION and not name.startswith(SESSION_PREFIXES)
    )


def device(host: Host, facts: Facts, plan: Intent) -> Any:
    """Where the run computes, in which dtype, in how many processes."""
    dtype = plan.config.model.compute_dtype if plan.config else "auto"
    return plan.uses_gpu(facts), plan.wants_gpu, dtype, facts.world_size, facts.local_rank, facts.processes_here


def model(host: Host, facts: Facts, plan: Intent) -> Any:
    """The base's settings, its shape, and its config.json."""
    if plan.config is None:
        return asdict(plan.attention)
    section = plan.config.model
    directory = hub_cache.directory_of(section.name, section.revision, environ=host.environ)
    published = host.read_text(str(directory / "config.json")) if directory else None
    return asdict(plan.attention), section.model_dump(mode="json"), published


def weights(host: Host, facts: Facts, plan: Intent) -> Any:
    """The base's directory and its files' marks; None where one was changed just now, or it comes with code."""
    if plan.config is None or plan.config.model.trust_remote_code:
        return None
    directory = hub_cache.directory_of(plan.config.model.name, plan.config.model.revision, environ=host.environ)
    return directory and [str(directory), marks.below(str(directory))]


def optimizer(host: Host, facts: Facts, plan: Intent) -> Any:
    """As planned, else as configured."""
    setting = plan.config.train.optimizer if plan.config else "auto"
    return optimizers.named(plan.plan.optimizer.value if plan.plan else setting).name


def engine(host: Host, facts: Facts, plan: Intent) -> Any:
    """Engine and compiler as configured, attention as planned, or as a plan would have it."""
    config = plan.config
    attention = [wanted(facts, plan, place) for place in places(facts, plan) if place.is_used]
    return config and (config.engine, config.train.compile), attention


def trackers(host: Host, facts: Facts, plan: Intent) -> Any:
    """Those of the run."""
    return plan.config and list(plan.config.logging.trackers), plan.config is None


def moment(host: Host, facts: Facts, plan: Intent) -> Any:
    """What is another at each look."""
    return None


SUBJECTS: dict[Subject, tuple[str, Callable[[Host, Facts, Intent], Any]]] = {
    "files": ("the installed files", files),
    "python": ("Python", python),
    "code": ("loradock's code", code),
    "machine": ("boot, kernel or CPU", machine),
    "limits": ("CPUs or limits", limits),
    "user": ("the user", user),
    "libraries": ("the system's libraries", libraries),
    "gpus": ("driver or GPUs", gpus),
    "variables": ("environment variables", variables),
    "device": ("device or processes", device),
    "model": ("the model", model),
    "weights": ("the model's files", weights),
    "optimizer": ("the optimiser", optimizer),
    "engine": ("engine or attention", engine),
    "trackers": ("the trackers", trackers),
    "moment": ("the moment", moment),
}
"""{subject: (its name for people, how it is now)}."""


def digests(names: Iterable[Subject], around: Machine) -> dict[str, str]:
    """{subject: digest} of those that can be told."""
    states = {name: _state(name, around) for name in names}
    return {name: hashlib.sha256(state.encode()).hexdigest() for name, state in states.items() if state is not None}


def _state(name: Subject, around: Machine) -> str | None:
    """The state of a subject as text; None where there is none, or it cannot be told."""
    try:
        state = SUBJECTS[name][1](*around)
    except (OSError, LoradockError):
        return None
    return None if state is None else json.dumps(state, sort_keys=True, default=str)
