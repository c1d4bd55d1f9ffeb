"""The side of every rank but 0: it does its part of each stage that rank 0 asks for, until rank 0 ends it."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loradock.env_check.cluster.base import Asked, Me, Stage
from loradock.env_check.cluster.wire import Beating, Channel, Gone, Silent
from loradock.errors import EnvironmentUnfit


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How rank 0 ended it: the exit code that every rank takes, and what was found."""

    exit_code: int
    what: tuple[str, ...]


def done(stage: Stage, me: Me, request: Asked) -> dict[str, Any]:
    """This rank's part of a stage; what it raises becomes a failure that names the place."""
    try:
        return stage.part(me, request)
    except Exception as failure:  # noqa: BLE001  whatever it is, it is this rank's answer
        place = traceback.extract_tb(failure.__traceback__)[-1]
        first = (str(failure).strip().splitlines() or [""])[0][:200]
        return {"failure": f"{type(failure).__name__} at {place.name}: {first}"}


def serve(me: Me, channel: Channel, stages: Sequence[Stage]) -> Ending:
    """Do what rank 0 asks. EnvironmentUnfit where it died or is silent."""
    beating = Beating(lambda: [channel])
    parts = {stage.name: stage for stage in stages}
    place, lead, at = f"rank {me.rank} ({socket.gethostname()})", f"rank 0 ({me.store[0]})", "the rendezvous"
    try:
        while True:
            message = channel.receive()
            assert message  # without an end of its time it waits for one
            if "end" in message:
                return Ending(exit_code=message["end"], what=tuple(message["what"]))
            if "welcome" in message:
                lead = message["welcome"]
                continue
            at = message["stage"]
            channel.send({"number": message["number"], "answer": done(parts[at], me, message["asked"])})
    except Gone as failure:
        what = f"{lead} died during {at}: its connection to {place} ended"
        raise EnvironmentUnfit(what, hint="see the log of rank 0") from failure
    except Silent as failure:
        what = f"{lead} was silent for {channel.silent_seconds:g} s during {at}, says {place}: stopped, hung or cut off"
        raise EnvironmentUnfit(what, hint="see whether rank 0 still runs, and the link to its host") from failure
    finally:
        beating.end()
