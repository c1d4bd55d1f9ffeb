"""The process of one step: `python -m bench.gpu.child SESSION`, the JSON of a `Session`.

It leaves what came of it in the session's answer file, and ends with 0 unless it was broken off.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from bench.gpu.results import CANNOT, DONE, FAILED, LEFT, OUT_OF_MEMORY
from bench.gpu.steps import STEPS
from bench.gpu.steps.base import CannotRun, Failed, Left, Session

FULL = ("out of memory", "OutOfMemoryError")


def outcome(session: Session) -> dict[str, Any]:
    """Do the work of the step; what came of it."""
    work = next(step.work for step in STEPS if step.name == session.name)
    try:
        session.answer |= work(session)
    except CannotRun as error:
        return {"outcome": CANNOT, "reason": str(error)}
    except Left as error:
        return {"outcome": LEFT, "reason": str(error)}
    except Failed as error:
        return failed(str(error))
    except Exception as error:  # noqa: BLE001 - whatever ends a step is its result, and the next step goes on
        traceback.print_exc()
        return failed(f"{type(error).__name__}: {error}")
    return {"outcome": DONE}


def failed(reason: str) -> dict[str, Any]:
    """A failure, which may be one of memory."""
    is_full = any(word in reason for word in FULL)
    return {"outcome": OUT_OF_MEMORY if is_full else FAILED, "reason": reason}


def main() -> None:
    """Do it, and say it."""
    session = Session(**json.loads(sys.argv[1]))
    found = outcome(session)
    session.write({**found, "answer": session.answer})


if __name__ == "__main__":
    main()
