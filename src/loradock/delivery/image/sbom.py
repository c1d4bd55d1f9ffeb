"""The bill of materials of an image or environment: CycloneDX 1.6 JSON, the same bytes for the same content.

Python packages with the hashes of the lock, the interpreter, the distribution's packages, and what needs what. A part
that cannot be listed is an error: half a bill would pass for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock import __version__
from loradock.delivery.image.dpkg import Distribution, SystemPackage, distribution, system_packages
from loradock.errors import EnvironmentUnfit, Problem
from loradock.machine.lockfile.installed import Installed, installed_in
from loradock.machine.lockfile.pins import Locked, find_lock, optional_pins, python_of, read_lock, site_packages

if TYPE_CHECKING:
    from docker import DockerClient

NAMESPACE = uuid.UUID("6f1f6c1e-5d5b-5a6e-9d7c-1f0c6a3b7f5e")
LONGEST_LICENSE_NAME = 100


@dataclass(kw_only=True)
class Bill:
    """The parts of a bill in the making, in CycloneDX's own words; `subject` is what the bill is of."""

    subject: dict[str, Any] = field(default_factory=dict)
    components: list[dict[str, Any]] = field(default_factory=list)
    needs: dict[str, list[str]] = field(default_factory=dict)


def bill_of_materials(prefix: Path, *, lock: Path | None = None, root: Path = Path("/")) -> str:
    """The CycloneDX JSON of the virtual environment at `prefix` and the system at `root`.

    The serial number is made from the content; there is a timestamp only with SOURCE_DATE_EPOCH. EnvironmentUnfit
    where the system packages cannot be read, or a Python package of the lock is not there.
    """
    prefix = prefix.resolve()
    python = python_of(prefix)
    lock = lock or find_lock(prefix)
    locked = {**optional_pins(lock), **read_lock(lock, python_version=python)}
    installed = installed_in(site_packages(prefix))
    _refuse_gaps(installed, read_lock(lock, python_version=python), lock)
    bill = Bill()
    _add_python(bill, installed, locked, python=python, lock=lock)
    _add_system(bill, distribution(root), system_packages(root))
    return _serialised(bill)


def bill_of_image(client: DockerClient, reference: str) -> str:
    """What the image says of itself: `image sbom` run in it, without network and with nothing writable but /tmp."""
    from loradock.delivery.image.engine import image_named
    from loradock.delivery.image.labels import CONTAINER

    image_named(client, reference)
    container = client.containers.create(
        reference,
        ["image", "sbom"],
        network_mode="none",
        read_only=True,
        tmpfs={"/tmp": "rw,exec,nosuid,nodev"},
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        labels={CONTAINER: "sbom"},
    )
    try:
        container.start()
        code = container.wait()["StatusCode"]
        text = container.logs(stdout=True, stderr=False).decode()
        log = container.logs(stdout=False, stderr=True).decode(errors="replace")
    finally:
        container.remove(force=True)
    if code != 0 or not _is_bill(text):
        problems = [Problem(what=line) for line in log.splitlines()[-5:]]
        raise EnvironmentUnfit(
            f"{reference} did not list what it holds (exit code {code})",
            hint=f"docker run --rm {reference} image sbom",
            problems=problems,
        )
    return text


def _is_bill(text: str) -> bool:
    try:
        content = json.loads(text)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("bomFormat") == "CycloneDX" and bool(content.get("components"))


def _refuse_gaps(installed: list[Installed], locked: dict[str, Locked], lock: Path) -> None:
    missing = sorted(locked.keys() - {package.name for package in installed})
    if missing:
        raise EnvironmentUnfit(
            f"the environment lacks {len(missing)} packages of {lock}: its bill would not be that of the lock",
            hint="loradock lock verify",
            problems=[Problem(what=name) for name in missing],
        )


def _add_python(bill: Bill, installed: list[Installed], locked: dict[str, Locked], *, python: str, lock: Path) -> None:
    """loradock as the subject, the interpreter, each package and what it needs."""
    from packageurl import PackageURL

    components = {package.name: _python_component(package, locked.get(package.name)) for package in installed}
    interpreter = PackageURL("generic", name="python", version=python).to_string()
    subject = components.pop("loradock", None) or {"name": "loradock", "version": __version__, "bom-ref": "loradock"}
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    properties = {"loradock:lock": f"sha256:{digest}", "loradock:revision": os.environ.get("LORADOCK_COMMIT")}
    subject["type"] = "application"
    subject["properties"] = [{"name": name, "value": value} for name, value in properties.items() if value]
    bill.subject = subject
    bill.components += components.values()
    bill.components.append(
        {"type": "application", "name": "python", "version": python, "purl": interpreter, "bom-ref": interpreter}
    )
    bill.needs[subject["bom-ref"]] = [interpreter]
    for package in installed:
        is_ours = package.name == "loradock"
        needed = _needed(package.metadata, python=python, with_extras=is_ours)
        refs = [components[name]["bom-ref"] for name in sorted(needed & components.keys())]
        bill.needs.setdefault(subject["bom-ref"] if is_ours else components[package.name]["bom-ref"], []).extend(refs)


