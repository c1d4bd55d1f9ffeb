"""What the distribution is and which of its packages are installed, from dpkg's own files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loradock.errors import EnvironmentUnfit

OS_RELEASE = "etc/os-release"
STATUS = "var/lib/dpkg/status"
ELSEWHERE = "list the image instead: loradock image sbom IMAGE"


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The operating system: `debian`, `13`, and the name for people."""

    id: str
    version: str
    title: str


@dataclass(frozen=True, kw_only=True)
class SystemPackage:
    """One installed package of the distribution; `needs` are the names of which any in a group will do."""

    name: str
    version: str
    architecture: str
    source: str
    source_version: str
    needs: tuple[tuple[str, ...], ...]


def distribution(root: Path = Path("/")) -> Distribution:
    """The distribution at `root`; EnvironmentUnfit where it does not say."""
    path = root / OS_RELEASE
    text = _read(path, "the operating system")
    fields = {key: value.strip("\"'") for key, value in re.findall(r"^([A-Z_]+)=(.*)$", text, flags=re.MULTILINE)}
    if "ID" not in fields:
        raise EnvironmentUnfit(f"the operating system is missing: {path} names no ID", hint=ELSEWHERE)
    version = fields.get("VERSION_ID") or fields.get("VERSION_CODENAME", "rolling")
    return Distribution(id=fields["ID"], version=version, title=fields.get("PRETTY_NAME", fields["ID"]))


def system_packages(root: Path = Path("/")) -> list[SystemPackage]:
    """The installed packages by name; EnvironmentUnfit where dpkg's file cannot be read or has none."""
    path = root / STATUS
    packages = [
        _package(fields)
        for fields in _stanzas(_read(path, "the system packages"))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys()
    ]
    if not packages:
        raise EnvironmentUnfit(f"the system packages are missing: {path} lists none as installed", hint=ELSEWHERE)
    return sorted(packages, key=lambda package: (package.name, package.architecture))


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EnvironmentUnfit(f"{what} cannot be listed: {path}: {error.strerror}", hint=ELSEWHERE) from error


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    """The fields of each package; the lines that continue one (descriptions, lists of files) are not needed."""
    for stanza in re.split(r"\n\s*\n", text):
        lines = (line.partition(":") for line in stanza.splitlines() if line and not line[0].isspace())
        fields = {key: value.strip() for key, _, value in lines}
        if fields:
            yield fields


def _package(fields: dict[str, str]) -> SystemPackage:
    # `Source: gcc-14 (14.2.0-19)`: with a version where it is another than the package's.
    source = re.fullmatch(r"(\S+)(?:\s+\((.+)\))?", fields.get("Source", fields["Package"]))
    dependencies = ", ".join(fields[key] for key in ("Pre-Depends", "Depends") if key in fields)
    groups = (re.findall(r"(?:^|\|)\s*([a-z0-9][a-z0-9.+-]*)", group) for group in re.split(r",\s*", dependencies))
    return SystemPackage(
        name=fields["Package"],
        version=fields["Version"],
        architecture=fields.get("Architecture", "all"),
        source=source[1] if source else fields["Package"],
        source_version=(source and source[2]) or fields["Version"],
        needs=tuple(tuple(group) for group in groups if group),
    )
