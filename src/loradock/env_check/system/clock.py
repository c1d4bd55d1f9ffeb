"""Clock: the time is later than that of the installed files, and within a lifetime of them."""

from __future__ import annotations

import time
from pathlib import Path

import loradock
from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

DAY_SECONDS = 86_400
LIFETIME_SECONDS = 20 * 365 * DAY_SECONDS


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """loradock's own files were written before it runs."""
    return [judge(host.now_seconds(), host.modified_seconds(Path(loradock.__file__)))]


def judge(now_seconds: float, installed_seconds: float) -> Finding:
    """A day of grace for files that another machine wrote."""
    harm = "certificates of hubs look invalid, and the times in records are wrong"
    if now_seconds < installed_seconds - DAY_SECONDS:
        what = f"the clock says {_day(now_seconds)}, before loradock was installed ({_day(installed_seconds)}): {harm}"
    elif now_seconds > installed_seconds + LIFETIME_SECONDS:
        what = f"the clock says {_day(now_seconds)}, {LIFETIME_SECONDS // DAY_SECONDS // 365} years after loradock was"
        what += f" installed: {harm}"
    else:
        return ok("the time is plausible")
    return warning(what, remedy="sudo timedatectl set-ntp true")


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


CHECK = Check(
    name="clock",
    group="system",
    proves="The clock is not before the installed files, nor decades after them.",
    look=look,
)
