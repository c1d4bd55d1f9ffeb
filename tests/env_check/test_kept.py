"""What `train` takes from before: good verdicts, while nothing changed that they depend on; 36 changes, each found."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from small_venv import make_venv

import loradock
from loradock.config.schema import RunConfig
from loradock.env_check import CHECKS
from loradock.env_check.base import Check, Finding, Intent, error, lasting_warning, ok, warning
from loradock.env_check.child import Looked
from loradock.env_check.kept import NAME, Kept
from loradock.env_check.subjects import SUBJECTS
from loradock.env_check.system.cache_places import inductor_default
from loradock.facts import Facts, Gpu
from loradock.machine import Host, marks
from loradock.machine.answers import GpuState
from loradock.machine.library_variables import of_a_training
from loradock.machine.lockfile import pins
from loradock.model.attention_shape import AttentionShape
from loradock.plan.plan import Decision, Plan, draft

pytestmark = pytest.mark.thin(2)

KEPT = tuple(check for check in CHECKS if "moment" not in check.depends_on)
BOOT, VERSION, CPU, LOOPBACK = (
    "/proc/sys/kernel/random/boot_id",
    "/proc/version",
    "/proc/cpuinfo",
    "/sys/class/net/lo/flags",
)
TEXTS = {BOOT: "one", VERSION: "Linux 6.1", CPU: "model name\t: a\nflags\t\t: avx2\n\n", LOOPBACK: "0x9"}
GPU = Gpu(name="NVIDIA A10", memory_bytes=24 << 30, capability=(8, 6))
STATE = GpuState(index=0, name=GPU.name, uuid="GPU-1", memory_bytes=24 << 30, is_mig=False, is_ecc=True, used_bytes=0)
A_MONTH_NS = 30 * marks.DAY_NS


@dataclass
class Elsewhere(Host):
    """This machine with an environment of its own, a GPU, and whatever a test changes."""

    venv: Path
    texts: dict[str, str] = field(default_factory=lambda: dict(TEXTS))
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"], "TERM": "xterm"})
    states: tuple[GpuState, ...] = (STATE,)
    who: int = 1000
    memory_limit: int = 8 << 30
    kernel: str = "Linux-6.1-x86_64"

    @property
    def environ(self) -> Mapping[str, str]:
        return self.variables

    def read_text(self, path: str) -> str | None:
        return self.texts.get(path) or super().read_text(path)

    def platform(self) -> str:
        return self.kernel

    def uid(self) -> int:
        return self.who

    def prefix(self) -> Path:
        return self.venv

    def site_packages(self) -> Path:
        return next(self.venv.glob("lib/python3.*/site-packages"))

    def standard_library(self) -> Path:
        return self.venv.parent / "stdlib"

    def module_path(self) -> tuple[str, ...]:
        added = [part for part in self.variables.get("PYTHONPATH", "").split(":") if part]
        return (*added, str(self.standard_library()), str(self.site_packages()))

    def cgroup_values(self, controller: str, v2: str, v1: str) -> tuple[int, ...]:
        return (self.memory_limit,)

    def gpu_states(self, *, afresh: bool = False) -> tuple[GpuState, ...]:
        return self.states


@dataclass
class Setting:
    """A machine, a run and a folder of verdicts."""

    folder: Path
    host: Elsewhere
    config: RunConfig
    facts: Facts
    shape: AttentionShape = field(default_factory=AttentionShape)
    plan: Plan | None = None

    @property
    def site(self) -> Path:
        return self.host.site_packages()

    @property
    def intent(self) -> Intent:
        here = self.folder
        return Intent(output=here, cache=here, scratch=here, config=self.config, attention=self.shape, plan=self.plan)

    def kept(self, *, is_full: bool = False) -> Kept:
        return Kept(self.folder / "cache", (self.host, self.facts, self.intent), is_full=is_full)

    def prove(self, *findings: Finding, checks: tuple[Check, ...] = KEPT) -> None:
        kept = self.kept(is_full=True)
        kept.taken(checks)
        kept.keep(Looked(check=check, findings=findings or (ok("fine"),), seconds=1.0) for check in checks)

    def stale(self) -> dict[str, str]:
        """{check: why it is computed} of those that may be kept."""
        kept = self.kept()
        taken = {look.check.name for look in kept.taken(KEPT)}
        assert taken.isdisjoint(kept.provenance.computed)
        assert taken | kept.provenance.computed.keys() == {check.name for check in KEPT}
        return kept.provenance.computed

    def section(self, name: str, **values: Any) -> None:
        section = getattr(self.config, name).model_copy(update=values)
        self.config = self.config.model_copy(update={name: section})


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(marks, "SETTLED_NS", 0)
    venv = make_venv(tmp_path)
    (tmp_path / "stdlib").mkdir()
    (tmp_path / "stdlib" / "os.py").write_text("here\n")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"num_attention_heads": 4}')
    (model / "model.safetensors").write_bytes(b"weights")
    package = tmp_path / "loradock"
    shutil.copytree(Path(loradock.__file__).parent / "files", package)
    (package / "__init__.py").touch()
    monkeypatch.setattr(loradock, "__file__", str(package / "__init__.py"))
    host = Elsewhere(venv)
    (tmp_path / "docker").mkdir()
    (tmp_path / "requirements.lock").rename(tmp_path / "docker" / "requirements.lock")
    monkeypatch.setattr(pins, "CHECKOUT_LOCKS", tmp_path / "docker")
    host.variables["LD_LIBRARY_PATH"] = str(tmp_path / "driver")
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "libcuda.so.1").write_text("550")
    config = RunConfig.model_validate({"model": {"name": str(model)}})
    facts = Facts(
        platform="Linux", python="3.11", cpus=2, memory_bytes=8 << 30, in_container=False, gpus=(GPU,), driver="550"
    )
    time.sleep(0.02)  # beyond the tick of the file system's clock
    return Setting(folder=tmp_path, host=host, config=config, facts=facts)


def overwrite(file: Path, *, restores_times: bool = False) -> None:
    """Another byte in the place of the last one, in the same file."""
    status, content = file.stat(), file.read_bytes()
    with file.open("r+b") as stream:
        stream.seek(len(content) - 1)
        stream.write(bytes([content[-1] ^ 1]))
    if restores_times:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (file.stat().st_mtime_ns, file.stat().st_size) == (status.st_mtime_ns, status.st_size)


def downgrade(setting: Setting) -> None:
    folder = next(setting.site.glob("click-*.dist-info"))
    metadata = folder / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: ", "Version: 0.", 1))
    folder.rename(folder.with_name("click-0.1.dist-info"))


def retarget(setting: Setting) -> None:
    link = setting.host.venv / "bin" / "python"
    link.unlink()
    link.symlink_to("/bin/true")


def replace_interpreter(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    other = setting.folder / "python"
    shutil.copy(os.path.realpath(sys.executable), other)
    monkeypatch.setattr(sys, "executable", str(other))


def put_module(setting: Setting) -> None:
    folder = setting.folder / "added"
    folder.mkdir()
    (folder / "sitecustomize.py").touch()
    setting.host.variables["PYTHONPATH"] = str(folder)


Change = Callable[[Setting], object]
ALL = {check.name for check in KEPT}
LOADING = ALL - {"lock", "model-weights"}
COMPUTING = {
    "collective",
    "dtypes",
    "experts",
    "optimizer",
    "triton",
    "quantised-linear",
    "attention-kernels",
    "training",
}
OF_MODEL = {"builds", "model-weights", "experts", "triton", "quantised-linear", "attention-kernels", "training"}


def text(path: str, value: str) -> Change:
    return lambda setting: setting.host.texts.update({path: value})


def variable(name: str, value: str) -> Change:
    return lambda setting: setting.host.variables.update({name: value})


def machine(**values: Any) -> Change:
    return lambda setting: [setattr(setting.host, name, value) for name, value in values.items()]


def facts(**values: Any) -> Change:
    return lambda setting: setattr(setting, "facts", replace(setting.facts, **values))


def gpu(**values: Any) -> Change:
    return machine(states=(replace(STATE, **values),))


CHANGES: dict[str, tuple[str, set[str], Change]] = {
    "a byte": ("files", ALL, lambda s: overwrite(s.site / "click" / "core.py")),
    "a byte, size and time as before": (
        "files",
        ALL,
        lambda s: overwrite(s.site / "click" / "core.py", restores_times=True),
    ),
    "a file less": ("files", ALL, lambda s: (s.site / "idna" / "core.py").unlink()),
    "a file more": ("files", ALL, lambda s: (s.site / "torch.py").touch()),
    "a .pth file": ("files", ALL, lambda s: (s.site / "z.pth").write_text("import os\n")),
    "byte-code": ("files", ALL, lambda s: (s.site / "click" / "core.pyc").touch()),
    "a link to elsewhere": ("files", ALL, retarget),
    "a file that everybody may write": ("files", ALL, lambda s: (s.site / "idna" / "core.py").chmod(0o666)),
    "an older package": ("files", ALL, downgrade),
    "another lock": ("files", ALL, lambda s: overwrite(s.folder / "docker" / "requirements.lock")),
    "system packages": ("files", ALL, lambda s: (s.host.venv / "pyvenv.cfg").write_text("version = 3.11.0\n")),
    "own code": ("code", ALL, lambda s: overwrite(s.folder / "loradock" / "lock.py", restores_times=True)),
    "a file of own code more": ("code", ALL, lambda s: (s.folder / "loradock" / "more.py").touch()),
    "the standard library": ("python", ALL, lambda s: overwrite(s.folder / "stdlib" / "os.py")),
    "another user": ("user", ALL, machine(who=1001)),
    "another boot": ("machine", LOADING, text(BOOT, "two")),
    "another kernel": ("machine", LOADING, machine(kernel="Linux-6.2-x86_64")),
    "another build of the kernel": ("machine", LOADING, text(VERSION, "Linux 6.1 #2")),
    "another instruction set": ("machine", LOADING, text(CPU, TEXTS[CPU].replace("avx2", "sse2"))),
    "the loopback is down": ("machine", LOADING, text(LOOPBACK, "0x8")),
    "fewer CPUs": ("limits", LOADING, facts(cpus=1)),
    "a smaller cgroup": ("limits", LOADING, machine(memory_limit=1 << 30)),
    "another driver": ("gpus", LOADING, facts(driver="560")),
    "another GPU": ("gpus", LOADING, facts(gpus=(replace(GPU, name="NVIDIA A100", capability=(8, 0)),))),
    "a GPU with ECC off": ("gpus", LOADING, gpu(is_ecc=False)),
    "a GPU that is partitioned": ("gpus", LOADING, gpu(is_mig=True)),
    "the driver's library": ("libraries", LOADING, lambda s: overwrite(s.folder / "driver" / "libcuda.so.1")),
    "threads": ("variables", LOADING, variable("OMP_NUM_THREADS", "1")),
    "a variable of NCCL": ("variables", LOADING, variable("NCCL_P2P_DISABLE", "1")),
    "another model": ("model", OF_MODEL, lambda s: setattr(s, "shape", AttentionShape(heads=8))),
    "the model's config.json": ("model", OF_MODEL, lambda s: overwrite(s.folder / "model" / "config.json")),
    "the weights, size and time as before": (
        "weights",
        {"model-weights"},
        lambda s: overwrite(s.folder / "model" / "model.safetensors", restores_times=True),
    ),
    "a shard less": ("weights", {"model-weights"}, lambda s: (s.folder / "model" / "model.safetensors").unlink()),
    "another storage": ("model", OF_MODEL, lambda s: s.section("model", quantization="none")),
    "another dtype": ("device", COMPUTING | {"builds"}, lambda s: s.section("model", compute_dtype="float16")),
    "two processes": ("device", COMPUTING | {"builds"}, facts(world_size=2)),
    "another optimiser": ("optimizer", {"optimizer"}, lambda s: s.section("train", optimizer="paged_adamw_8bit")),
    "torch.compile": (
        "engine",
        {"triton", "attention-kernels", "training"},
        lambda s: s.section("train", compile="default"),
    ),
    "a tracker": ("trackers", {"protobuf"}, lambda s: s.section("logging", trackers=("wandb",))),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.thin(4)
def test_a_change_is_found_by_every_check_that_depends_on_it_and_named(change: str, setting: Setting) -> None:
    subject, checks, make = CHANGES[change]
    setting.prove()
    assert setting.stale() == {}
    make(setting)
    stale = setting.stale()
    assert checks <= stale.keys()
    assert all(SUBJECTS[subject][0] in stale[name] for name in checks)  # pyright: ignore[reportArgumentType]
    assert checks in (ALL, LOADING) or stale.keys() - checks <= OF_MODEL


def test_another_interpreter_and_a_module_put_on_its_path_are_found(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.prove()
    put_module(setting)
    assert setting.stale().keys() == ALL
    setting.prove()
    assert setting.stale() == {}
    overwrite_me = setting.folder / "added" / "sitecustomize.py"
    overwrite_me.write_text("import os\n")
    assert setting.stale().keys() == ALL
    del setting.host.variables["PYTHONPATH"]
    assert setting.stale() == {}
    replace_interpreter(setting, monkeypatch)
    assert setting.stale().keys() == ALL
    monkeypatch.undo()


def test_a_lower_limit_of_this_process_is_found(setting: Setting) -> None:
    setting.prove()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        assert setting.stale().keys() == LOADING
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert setting.stale() == {}


def test_what_no_verdict_depends_on_makes_none_stale(setting: Setting) -> None:
    setting.prove()
    setting.host.variables |= {
        "TERM": "dumb",
        "SSH_TTY": "/dev/pts/1",
        "PWD": "/elsewhere",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    gpu(used_bytes=1 << 30, temperature_celsius=80, sm_mhz=300)(setting)
    facts(gpus=(replace(GPU, taken_bytes=1 << 30),))(setting)
    setting.section("train", learning_rate=1e-5)
    (setting.site / "click" / "__pycache__").mkdir()
    (setting.site / "click" / "__pycache__" / "core.cpython-311.pyc").touch()
    assert setting.stale() == {}


def test_what_a_training_sets_itself_makes_none_stale(setting: Setting) -> None:
    for asked in (False, True, "portable"):
        setting.config = setting.config.model_copy(update={"deterministic": asked})
        setting.host.variables = {"PATH": os.environ["PATH"]}
        setting.prove()
        setting.host.variables = of_a_training(setting.host.variables, deterministic=asked)
        assert setting.stale() == {}
    setting.host.variables["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"  # a training sets its own
    assert setting.stale() == {}
    setting.host.variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
    assert setting.stale().keys() == LOADING


def test_what_env_check_proved_without_a_plan_a_training_takes_whose_plan_follows_the_rule(setting: Setting) -> None:
    setting.prove()
    optimizer = Decision(name="optimizer", value="adamw_torch_fused", why="the default")
    for attention, stale in (("sdpa", set[str]()), ("eager", {"triton", "attention-kernels", "training"})):
        setting.plan = draft([Decision(name="attention", value=attention, why="tested"), optimizer])
        assert setting.stale().keys() - {"optimizer"} == stale


def test_the_cache_that_torch_names_when_it_is_imported_makes_none_stale(setting: Setting) -> None:
    setting.prove()
    torch_sets = str(inductor_default(setting.host, setting.intent))
    setting.host.variables["TORCHINDUCTOR_CACHE_DIR"] = torch_sets
    assert setting.stale() == {}
    setting.host.variables["TORCHINDUCTOR_CACHE_DIR"] = f"{torch_sets}-elsewhere"
    assert setting.stale().keys() == LOADING


def test_a_file_that_was_changed_just_now_proves_nothing(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "SETTLED_NS", 60 * 1_000_000_000)
    setting.prove()
    assert setting.stale().keys() == ALL


def test_what_changed_while_the_check_ran_is_not_kept(setting: Setting) -> None:
    kept = setting.kept()
    kept.taken(KEPT)
    (setting.site / "late.py").touch()
    kept.keep(Looked(check=check, findings=(ok("fine"),), seconds=1.0) for check in KEPT)
    assert setting.stale().keys() == ALL


@pytest.mark.parametrize("finding", [error("broken", remedy="mend"), warning("undecided", remedy="again")])
def test_what_failed_or_may_pass_is_computed_again_and_forgets_what_was_good(
    finding: Finding, setting: Setting
) -> None:
    setting.prove()
    setting.prove(ok("fine"), finding)
    assert set(setting.stale().values()) == {"no proof yet"}


def test_a_lasting_warning_is_kept_and_said_again(setting: Setting) -> None:
    lasting = lasting_warning("a package more", remedy="pip uninstall it")
    setting.prove(lasting)
    assert [look.findings for look in setting.kept().taken(KEPT)] == [(lasting,)] * len(KEPT)


def test_two_models_in_turn_keep_a_verdict_each(setting: Setting) -> None:
    setting.prove()
    setting.shape = AttentionShape(heads=8)
    setting.prove()
    assert setting.stale() == {}
    setting.shape = AttentionShape()
    assert setting.stale() == {}


def test_a_full_look_takes_nothing_and_keeps_what_it_finds(setting: Setting) -> None:
    setting.prove()
    kept = setting.kept(is_full=True)
    assert kept.taken(KEPT) == []
    assert set(kept.provenance.computed.values()) == {"--full-env-check"}


def test_a_check_that_declares_nothing_is_about_the_moment_and_computed_each_time(setting: Setting) -> None:
    others = tuple(check for check in CHECKS if check not in KEPT)
    setting.prove(checks=others)
    assert {"gpu-memory", "ecc", "clocks", "space"} <= {check.name for check in others}
    assert setting.kept().taken(others) == []


def content(setting: Setting) -> Any:
    return json.loads((setting.folder / "cache" / NAME).read_text())


def aged(setting: Setting, by_ns: int) -> str:
    changed = content(setting)
    for entries in changed["verdicts"].values():
        for entry in entries:
            entry["at_ns"] -= by_ns
    return json.dumps(changed)


def test_a_proof_older_than_a_week_or_of_the_future_does_not_count(setting: Setting) -> None:
    setting.prove()
    file = setting.folder / "cache" / NAME
    file.write_text(aged(setting, A_MONTH_NS))
    assert set(setting.stale().values()) == {"a proof older than a week"}
    file.write_text(aged(setting, -2 * A_MONTH_NS))
    assert setting.stale().keys() == ALL


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "no object": list,
    "another format": lambda good: {**good, "format": "loradock.env-check.kept/9"},
    "no verdicts": lambda good: {"format": good["format"]},
    "verdicts that are none": lambda good: {**good, "verdicts": {"lock": [7]}},
    "findings that are none": lambda good: {
        **good,
        "verdicts": {"lock": [{"subjects": {}, "at_ns": 1, "findings": [1]}]},
    },
    "an error among them": lambda good: {
        **good,
        "verdicts": {
            name: [{**entry, "findings": [{"severity": "error", "what": "x", "remedy": "y"}]} for entry in entries]
            for name, entries in good["verdicts"].items()
        },
    },
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_counts_as_none_and_is_written_anew(damage: str, setting: Setting) -> None:
    setting.prove()
    file = setting.folder / "cache" / NAME
    file.write_text(json.dumps(DAMAGES[damage](content(setting))))
    assert setting.stale().keys() == ALL
    setting.prove()
    assert setting.stale() == {}


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b'{"format":', b"[" * 5000])
def test_a_file_cut_short_counts_as_none(raw: bytes, setting: Setting) -> None:
    setting.prove()
    (setting.folder / "cache" / NAME).write_bytes(raw)
    assert setting.stale().keys() == ALL


def test_a_file_that_others_may_write_or_own_proves_nothing(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = os.umask(0)
    try:
        setting.prove()
    finally:
        os.umask(mask)
    file = setting.folder / "cache" / NAME
    assert file.stat().st_mode & 0o777 == 0o600
    for mode in (0o620, 0o602):
        file.chmod(mode)
        assert setting.stale().keys() == ALL
    file.chmod(0o600)
    assert setting.stale() == {}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert setting.stale().keys() == ALL


def test_without_a_cache_that_can_be_written_everything_is_computed(setting: Setting) -> None:
    (setting.folder / "cache").write_text("a file in its place")
    setting.prove()
    assert set(setting.stale().values()) == {"no proof yet"}
