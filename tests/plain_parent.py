"""The program that proves a merged model, forked from a process with plain transformers imported: a start costs 5 s.

As a start of its own it has nothing of loradock imported but that program: nothing that loradock puts right can hide a
fault. This file is both sides: imported by tests, and run as a script.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from typing import Any


class PlainParent:
    """The parent, from here."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """`python -P -m MODULE ...` to its end, in the place of `subprocess.run`; stdout is the parent's stderr."""
        assert command[1:3] == ["-P", "-m"]
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(command[3:]) + "\n")
        self.process.stdin.flush()
        code, stderr = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess(command, code, "", stderr)

    def end(self) -> None:
        """End the parent."""
        self.process.communicate(timeout=60)


def become(arguments: list[str]) -> int:
    """In the forked child: run the module as an interpreter does, to its exit code."""
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001  as an interpreter does at its end
        traceback.print_exc()
        return 1
    return 0


def forked(arguments: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a child that runs the module."""
    errors = os.memfd_create("stderr")
    child = os.fork()
    if not child:
        code = 70
        try:
            os.dup2(errors, 2)
            code = become(arguments)
            sys.stderr.flush()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(errors, encoding="utf-8", errors="replace") as text:
        text.seek(0)
        return code, text.read()


def serve() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from transformers import conversion_mapping
    from transformers.models.auto import modeling_auto  # noqa: F401  what the program looks for
    from transformers.models.llama import modeling_llama  # noqa: F401  what most of them are

    conversion_mapping.get_checkpoint_conversion_mapping("llama")  # a thousand regular expressions
    assert not any(name.partition(".")[0] == "loradock" for name in sys.modules)
    for line in sys.stdin:
        answers.write(json.dumps(forked(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
