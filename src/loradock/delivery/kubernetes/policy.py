"""What a Job does about each exit code: the table of `loradock.errors` as a pod failure policy, with a reason each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["FailJob", "Ignore", "Count"]


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """What follows from an exit code, and why. FailJob: no other try; Count: one try less; Ignore: tried again."""

    code: int
    action: Action
    why: str


POLICY = (
    Consequence(code=2, action="FailJob", why="an unknown command or option is unknown in the next pod too"),
    Consequence(code=64, action="FailJob", why="contradicting options do not agree later"),
    Consequence(code=65, action="FailJob", why="bad rows stay bad; the message names file and line"),
    Consequence(code=66, action="FailJob", why="an input that is missing has to be put there first"),
    Consequence(code=69, action="Count", why="a hub may answer next time"),
    Consequence(code=70, action="Count", why="a bug may hang on timing; it is not tried for ever"),
    Consequence(code=71, action="Count", why="another node may have a sound driver and GPU"),
    Consequence(code=73, action="FailJob", why="the volume stays full until somebody frees space"),
    Consequence(code=74, action="Count", why="storage may recover, or another node may reach it"),
    Consequence(code=75, action="Ignore", why="stopped by a signal with new steps committed: each try comes further"),
    Consequence(code=76, action="Count", why="stopped without progress: to ignore it could repeat for ever"),
    Consequence(code=77, action="FailJob", why="the volume's permissions do not change by themselves"),
    Consequence(code=78, action="FailJob", why="the configuration is the same in the next pod"),
    Consequence(code=79, action="FailJob", why="the same rows from the same checkpoint diverge again"),
    Consequence(code=80, action="FailJob", why="the same batch on the same GPU runs out of memory again"),
    Consequence(code=81, action="Count", why="another GPU may be sound"),
    Consequence(code=82, action="Count", why="a hang (a peer, storage, a hub) may not come again"),
    Consequence(code=83, action="FailJob", why="no checkpoint may be resumed from; a fresh start would be silent loss"),
    Consequence(code=84, action="Count", why="the other pod that holds the directory may end"),
    Consequence(code=85, action="FailJob", why="a repeat that parted from the first run does so again"),
    Consequence(code=86, action="FailJob", why="a repeat on other kernels is near the first run, never equal"),
)
"""Every code but 0, which no rule may name. A code that is not here (137: killed for memory) counts."""


def codes(action: Action) -> list[int]:
    """The exit codes that have this consequence, sorted, as the API asks for."""
    return sorted(code.code for code in POLICY if code.action == action)


def pod_failure_policy(container: str) -> dict[str, Any]:
    """The policy of a Job for the named container. The first rule that fits decides; what fits none counts."""
    return {
        "rules": [
            _on_codes("FailJob", container),
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            _on_codes("Ignore", container),
            _on_codes("Count", container),
        ]
    }


def _on_codes(action: Action, container: str) -> dict[str, Any]:
    return {
        "action": action,
        "onExitCodes": {"containerName": container, "operator": "In", "values": codes(action)},
    }