def _python_component(package: Installed, pin: Locked | None) -> dict[str, Any]:
    """A package, with the SHA-256 of each file that the lock lets be installed for it.

    The lock does not say which of the files suits this machine, so they stand at the distribution, not at the
    component; where there is only one, at both. A package without them is none of the lock's.
    """
    from packageurl import PackageURL

    purl = PackageURL("pypi", name=package.name, version=package.version).to_string()
    component: dict[str, Any] = {
        "type": "library",
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "bom-ref": purl,
    }
    if package.metadata["Summary"]:
        component["description"] = package.metadata["Summary"]
    if licenses := _licenses(package.metadata):
        component["licenses"] = licenses
    if pin is not None and pin.version == package.version:
        hashes = [{"alg": "SHA-256", "content": digest} for digest in pin.hashes]
        comment = "the files of this release that the lock allows; one of them is installed"
        component["externalReferences"] = [{"type": "distribution", "url": purl, "comment": comment, "hashes": hashes}]
        if len(hashes) == 1:
            component["hashes"] = hashes
    return component


def _licenses(metadata: Message) -> list[dict[str, Any]]:
    """The licence that the metadata declare: an SPDX expression, a short name, or the classifiers."""
    from cyclonedx.spdx import fixup_id, is_expression

    # Some put the licence's whole text there: then the classifiers say it shorter.
    texts = [(metadata[key] or "").strip() for key in ("License-Expression", "License")]
    declared = [text for text in texts if text and "\n" not in text and len(text) <= LONGEST_LICENSE_NAME][:1]
    if not declared:
        classifiers = [str(classifier) for classifier in metadata.get_all("Classifier", [])]
        declared = sorted(
            {classifier.rpartition(" :: ")[2] for classifier in classifiers if classifier.startswith("License :: ")}
        )
    if len(declared) == 1 and not fixup_id(declared[0]) and is_expression(declared[0]):
        return [{"expression": declared[0], "acknowledgement": "declared"}]
    licences = ({"id": fixup_id(text)} if fixup_id(text) else {"name": text} for text in declared)
    return [{"license": {**licence, "acknowledgement": "declared"}} for licence in licences]


def _needed(metadata: Message, *, python: str, with_extras: bool) -> set[str]:
    """The names that a package requires here; with what its extras require where it is installed with them."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    extras = ["", *(metadata.get_all("Provides-Extra", []) if with_extras else [])]
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    environments = [{**environment, "extra": str(extra)} for extra in extras]
    requirements = [Requirement(str(text)) for text in metadata.get_all("Requires-Dist", [])]
    return {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or any(requirement.marker.evaluate(extra) for extra in environments)
    }


def _add_system(bill: Bill, system: Distribution, packages: list[SystemPackage]) -> None:
    """The operating system, each of its packages and what that needs."""
    components = {package.name: _system_component(package, system) for package in packages}
    for entry in packages:
        first = (next((name for name in group if name in components), None) for group in entry.needs)
        refs = {components[name]["bom-ref"] for name in first if name}
        bill.needs[components[entry.name]["bom-ref"]] = sorted(refs)
    operating_system = {
        "type": "operating-system",
        "name": system.id,
        "version": system.version,
        "description": system.title,
        "bom-ref": f"os:{system.id}-{system.version}",
    }
    bill.components += [*components.values(), operating_system]
    bill.needs[str(operating_system["bom-ref"])] = [component["bom-ref"] for component in components.values()]


def _system_component(package: SystemPackage, system: Distribution) -> dict[str, Any]:
    from packageurl import PackageURL

    # Advisories are issued for source packages: scanners look for them under `upstream`.
    qualifiers = {"arch": package.architecture, "distro": f"{system.id}-{system.version}"}
    if (package.source, package.source_version) != (package.name, package.version):
        qualifiers["upstream"] = f"{package.source}@{package.source_version}"
    purl = PackageURL("deb", system.id, package.name, package.version, qualifiers).to_string()
    return {"type": "library", "name": package.name, "version": package.version, "purl": purl, "bom-ref": purl}


def _serialised(bill: Bill) -> str:
    """The JSON; its serial number is made from its content."""
    tool = {"type": "application", "name": "loradock", "version": __version__}
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": bill.subject, "tools": {"components": [tool]}},
        "components": sorted(bill.components, key=lambda entry: entry["bom-ref"]),
        "dependencies": [{"ref": ref, "dependsOn": sorted(set(needs))} for ref, needs in sorted(bill.needs.items())],
    }
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        content["metadata"]["timestamp"] = datetime.fromtimestamp(int(epoch), tz=UTC).isoformat()
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False)
    content["serialNumber"] = f"urn:uuid:{uuid.uuid5(NAMESPACE, canonical)}"
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
