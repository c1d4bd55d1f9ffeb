"""A real small environment, broken in every way that `lock verify` names, is found broken; a whole one is not."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_venv import append, dist_info, install, make_venv, rerecord, seal, site_of

from loradock.errors import EnvironmentUnfit, InputMissing
from loradock.machine.lockfile.digests import SMALL_BYTES, digest_files
from loradock.machine.lockfile.known import NAME, Known
from loradock.machine.lockfile.pins import find_lock, read_lock
from loradock.machine.lockfile.verify import Verified
from loradock.machine.lockfile.verify import verify as verify_environment
from loradock.machine.marks import SETTLED_NS, TRUSTED_NS

pytestmark = pytest.mark.thin(2)

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "docker" / "requirements.lock"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def venv(whole: Path, tmp_path: Path) -> Path:
    """A copy that may be broken, with its lock beside it."""
    shutil.copytree(whole.parent, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy" / "venv"


def verify(prefix: Path, *, manifest_sha256: str | None = None) -> Verified:
    return verify_environment(prefix, lock=prefix.parent / "requirements.lock", manifest_sha256=manifest_sha256)


def found(prefix: Path, *, manifest_sha256: str | None = None) -> list[tuple[str, str]]:
    """(kind, name of the file) of each finding."""
    findings = verify(prefix, manifest_sha256=manifest_sha256).findings
    return [(finding.kind, Path(finding.file).name) for finding in findings]


def test_a_whole_environment_has_no_findings(venv: Path) -> None:
    verified = verify(venv)
    assert verified.findings == ()
    assert verified.packages == 4
    assert verified.files > 100


def test_byte_code_of_its_sources_is_no_finding_however_python_made_it(venv: Path) -> None:
    site = site_of(venv)
    for mode in py_compile.PycInvalidationMode:
        assert compileall.compile_dir(site / "click", quiet=2, force=True, invalidation_mode=mode)
        assert found(venv) == []


def tamper(prefix: Path) -> None:
    append(site_of(prefix) / "click" / "core.py", b"#")


def tamper_keeping_the_size(prefix: Path) -> None:
    path = site_of(prefix) / "click" / "core.py"
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))


def add_package(prefix: Path) -> None:
    install(prefix, "PyYAML")


def change_version(prefix: Path) -> None:
    folder = dist_info(prefix, "click")
    metadata = (folder / "METADATA").read_text(encoding="utf-8")
    (folder / "METADATA").write_text(re.sub(r"\nVersion: .*", "\nVersion: 8.0.0", metadata, count=1), encoding="utf-8")
    record = (folder / "RECORD").read_text(encoding="utf-8")
    new = folder.with_name("click-8.0.0.dist-info")
    (folder / "RECORD").write_text(record.replace(folder.name, new.name), encoding="utf-8")
    folder.rename(new)
    rerecord(prefix, "click", "click-8.0.0.dist-info/METADATA")


def remove_file(prefix: Path) -> None:
    (site_of(prefix) / "click" / "core.py").unlink()


def remove_package(prefix: Path) -> None:
    shutil.rmtree(site_of(prefix) / "click")
    shutil.rmtree(dist_info(prefix, "click"))


def plant_pth(prefix: Path) -> None:
    (site_of(prefix) / "evil.pth").write_text("import os; os.system('true')\n", encoding="utf-8")


def plant_sitecustomize(prefix: Path) -> None:
    (site_of(prefix) / "sitecustomize.py").write_text("", encoding="utf-8")


def plant_package(prefix: Path) -> None:
    shutil.copytree(site_of(prefix) / "idna", site_of(prefix) / "evil")


def plant_link_to_a_package(prefix: Path) -> None:
    (site_of(prefix) / "evil").symlink_to("/tmp", target_is_directory=True)


def plant_module_in_a_package(prefix: Path) -> None:
    (site_of(prefix) / "click" / "evil.py").write_text("", encoding="utf-8")


def plant_bytecode_without_source(prefix: Path) -> None:
    source = prefix / "evil.py"
    source.write_text("", encoding="utf-8")
    py_compile.compile(str(source), cfile=str(site_of(prefix) / "evil.pyc"))
    source.unlink()


def plant_program(prefix: Path) -> None:
    (prefix / "bin" / "git").write_text("#!/bin/sh\n", encoding="utf-8")


def replace_interpreter(prefix: Path) -> None:
    (prefix / "bin" / "python3").unlink()
    (prefix / "bin" / "python3").write_text("#!/bin/sh\n", encoding="utf-8")


def remove_record(prefix: Path) -> None:
    (dist_info(prefix, "idna") / "RECORD").unlink()


def drop_hash(prefix: Path) -> None:
    record = dist_info(prefix, "idna") / "RECORD"
    lines = record.read_text(encoding="utf-8")
    record.write_text(re.sub(r"(idna/core\.py),.*", r"\1,,", lines), encoding="utf-8")


def weaken_hash(prefix: Path) -> None:
    record = dist_info(prefix, "idna") / "RECORD"
    lines = record.read_text(encoding="utf-8")
    record.write_text(re.sub(r"(idna/core\.py),[^,]*", r"\1,md5=AAAA", lines), encoding="utf-8")


def claim_file_outside(prefix: Path) -> None:
    append(dist_info(prefix, "idna") / "RECORD", b"../../../../../etc/passwd,sha256=%s,1\n" % (b"A" * 43))


def install_twice(prefix: Path) -> None:
    shutil.copytree(dist_info(prefix, "idna"), site_of(prefix) / "idna-1.0.dist-info")


def open_to_the_system(prefix: Path) -> None:
    config = prefix / "pyvenv.cfg"
    config.write_text(config.read_text(encoding="utf-8").replace("packages = false", "packages = true"), "utf-8")


def swap_bytecode(prefix: Path) -> None:
    """Byte-code that Python runs without a look at the source, made from another source."""
    target = site_of(prefix) / "click" / "core.py"
    source = prefix.parent / "evil.py"
    source.write_text("print('evil')\n", encoding="utf-8")
    cached = target.parent / "__pycache__" / f"core.{sys.implementation.cache_tag}.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), cfile=str(cached), invalidation_mode=mode)


def put_pipe_in_place(prefix: Path) -> None:
    path = site_of(prefix) / "click" / "core.py"
    path.unlink()
    os.mkfifo(path)


BREAKS: list[tuple[Callable[[Path], None], list[tuple[str, str]]]] = [
    (tamper, [("tampered", "core.py")]),
    (tamper_keeping_the_size, [("tampered", "core.py")]),
    (add_package, [("extra", "pyyaml-6.0.3.dist-info")]),
    (change_version, [("wrong-version", "click-8.0.0.dist-info")]),
    (remove_file, [("absent", "core.py")]),
    (remove_package, [("missing", "requirements.lock")]),
    (plant_pth, [("unowned", "evil.pth")]),
    (plant_sitecustomize, [("unowned", "sitecustomize.py")]),
    (plant_package, [("unowned", "evil")]),
    (plant_link_to_a_package, [("unowned", "evil")]),
    (plant_module_in_a_package, [("unowned", "evil.py")]),
    (plant_bytecode_without_source, [("unowned", "evil.pyc")]),
    (plant_program, [("unowned", "git")]),
    (replace_interpreter, [("unowned", "python3")]),
    (drop_hash, [("bad-record", "RECORD"), ("unowned", "core.py")]),
    (weaken_hash, [("bad-record", "RECORD"), ("unowned", "core.py")]),
    (claim_file_outside, [("outside", "RECORD")]),
    (open_to_the_system, [("open", "pyvenv.cfg")]),
    (swap_bytecode, [("byte-code", f"core.{sys.implementation.cache_tag}.pyc")]),
    (put_pipe_in_place, [("unreadable", "core.py")]),
]


@pytest.mark.parametrize(("damage", "findings"), BREAKS, ids=[damage.__name__ for damage, _ in BREAKS])
def test_each_kind_of_damage_is_found_and_nothing_else(
    venv: Path, damage: Callable[[Path], None], findings: list[tuple[str, str]]
) -> None:
    damage(venv)
    assert found(venv) == findings


def test_a_package_without_its_record_owns_nothing(venv: Path) -> None:
    remove_record(venv)
    programs = {path.name for path in (venv / "bin").glob("idna*")}
    owned = {"idna", dist_info(venv, "idna").name, *programs}
    assert set(found(venv)) == {("no-record", "RECORD"), *(("unowned", name) for name in owned)}


def test_a_package_that_is_there_twice_is_found(venv: Path) -> None:
    install_twice(venv)
    kinds = {kind for kind, _ in found(venv)}
    assert {"duplicate", "bad-record"} <= kinds


def test_a_file_that_another_package_overwrote_is_told_apart_from_a_tampered_one(venv: Path) -> None:
    append(site_of(venv) / "click" / "core.py", b"# of idna now\n")
    rerecord(venv, "idna", "click/core.py")
    assert found(venv) == [("overwritten", "core.py")]


def test_every_finding_says_what_to_type(venv: Path) -> None:
    tamper(venv)
    plant_pth(venv)
    add_package(venv)
    extra, tampered, unowned = verify(venv).findings
    assert extra.remedy.endswith("pyyaml")
    assert "uninstall" in extra.remedy
    assert re.search(r"install .*--no-deps click==8\.\d", tampered.remedy)
    assert unowned.remedy == f"rm -r {site_of(venv) / 'evil.pth'}"


def test_without_a_manifest_a_change_hidden_in_record_is_not_found_and_that_is_said(venv: Path) -> None:
    tamper(venv)
    rerecord(venv, "click", "click/core.py")
    assert found(venv) == []
    assert "not found" in " ".join(verify(venv).notes)


def test_with_a_manifest_both_the_changed_file_and_its_changed_record_are_found(venv: Path) -> None:
    digest = seal(venv)
    assert found(venv, manifest_sha256=f"sha256:{digest}") == []
    tamper(venv)
    rerecord(venv, "click", "click/core.py")
    assert sorted(found(venv)) == [("tampered", "RECORD"), ("tampered", "core.py")]


def test_with_a_manifest_a_planted_file_that_a_record_names_is_found(venv: Path) -> None:
    seal(venv)
    (site_of(venv) / "evil.py").write_text("", encoding="utf-8")
    rerecord(venv, "click", "evil.py")
    assert ("unowned", "evil.py") in found(venv)


def test_with_a_manifest_byte_code_that_came_since_is_found(venv: Path) -> None:
    compileall.compile_dir(site_of(venv) / "click", quiet=2)
    seal(venv)
    assert found(venv) == []
    compileall.compile_dir(site_of(venv) / "idna", quiet=2)
    assert {kind for kind, _ in found(venv)} == {"unowned"}


def test_a_manifest_written_anew_is_found_by_its_digest(venv: Path) -> None:
    digest = seal(venv)
    tamper(venv)
    rerecord(venv, "click", "click/core.py")
    seal(venv)
    assert found(venv) == []
    assert found(venv, manifest_sha256=digest) == [("manifest", "manifest.sha256")]


def test_a_manifest_that_is_gone_is_a_finding_where_its_digest_is_asked_for(venv: Path) -> None:
    assert found(venv, manifest_sha256="0" * 64) == [("manifest", "manifest.sha256")]


def test_a_manifest_with_a_bad_line_is_refused_with_its_place(venv: Path) -> None:
    seal(venv)
    append(venv.parent / "manifest.sha256", b"abc  /x\n")
    with pytest.raises(EnvironmentUnfit, match=r"manifest\.sha256:\d+: not"):
        verify(venv)


def test_the_lock_is_read_for_the_python_that_is_asked_about() -> None:
    older, newer = (read_lock(LOCK, python_version=version) for version in ("3.11.7", "3.12.3"))
    assert (older["contourpy"].version, newer["contourpy"].version) == ("1.3.3", "1.4.0")
    assert all(pin.hashes for pin in newer.values())
    pins = re.findall(r"^([a-z0-9][^=]*)==(\S+)", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {(pin.name, pin.version) for pin in newer.values()} <= set(pins)


def test_a_lock_without_hash_or_exact_version_is_refused_line_by_line(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"click==8.0\nrich>=3 \\\n    --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    with pytest.raises(EnvironmentUnfit) as caught:
        read_lock(lock, python_version="3.12.3")
    assert [problem.line for problem in caught.value.problems] == [1, 2]


def test_an_environment_made_for_development_is_held_against_its_own_lock(tmp_path: Path) -> None:
    assert find_lock(tmp_path).name == "requirements.lock"
    (tmp_path / "loradock.stamp").write_text("dev\n/somewhere\n", encoding="utf-8")
    assert find_lock(tmp_path).name == "requirements-dev.lock"


def test_what_is_no_virtual_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match="not a virtual environment"):
        verify_environment(tmp_path)


def test_a_lock_that_is_not_there_is_named(venv: Path) -> None:
    with pytest.raises(InputMissing, match=r"absent\.lock"):
        verify_environment(venv, lock=venv / "absent.lock")


def test_big_and_small_files_have_the_digests_of_sha256sum(tmp_path: Path) -> None:
    sizes = (0, 1, SMALL_BYTES, SMALL_BYTES + 1, 9 * SMALL_BYTES)
    paths = {str(tmp_path / str(size)): bytes(range(256)) * (size // 256) + b"x" * (size % 256) for size in sizes}
    for path, content in paths.items():
        Path(path).write_bytes(content)
    seen: list[tuple[int, int]] = []
    digests, size_bytes = digest_files(
        {path: {"sha256", "sha512"} for path in paths}, progress=lambda done, total: seen.append((done, total))
    )
    assert digests == {
        path: {name: hashlib.new(name, content).digest() for name in ("sha256", "sha512")}
        for path, content in paths.items()
    }
    assert seen[-1] == (size_bytes, size_bytes) == (sum(sizes), sum(sizes))


@pytest.mark.full
def test_the_environment_of_these_tests_is_as_locked() -> None:
    assert verify_environment(Path(sys.prefix)).findings == ()


def test_unchanged_files_are_not_read_again_but_one_whose_size_and_time_were_put_back_is(
    venv: Path, tmp_path: Path
) -> None:
    time.sleep(1.1 * SETTLED_NS / 1e9)

    def verified() -> Verified:
        return verify_environment(venv, lock=venv.parent / "requirements.lock", known=Known(tmp_path / "cache"))

    first, again = verified(), verified()
    assert first.findings == again.findings == ()
    assert first.size_bytes > 0 == again.size_bytes
    file = site_of(venv) / "click" / "core.py"
    before = file.stat()
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for changed in (verified(), verified()):  # twice: what changed just now is not kept
        assert [(each.kind, Path(each.file).name) for each in changed.findings] == [("tampered", "core.py")]
        assert changed.size_bytes == before.st_size


@pytest.mark.parametrize("reason", ["a week has passed", "others may write them"])
def test_kept_digests_are_believed_for_a_week_and_where_nobody_else_may_write_them(
    reason: str, venv: Path, tmp_path: Path
) -> None:
    time.sleep(1.1 * SETTLED_NS / 1e9)
    lock, file = venv.parent / "requirements.lock", tmp_path / NAME
    read_bytes = [verify_environment(venv, lock=lock, known=Known(tmp_path)).size_bytes for _ in range(2)]
    assert read_bytes[0] > 0 == read_bytes[1]
    if reason == "others may write them":
        file.chmod(0o666)
    else:
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "since_ns": content["since_ns"] - TRUSTED_NS}))
    again = [verify_environment(venv, lock=lock, known=Known(tmp_path)).size_bytes for _ in range(2)]
    assert again == read_bytes


def test_kept_digests_that_cannot_be_read_are_none(venv: Path, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{", encoding="utf-8")
    verified = verify_environment(venv, lock=venv.parent / "requirements.lock", known=Known(tmp_path))
    assert verified.findings == ()
    assert verified.size_bytes > 0
