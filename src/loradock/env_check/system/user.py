"""User: this uid has a name, in the user database or in the environment; torch asks for one when it is imported."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok
from loradock.facts import Facts
from loradock.machine import Host

VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """What `getpass.getuser()` does: the variables first, then the database."""
    uid = host.uid()
    if any(host.environ.get(name) for name in VARIABLES):
        return [ok(f"uid {uid} has a name")]
    if host.user_name() is not None:
        return [ok(f"uid {uid} is in the user database")]
    what = f"uid {uid} has no name: importing torch's compiler and TRL fails"
    return [error(what, remedy="export USER=loradock LOGNAME=loradock")]


CHECK = Check(
    name="user",
    group="system",
    proves="This uid has a user name, which torch needs when it is imported.",
    look=look,
)
