"""The bill of materials holds every package, is valid CycloneDX, is the same twice, and never only half."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from image.small_images import small_image
from packageurl import PackageURL
from small_venv import NAMES, install, make_venv

from loradock.delivery.image.sbom import bill_of_image, bill_of_materials
from loradock.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from docker import DockerClient

STATUS = """\
Package: gcc
Status: install ok installed
Architecture: amd64
Source: gcc-defaults (1.220)
Version: 4:14.2.0-1
Depends: gcc-14 (>= 14.2.0-6~) | other, libc6:any, absent
Description: compiler
 Depends: not-a-field

Package: gcc-14
Status: install ok installed
Architecture: amd64
Version: 14.2.0-19

Package: libc6
Status: hold ok installed
Architecture: amd64
Source: glibc
Version: 2.41-12

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_ID="13"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The two files of a Debian system that the bill is made from."""
    for name, text in (("var/lib/dpkg/status", STATUS), ("etc/os-release", OS_RELEASE)):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "root"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("bill"))


def bill(venv: Path, root: Path) -> str:
    return bill_of_materials(venv, lock=venv.parent / "requirements.lock", root=root)


def by_ref(text: str) -> dict[str, dict[str, Any]]:
    return {each["bom-ref"]: each for each in json.loads(text)["components"]}


def fault(text: str) -> object:
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def test_the_bill_is_valid_and_the_same_bytes_twice(venv: Path, root: Path) -> None:
    text = bill(venv, root)
    assert fault(text) is None
    assert text == bill(venv, root)
    assert "timestamp" not in text


def test_another_content_has_another_serial_number(venv: Path, root: Path) -> None:
    first = json.loads(bill(venv, root))["serialNumber"]
    status = root / "var/lib/dpkg/status"
    status.write_text(status.read_text(encoding="utf-8").replace("2.41-12", "2.41-13"), encoding="utf-8")
    assert json.loads(bill(venv, root))["serialNumber"] != first


def test_the_time_is_the_sources_where_one_is_given(venv: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    text = bill(venv, root)
    assert json.loads(text)["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert fault(text) is None


def test_each_python_package_has_version_licence_and_the_hashes_of_the_lock(venv: Path, root: Path) -> None:
    lock = (venv.parent / "requirements.lock").read_text(encoding="utf-8")
    python = {each["name"]: each for ref, each in by_ref(bill(venv, root)).items() if ref.startswith("pkg:pypi/")}
    assert set(python) == set(NAMES)
    for name, component in python.items():
        assert f"{name}=={component['version']} " in lock
        assert component["licenses"]
        digests = [each["content"] for each in component["externalReferences"][0]["hashes"]]
        assert digests
        assert all(f"--hash=sha256:{digest}" in lock for digest in digests)
    assert python["click"]["licenses"] == [{"license": {"acknowledgement": "declared", "id": "BSD-3-Clause"}}]


def test_a_package_outside_the_lock_is_listed_without_hashes(root: Path, tmp_path: Path) -> None:
    other = make_venv(tmp_path)
    install(other, "PyYAML")
    component = next(each for each in by_ref(bill(other, root)).values() if each["name"] == "pyyaml")
    assert "hashes" not in component
    assert "externalReferences" not in component


def test_each_installed_system_package_is_listed_with_its_source_and_what_it_needs(venv: Path, root: Path) -> None:
    text = bill(venv, root)
    system = {each["name"]: PackageURL.from_string(ref) for ref, each in by_ref(text).items() if "pkg:deb/" in ref}
    assert set(system) == {"gcc", "gcc-14", "libc6"}
    assert (system["gcc"].version, system["gcc"].namespace) == ("4:14.2.0-1", "debian")
    assert system["gcc"].qualifiers == {"arch": "amd64", "distro": "debian-13", "upstream": "gcc-defaults@1.220"}
    needs = {each["ref"]: each["dependsOn"] for each in json.loads(text)["dependencies"]}
    assert needs[system["gcc"].to_string()] == sorted([system["gcc-14"].to_string(), system["libc6"].to_string()])
    assert by_ref(text)["os:debian-13"]["type"] == "operating-system"


def test_each_reference_is_unique_and_each_need_is_listed(venv: Path, root: Path) -> None:
    content = json.loads(bill(venv, root))
    refs = [each["bom-ref"] for each in content["components"]]
    assert len(refs) == len(set(refs))
    known = {*refs, content["metadata"]["component"]["bom-ref"]}
    assert {ref for each in content["dependencies"] for ref in (each["ref"], *each["dependsOn"])} <= known


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("var/lib/dpkg/status", None, "the system packages cannot be listed"),
        ("var/lib/dpkg/status", "", "the system packages are missing"),
        ("etc/os-release", None, "the operating system cannot be listed"),
        ("etc/os-release", "NAME=x\n", "the operating system is missing"),
    ],
)
def test_a_part_that_cannot_be_listed_is_an_error_that_names_it(
    venv: Path, root: Path, name: str, text: str | None, says: str
) -> None:
    (root / name).unlink()
    if text is not None:
        (root / name).write_text(text, encoding="utf-8")
    with pytest.raises(EnvironmentUnfit, match=says):
        bill(venv, root)


def test_a_package_of_the_lock_that_is_not_installed_is_an_error_that_names_it(venv: Path, root: Path) -> None:
    lock = venv.parent / "more" / "requirements.lock"
    lock.parent.mkdir()
    text = (venv.parent / "requirements.lock").read_text(encoding="utf-8")
    lock.write_text(f"{text}\nmissing-one==1.0 \\\n    --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    with pytest.raises(EnvironmentUnfit, match="missing-one"):
        bill_of_materials(venv, lock=lock, root=root)


@pytest.mark.skipif(not Path("/var/lib/dpkg/status").exists(), reason="no dpkg on this machine")
def test_the_bill_of_this_environment_is_valid_and_written_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loradock", "image", "sbom", "-o", str(tmp_path / "bill.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    content = json.loads((tmp_path / "bill.json").read_text(encoding="utf-8"))
    names = {each["name"] for each in content["components"]}
    assert {"torch", "bitsandbytes", "dpkg", "python"} <= names
    assert content["metadata"]["component"]["name"] == "loradock"
    assert list(tmp_path.iterdir()) == [tmp_path / "bill.json"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('echo \'{"bomFormat": "CycloneDX", "components": []}\'', "exit code 0"),
        ("echo not json", "exit code 0"),
        ("echo the part that is missing >&2; exit 71", "exit code 71.*\n.*the part that is missing"),
    ],
)
def test_an_image_that_does_not_list_itself_is_an_error_and_leaves_no_container(
    engine: DockerClient, base_image: str, script: str, says: str
) -> None:
    instructions = f"ENTRYPOINT {json.dumps(['/bin/sh', '-c', script])}"
    with small_image(engine, {}, base=base_image, instructions=instructions) as built:
        with pytest.raises(EnvironmentUnfit, match=says):
            bill_of_image(engine, built.tags[0])
        assert engine.containers.list(all=True, filters={"ancestor": built.tags[0]}) == []


def test_an_image_lists_itself_without_network_capabilities_or_a_root_that_can_be_written(
    engine: DockerClient, base_image: str
) -> None:
    script = """
[ "$*" = "image sbom" ] || exit 2
touch /usr/planted 2>/dev/null && exit 3
[ "$(ls /sys/class/net)" = lo ] || exit 4
grep -q 'CapEff:.0000000000000000' /proc/self/status || exit 5
echo '{"bomFormat": "CycloneDX", "components": [{"name": "whole"}]}'
"""
    instructions = f"ENTRYPOINT {json.dumps(['/bin/sh', '-c', script, 'sh'])}"
    with small_image(engine, {}, base=base_image, instructions=instructions) as built:
        assert json.loads(bill_of_image(engine, built.tags[0]))["components"] == [{"name": "whole"}]


@pytest.mark.full
def test_the_full_image_lists_the_packages_of_its_lock_and_of_its_distribution(
    engine: DockerClient, image: str
) -> None:
    text = bill_of_image(engine, image)
    assert fault(text) is None
    names = {each["name"] for each in by_ref(text).values()}
    assert {"torch", "triton", "gcc", "tini", "python"} <= names
