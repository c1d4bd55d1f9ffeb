"""What the machine did (a disk, a limit, memory) is told as that, in whatever library's words it comes."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from loradock.config.sections.data import SourceConfig
from loradock.data.read import digest
from loradock.errors import DiskFull, EnvironmentUnfit, LoradockError, NotWritable, StorageError
from loradock.files import regular
from loradock.files.system_errors import machine_error
from loradock.training.checkpoint import manifest
from loradock.training.endings import as_loradock_error

HOST_MEMORY = "out of host memory"


def system(number: int, file: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([file] if file else []))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, NotWritable),
        (errno.EIO, StorageError),
        (errno.ESTALE, StorageError),
        (errno.EMFILE, StorageError),
        (errno.EINTR, StorageError),
        (errno.ENOMEM, EnvironmentUnfit),
    ],
)
def test_every_error_of_the_machine_has_a_code_of_its_own(number: int, kind: type[LoradockError]) -> None:
    error = machine_error(system(number))
    assert isinstance(error, kind)
    assert error.hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("unable to mmap 36256 bytes from file </m/model.safetensors>: Cannot allocate memory (12)", EnvironmentUnfit),
        ("DefaultCPUAllocator: can't allocate memory: 8 bytes. Error code 12 (Cannot allocate memory)",
         EnvironmentUnfit),
        ("I/O error: No space left on device (os error 28)", DiskFull),
        ("unable to open file </m/model.safetensors> in read-only mode: Too many open files (24)", StorageError),
        ("libcudart.so.12: cannot read file data: Input/output error", StorageError),
    ],
)  # fmt: skip
def test_what_a_library_tells_in_its_text_is_understood(text: str, kind: type[LoradockError]) -> None:
    assert type(machine_error(RuntimeError(text))) is kind
    assert type(as_loradock_error(RuntimeError(text), Path("out"), has_committed=False)) is kind


def test_a_library_that_the_loader_cannot_map_is_the_environments_fault(tmp_path: Path) -> None:
    file = tmp_path / "cut.so"
    file.write_bytes(b"\x7fELF")
    with pytest.raises(ImportError) as imported:
        ExtensionFileLoader("cut", str(file)).create_module(ModuleSpec("cut", None, origin=str(file)))
    assert type(machine_error(imported.value)) is EnvironmentUnfit
    with pytest.raises(OSError, match="shared object") as loaded:
        ctypes.CDLL("libnot_there.so")
    assert type(machine_error(loaded.value)) is EnvironmentUnfit
    assert machine_error(ImportError("cannot import name 'x'")) is None
    told_anew = ImportError("a long page of numpy's")
    told_anew.__cause__ = imported.value
    assert type(machine_error(told_anew)) is EnvironmentUnfit


def test_memory_that_python_itself_could_not_get_is_no_bug(tmp_path: Path) -> None:
    error = as_loradock_error(MemoryError(), tmp_path, has_committed=False)
    assert (error.exit_code, HOST_MEMORY in error.what) == (71, True)


@pytest.mark.parametrize("error", [ValueError("a bug"), FileNotFoundError(errno.ENOENT, "gone"), KeyError("x")])
def test_what_is_not_the_machines_doing_is_left_alone(error: Exception) -> None:
    assert machine_error(error) is None


def test_a_read_that_failed_is_not_told_as_a_write(tmp_path: Path) -> None:
    named = as_loradock_error(system(errno.EIO, "/m/config.json"), tmp_path, has_committed=False)
    assert named.what == "reading or writing /m/config.json failed: Input/output error"
    unnamed = as_loradock_error(system(errno.EIO), tmp_path, has_committed=False)
    assert unnamed.what == f"reading or writing failed, in a run in {tmp_path}: Input/output error"


def test_too_many_open_files_names_the_limit_as_the_remedy(tmp_path: Path) -> None:
    error = as_loradock_error(system(errno.EMFILE, "/m/x"), tmp_path, has_committed=False)
    assert "ulimit -n" in str(error.hint)


def test_rows_whose_file_the_disk_cannot_open_are_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "one"}\n', encoding="utf-8")

    real = os.open

    def fail(path: Any, *rest: Any, **more: Any) -> int:
        if str(path) == str(file):
            raise system(errno.EMFILE, str(file))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(StorageError, match="Too many open files"):
        digest(SourceConfig(path=str(file)))


@pytest.mark.parametrize(("number", "code"), [(errno.ESTALE, 74), (errno.EMFILE, 74), (errno.EACCES, 66)])
def test_a_checkpoint_that_its_server_does_not_give_may_be_asked_for_again(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path) -> None:
        raise system(number, str(file))

    (tmp_path / "checkpoint-4").mkdir()
    monkeypatch.setattr(regular, "opened", fail)
    with pytest.raises(LoradockError) as caught:
        manifest.read_manifest(tmp_path / "checkpoint-4")
    assert caught.value.exit_code == code


def test_a_disk_that_fails_while_a_command_is_imported_ends_it_with_74_and_no_traceback() -> None:
    program = (
        "import importlib, sys\n"
        "from loradock import cli\n"
        "def fail(name): raise OSError(5, 'Input/output error')\n"
        "cli.importlib.import_module = fail\n"
        "sys.argv = ['loradock', 'runs']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 74, done.stderr
    assert done.stderr.startswith("error: reading or writing failed: Input/output error\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("has_committed", "code"), [(True, 75), (False, 76)])
def test_what_a_library_raises_over_an_interrupt_is_the_signals_doing(
    has_committed: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy and safetensors have answered one with a ValueError of their own; without a signal that is a bug."""
    error = ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'")
    assert as_loradock_error(error, tmp_path, has_committed=has_committed).exit_code == 70
    monkeypatch.setattr("loradock.process.signals.requested", lambda: "SIGTERM")
    ended = as_loradock_error(error, tmp_path, has_committed=has_committed)
    assert ended.exit_code == code
    assert "stopped by SIGTERM" in ended.what
