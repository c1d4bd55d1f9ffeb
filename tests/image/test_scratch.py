"""The scratch: what its storage can be relied on for is tried, not assumed; one build at a time; no foreign file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loradock.delivery.image.scratch import can_compile, held, opened, probe, temporary
from loradock.errors import EnvironmentUnfit, NotWritable, StorageError, UsageError


@pytest.fixture
def no_exec(tmp_path: Path) -> Iterator[Path]:
    """A small mount that runs no programs."""
    folder = tmp_path / "no-exec"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,noexec", "none", folder], capture_output=True).returncode:
        pytest.skip("needs root to mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_local_disk_is_safe_for_everything(tmp_path: Path) -> None:
    findings = probe(tmp_path)
    assert [finding.name for finding in findings if not finding.is_safe] == []
    assert len(findings) == 8
    assert list(tmp_path.iterdir()) == []


def test_storage_that_runs_no_programs_is_named_and_bears_no_compile_tree(no_exec: Path) -> None:
    findings = probe(no_exec)
    unsafe = [finding for finding in findings if not finding.is_safe]
    assert [finding.name for finding in unsafe] == ["running programs"]
    assert unsafe[0].seen == "Permission denied"
    assert can_compile(findings) == unsafe


def test_a_second_build_is_refused_with_the_process_that_holds_the_scratch(tmp_path: Path) -> None:
    opened(tmp_path)
    script = (
        "import sys, pathlib; from loradock.delivery.image.scratch import held, opened\n"
        "with held(opened(pathlib.Path(sys.argv[1]))): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(EnvironmentUnfit, match=rf"process {other.pid} on"), held(opened(tmp_path)):
            pass
        other.kill()
    with held(opened(tmp_path)):
        pass


def test_a_folder_with_foreign_files_gets_a_folder_of_ours_below(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    scratch = opened(tmp_path)
    assert scratch.root == tmp_path / "loradock"
    assert (scratch.root / ".loradock-scratch").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loradock", "thesis.tex"]
    assert opened(tmp_path).root == scratch.root


def test_an_empty_folder_becomes_the_scratch_itself_and_stays_it(tmp_path: Path) -> None:
    scratch = opened(tmp_path)
    (tmp_path / "flash-attn-0123").mkdir()
    assert scratch.root == tmp_path
    assert opened(tmp_path) == scratch


def test_a_temporary_folder_goes_when_the_build_fails(tmp_path: Path) -> None:
    scratch = opened(tmp_path)

    def fail() -> None:
        with temporary(scratch) as folder:
            (folder / "part").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(scratch.tmp.iterdir()) == []


def test_a_file_or_a_read_only_folder_is_refused_with_the_option(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="is a file") as refused:
        opened(file)
    assert "--scratch" in str(refused.value)
    if os.geteuid() != 0:
        (tmp_path / "sealed").mkdir(mode=0o500)
        with pytest.raises(NotWritable):
            opened(tmp_path / "sealed")


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    scratch = opened(tmp_path / "scratch")
    (scratch.root / ".lock").symlink_to(target)
    with pytest.raises(StorageError, match="cannot be opened"), held(scratch):
        pass
    assert target.read_text() == "kept"
