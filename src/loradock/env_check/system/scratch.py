"""Scratch: temporary files go where they were told to; Python goes elsewhere without a word where it cannot."""

from __future__ import annotations

import shlex
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.places import elsewhere
from loradock.errors import NotWritable
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.folders import SCRATCH_VARIABLES


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The first folder of Python's list against that which takes a file; compilers go to the first all the same."""
    folder = host.scratch_folders()[0]
    if not host.takes_files(plan.scratch):
        return [error("no folder for temporary files is writable", remedy=elsewhere("scratch", plan), ends=NotWritable)]
    if folder == plan.scratch:
        return [ok("temporary files can be written")]
    variable = next((name for name in SCRATCH_VARIABLES if host.environ.get(name)), None)
    is_there = host.exists(str(folder))
    where = f"{variable} is {folder}, " if variable else f"{folder} is a folder "
    what = f"{where}{'where no file can be written' if is_there else 'which is not there'}"
    remedy = _remedy(host, folder, plan.scratch, is_there=is_there)
    return [warning(f"{what}: temporary files go to {plan.scratch}", remedy=remedy)]


def _remedy(host: Host, folder_set: Path, folder_taken: Path, *, is_there: bool) -> str:
    """Make the folder where it can be made, else name the one that is taken."""
    if not is_there and host.takes_files(host.nearest(folder_set)):
        return f"mkdir -p {shlex.quote(str(folder_set))}"
    return f"export TMPDIR={shlex.quote(str(folder_taken))}"


CHECK = Check(
    name="scratch",
    group="system",
    proves="Temporary files can be written to TMPDIR.",
    look=look,
)
