"""What the compiled packages were built for, asked of them after importing them into this process."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

from loradock.machine import patience
from loradock.machine.answers import PythonRun
from loradock.machine.machine import Machine
from loradock.process import python

RELEASE = re.compile(r"release (\d+\.\d+)")


class Builds(Machine):
    """Packages with compiled code, and programs run by the same Python in a process of their own."""

    def import_failure(self, module: str) -> str | None:
        """Why a module cannot be imported into this process, in one line; None where it can."""
        try:
            importlib.import_module(module)
        except Exception as failure:  # noqa: BLE001  whatever a library raises when it is imported is the answer
            first = (str(failure).strip().splitlines() or [""])[0]
            return f"{type(failure).__name__}: {first}"
        return None

    def torch_cuda(self) -> str | None:
        """The CUDA that torch is built for, as 12.8; None for a build without it. Imports torch."""
        import torch

        return torch.version.cuda

    def torch_has_cxx11_abi(self) -> bool:
        """True where torch's C++ names are those of the C++11 ABI. Imports torch."""
        import torch

        return torch.compiled_with_cxx11_abi()

    def bitsandbytes_library(self) -> tuple[bool, str | None]:
        """Whether the native library that bitsandbytes took has CUDA, and why it took none. Imports it."""
        library: Any = importlib.import_module("bitsandbytes.cextension").lib
        failed = vars(library).get("error_msg")
        return bool(library.compiled_with_cuda), None if failed is None else str(failed)

    def release_of(self, program: str) -> str | None:
        """The CUDA release that one of its programs says it is of, as 12.8; None where it does not run."""
        match = RELEASE.search(self.output_of([program, "--version"]) or "")
        return match and match[1]

    def python_run(self, program: str, arguments: Sequence[str], *, timeout_seconds: float) -> PythonRun:
        """Run a program in a new process of this Python; what it printed, also where it died or took too long."""
        with tempfile.TemporaryFile() as output:
            command = python.command("-c", program, *arguments)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)

            def has_ended(seconds: float) -> bool:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
                return process.returncode is not None

            try:
                patience.answers(has_ended, pid=process.pid, left=timeout_seconds, limit_seconds=timeout_seconds)
            finally:
                code = process.poll()
                process.kill()
                process.wait()
            output.seek(0)
            return PythonRun(exit_code=code, lines=tuple(output.read().decode(errors="replace").splitlines()))
