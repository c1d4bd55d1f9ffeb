"""Who runs it: users without a name, homes and caches that cannot be written, folders that run no code, no compiler."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults, namespace
from env_check.spoilt_machine import IN_CONTAINER, STRANGER, WITH_A_GPU, printed, stranger

from loradock.env_check.base import Intent
from loradock.env_check.system import cache_places, caches, compiler, executable, home
from loradock.machine import Host
from loradock.machine.answers import Attempt

pytestmark = pytest.mark.thin(2)

ENTRYPOINT = Path(__file__).parents[2] / "entrypoint"
NAMELESS: dict[str, str | None] = dict.fromkeys(("LOGNAME", "USER", "LNAME", "USERNAME"))
NO_CACHES: dict[str, str | None] = dict.fromkeys(
    ("HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")
)
PLAN = Intent(output=Path("/runs"), cache=Path("/cache"), scratch=Path("/tmp"))
NOEXEC = "mount -t tmpfs -o noexec none /srv"


def test_a_user_without_name_or_home_is_told_what_to_export(examined: Examine, faults: Faults) -> None:
    env = {**NAMELESS, **NO_CACHES, "HOME": None}
    found = examined("--only", "user,home,caches", within=stranger(), env=env)
    faults.seen("a uid without passwd entry", made="real", finding=found.one("user"), check="user")
    faults.seen("HOME is not set, nor known", made="real", finding=found.one("home"), check="home", exit_code=77)
    assert found.one("caches")["severity"] == "ok", "home says it already"
    mended = {**env, "USER": "loradock", "LOGNAME": "loradock", "HOME": "/tmp"}
    assert examined("--only", "user,home,caches", within=stranger(), env=mended).content["worst"] == "ok"


def test_a_home_that_cannot_be_made_or_written_is_named(examined: Examine, faults: Faults) -> None:
    env = {**NO_CACHES, "USER": "somebody"}
    missing = examined("--only", "home", within=stranger(), env={**env, "HOME": "/nowhere/at/all"})
    seen = missing.one("home")
    faults.seen("HOME is not there", made="real", finding=seen, check="home", exit_code=77)
    other = examined("--only", "home", within=stranger(), env={**env, "HOME": "/usr"})
    faults.seen("HOME is somebody else's", made="real", finding=other.one("home"), check="home", exit_code=77)
    kept_elsewhere = {**env, "HOME": "/usr", "XDG_CACHE_HOME": "/tmp/cache", "TRITON_CACHE_DIR": "/tmp/triton"}
    assert examined("--only", "home", within=stranger(), env=kept_elsewhere).one("home")["severity"] == "warning"


def test_the_image_raises_no_alarm_for_a_user_without_name_home_or_caches(examined: Examine) -> None:
    env = {**NAMELESS, **NO_CACHES, **IN_CONTAINER, "HOME": "/", "TMPDIR": "/srv"}
    within = [*stranger("mount -t tmpfs -o mode=1777 none /srv"), "env", "-C", "/srv", str(ENTRYPOINT)]
    found = examined("--only", "system", "--level", "quick", within=within, env=env)
    assert [each for each in found.content["findings"] if each["severity"] != "ok"] == []


def test_an_unset_home_is_a_warning_where_the_user_database_knows_it(examined: Examine, faults: Faults) -> None:
    if Host().user_home() is None:
        pytest.fail("the tests' own user has no home")
    found = examined("--only", "home", env={"HOME": None})
    faults.seen("HOME is not set", made="real", finding=found.one("home"), check="home")


def test_caches_that_cannot_be_written_are_named_with_their_variable(examined: Examine, faults: Faults) -> None:
    env = {**NO_CACHES, "USER": "somebody", "HOME": "/tmp", "TORCHINDUCTOR_CACHE_DIR": "/nowhere/inductor"}
    found = examined("--only", "caches", within=stranger(), env={**env, "HF_HOME": "/nowhere/hub"})
    for fault, words in (("no place for the hub's models", "from the hub"), ("no place for torch's code", "by torch")):
        seen = found.one("caches", containing=words)
        faults.seen(fault, made="real", finding=seen, check="caches", exit_code=77)
    found = examined("--only", "caches", within=stranger(), env={**env, "HF_HOME": "/usr"})
    seen = found.one("caches", containing="from the hub")
    faults.seen("a cache of models that may only be read", made="real", finding=seen, check="caches")


def test_a_cache_of_code_that_belongs_to_somebody_else_is_named(examined: Examine, faults: Faults) -> None:
    within = namespace(f"mount -t tmpfs -o uid={STRANGER},mode=777 none /srv")
    found = examined("--only", "caches", within=within, env={"TORCHINDUCTOR_CACHE_DIR": "/srv"})
    faults.seen("torch's code is somebody else's", made="real", finding=found.one("caches"), check="caches")


class Closed(Host):
    """A machine on which nothing may be written."""

    def may_write(self, folder: Path) -> bool:
        return False


def test_triton_needs_its_cache_on_a_gpu_only() -> None:
    (place,) = (each for each in cache_places.places(Host(), PLAN) if each.is_for_gpus)
    facts = (replace(WITH_A_GPU, gpus=()), WITH_A_GPU)
    assert [caches.judge(Closed(), place, each, PLAN)[0].severity for each in facts] == ["warning", "error"]


def test_a_scratch_that_runs_no_code_is_found(examined: Examine, faults: Faults) -> None:
    env = {**IN_CONTAINER, "TMPDIR": "/srv", "TRITON_CACHE_DIR": "/srv/triton"}
    found = examined("--only", "executable", within=namespace(NOEXEC), env=env)
    faults.seen("the scratch is mounted noexec", made="real", finding=found.one("executable"), check="executable")
    refused = Attempt(folder="/tmp", failed={"map a library": 1})
    judged = executable.judge(refused, ["TRITON_CACHE_DIR"], has_gpu=True, in_container=True)
    assert judged is not None
    seen = printed(executable.CHECK, judged)
    faults.seen("Triton's cache maps no library", made="constructed", finding=seen, check="executable")


def test_a_missing_compiler_is_found(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = tmp_path / program.name
            if not link.is_symlink() and "gcc" not in link.name and link.name not in ("cc", "clang"):
                link.symlink_to(program)
    found = examined("--only", "compiler", env={"PATH": str(tmp_path), "CC": None})
    faults.seen("no C compiler", made="real", finding=found.one("compiler"), check="compiler")
    found = examined("--only", "compiler", env={"CC": "gcc-99"})
    faults.seen("CC names no program", made="real", finding=found.one("compiler"), check="compiler")


def test_missing_headers_of_python_are_found(examined: Examine, faults: Faults) -> None:
    within = namespace(f"mount -t tmpfs none {Host().python_headers()}")
    found = examined("--only", "compiler", within=within, env={"CC": None})
    seen = found.one("compiler", containing="Python.h")
    faults.seen("no Python.h", made="real", finding=seen, check="compiler")


def test_with_a_gpu_a_missing_compiler_ends_the_run() -> None:
    class Bare(Host):
        def program(self, name: str) -> str | None:
            return None

    assert [each.exit_code for each in compiler.look(Bare(), WITH_A_GPU, PLAN)] == [71]
    assert home.look(Host(), WITH_A_GPU, PLAN)[0].severity == "ok"
