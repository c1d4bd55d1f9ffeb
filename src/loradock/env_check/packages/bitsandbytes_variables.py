"""Variables by which bitsandbytes takes another library than the one for the CUDA that torch is built for."""

from __future__ import annotations

import re

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

# bitsandbytes/cextension.py: digits name the library, and nothing else is looked for where the variable is set.
VARIABLE = "BNB_CUDA_VERSION"
CUDA = re.compile(r"^cuda: .*= '(\d+)\.(\d+)'", re.MULTILINE)


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The variable, against what torch says of itself, which is read without importing it."""
    site = host.site_packages()
    value = host.environ.get(VARIABLE)
    built = CUDA.search(host.read_text(str(site / "torch" / "version.py")) or "")
    name = f"libbitsandbytes_cuda{value}.so"
    return [judge(value, built=built and "".join(built.groups()), is_there=host.exists(f"{site}/bitsandbytes/{name}"))]


def judge(value: str | None, *, built: str | None, is_there: bool) -> Finding:
    """`built` is torch's CUDA in the same spelling, as 128; None where torch has none, or is not there."""
    if value is None:
        return ok("no override: the 4-bit kernels follow the CUDA that torch is built for")
    remedy = f"unset {VARIABLE}"
    if not value.isdigit():
        return error(f"{VARIABLE} is {value!r}: bitsandbytes takes digits only", remedy=remedy)
    if not is_there:
        return error(f"{VARIABLE} is {value}, and there is no libbitsandbytes_cuda{value}.so", remedy=remedy)
    if built and value != built:
        return error(f"{VARIABLE} is {value}, torch is built for CUDA {built}", remedy=remedy)
    return warning(f"{VARIABLE} is {value}: bitsandbytes will not follow torch to another CUDA", remedy=remedy)


CHECK = Check(
    name="bitsandbytes-variables",
    group="packages",
    proves="No variable makes bitsandbytes load a library for another CUDA version than torch's.",
    look=look,
)
