"""What can be wrong with an environment, one type for all of it, and the remedy of each kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from loradock.errors import Problem

# Kind -> what to do about it; {package}, {version}, {file}, {install} and {uninstall} are filled in.
REINSTALL = "{install} {package}=={version}"
REMEDIES = {
    "missing": REINSTALL,
    "wrong-version": REINSTALL,
    "extra": "{uninstall} {package}",
    "duplicate": "rm -r {file}",
    "no-record": REINSTALL,
    "bad-record": REINSTALL,
    "absent": REINSTALL,
    "tampered": REINSTALL,
    "overwritten": REINSTALL,
    "unreadable": "chmod a+r {file}",
    "outside": "{uninstall} {package}",
    "unowned": "rm -r {file}",
    "byte-code": "rm {file}",
    "open": "set include-system-site-packages = false in {file}",
    "manifest": "build or pull the image again",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not as the lock, a RECORD or the manifest says. `kind` is a key of REMEDIES."""

    kind: str
    what: str
    file: str
    remedy: str
    package: str | None = None

    @property
    def problem(self) -> Problem:
        """The finding as a line of an error."""
        return Problem(what=f"{self.kind}: {self.what}", file=self.file, hint=self.remedy)


@dataclass(kw_only=True)
class Findings:
    """Collects findings about the environment at `prefix`; `versions` are the locked ones, for the remedies.

    An image is not mended in place: with `is_image` the remedy of each finding is another image.
    """

    prefix: Path
    versions: dict[str, str]
    is_image: bool = False
    found: list[Difference] = field(default_factory=list)

    def add(self, kind: str, what: str, *, file: str, package: str | None = None) -> None:
        """Add one finding with the remedy of its kind."""
        remedy = REMEDIES["manifest"] if self.is_image else REMEDIES[kind]
        if package is not None and package not in self.versions and remedy == REINSTALL:
            remedy = REMEDIES["extra"]
        install, uninstall = installers(self.prefix)
        filled = remedy.format(
            install=install,
            uninstall=uninstall,
            package=package,
            version=self.versions.get(package or "", ""),
            file=file,
        )
        self.found.append(Difference(kind=kind, what=what, file=file, remedy=filled, package=package))

    def in_order(self) -> tuple[Difference, ...]:
        """Every finding, in the order of REMEDIES, then by file."""
        rank = {kind: place for place, kind in enumerate(REMEDIES)}
        return tuple(sorted(self.found, key=lambda finding: (rank[finding.kind], finding.file, finding.what)))


def installers(prefix: Path) -> tuple[str, str]:
    """The commands that install anew and uninstall in an environment: by its own pip, or by uv where it has none."""
    if (prefix / "bin" / "pip").exists():
        pip = f"{prefix}/bin/pip"
        return f"{pip} install --force-reinstall --no-deps", f"{pip} uninstall"
    python = f"--python {prefix}/bin/python"
    return f"uv pip install {python} --reinstall --no-deps", f"uv pip uninstall {python}"
