"""The lock: every file of the environment, against the RECORD of its package and, in the image, the manifest."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from loradock.env_check.base import ON_DISK, Check, Finding, Intent, error, lasting_warning, ok
from loradock.env_check.remedies import ANOTHER_IMAGE
from loradock.errors import EnvironmentUnfit, InputMissing
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.lockfile import findings as packages
from loradock.machine.lockfile.known import Known
from loradock.machine.lockfile.pins import find_lock
from loradock.machine.lockfile.verify import verify

# What is imported is not what was locked. The other kinds name what is there besides, or in another release.
BROKEN = {"tampered", "absent", "unreadable", "byte-code", "manifest"}
# Sites add their own authority to this bundle; a run computes the same with it.
CERTIFICATES = "certifi/cacert.pem"
SHOWN = 4
WHOLE = "loradock lock verify"
CLOSE = "sed -i 's/^include-system-site-packages.*/include-system-site-packages = false/'"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """As `loradock lock verify`: 8 GB in about ten seconds on two CPUs, of which `train` reads what is new to it."""
    prefix = host.prefix()
    try:
        find_lock(prefix)
        if not host.exists(f"{prefix}/pyvenv.cfg"):
            return [ok(f"{prefix} is not a virtual environment: its files cannot be compared with a lock file")]
        verified = verify(prefix, known=Known(plan.digests) if plan.digests else None)
    except InputMissing:
        return [ok("no lock file beside loradock: the installed files cannot be verified")]
    except EnvironmentUnfit as unfit:
        return [error(unfit.what, remedy=WHOLE)]
    if verified.findings:
        return judge(verified.findings)
    against = "the manifest" if verified.manifest else "RECORD"
    figures = {"size_gb": round(verified.size_bytes / 1e9, 2), "took_seconds": round(verified.seconds, 1)}
    return [ok(f"{verified.packages} packages match the lock file, {verified.files} files match {against}", **figures)]


def judge(differences: Sequence[packages.Difference]) -> list[Finding]:
    """The worst few, each with its remedy, and the rest as a number."""
    in_order = sorted(differences, key=lambda difference: _severity(difference) is lasting_warning)
    visible = in_order if len(in_order) <= SHOWN + 1 else in_order[:SHOWN]
    findings = [
        _severity(difference)(f"{difference.file}: {difference.what}".replace("\n", " "), remedy=_remedy(difference))
        for difference in visible
    ]
    if surplus := in_order[len(visible) :]:
        findings.append(_severity(surplus[0])(f"{len(surplus)} more differences from the lock", remedy=WHOLE))
    return findings


def _severity(difference: packages.Difference) -> Callable[..., Finding]:
    return error if difference.kind in BROKEN and not difference.file.endswith(CERTIFICATES) else lasting_warning


def _remedy(difference: packages.Difference) -> str:
    if difference.remedy == packages.REMEDIES["manifest"]:
        return ANOTHER_IMAGE
    return f"{CLOSE} {shlex.quote(difference.file)}" if difference.kind == "open" else difference.remedy


CHECK = Check(
    name="lock",
    group="packages",
    level="compute",
    limit_seconds=180,
    is_beside=True,
    proves="Every installed file has the bytes that its package recorded, and in the image those of the build.",
    look=look,
    depends_on=ON_DISK,
)
