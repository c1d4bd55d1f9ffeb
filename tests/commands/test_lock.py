"""`loradock lock verify` as a person types it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_venv import append, make_venv, seal, site_of

pytestmark = pytest.mark.thin(1)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return make_venv(tmp_path)


def verify(venv: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loradock", "lock", "verify", "--venv", str(venv)]
    command += ["--lock", str(venv.parent / "requirements.lock"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"})


def test_an_environment_as_locked_ends_with_0_and_says_what_was_checked(venv: Path) -> None:
    done = verify(venv)
    assert done.returncode == 0, done.stderr
    assert "ok: 4 packages" in done.stdout
    assert "note: no manifest" in done.stderr


def test_a_damaged_environment_ends_with_71_and_every_problem_with_file_and_remedy(venv: Path) -> None:
    core, planted = site_of(venv) / "click" / "core.py", site_of(venv) / "evil.pth"
    append(core, b"#")
    planted.write_text("import evil\n", encoding="utf-8")
    done = verify(venv)
    assert done.returncode == 71
    assert f"{core}: tampered: differs from the RECORD of click (" in done.stderr
    assert f"{planted}: unowned: no package owns it (rm -r {planted})" in done.stderr
    assert "hint: " in done.stderr
    assert "ok:" not in done.stdout


def test_nothing_of_the_environment_that_is_looked_at_is_run(venv: Path) -> None:
    trace = venv.parent / "ran"
    (site_of(venv) / "evil.pth").write_text(f"import pathlib; pathlib.Path({str(trace)!r}).touch()\n", encoding="utf-8")
    assert verify(venv).returncode == 71
    assert not trace.exists()
    subprocess.run([str(venv / "bin" / "python"), "-c", "pass"], check=True)
    assert trace.exists(), "the planted file would have run"


def test_the_json_for_programs_is_whole_also_when_something_is_found(venv: Path) -> None:
    append(site_of(venv) / "click" / "core.py", b"#")
    done = verify(venv, "--json")
    content = json.loads(done.stdout)
    assert done.returncode == 71
    assert [(each["kind"], each["package"]) for each in content["findings"]] == [("tampered", "click")]
    assert content["packages"] == 4


def test_the_digest_of_the_manifest_is_printed_and_can_be_asked_for(venv: Path) -> None:
    digest = seal(venv)
    assert f"manifest    sha256:{digest}" in verify(venv).stdout
    assert verify(venv, "--manifest-digest", f"sha256:{digest}").returncode == 0
    done = verify(venv, "--manifest-digest", f"sha256:{'0' * 64}")
    assert done.returncode == 71
    assert f"its digest is sha256:{digest}" in done.stderr
