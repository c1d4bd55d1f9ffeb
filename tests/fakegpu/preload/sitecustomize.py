"""Puts the CPU's kernels behind the stand-in device as soon as torch and Triton are imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds torch and Triton as the others do, and does something once they have been imported."""

    def __init__(self) -> None:
        self.is_looking: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in ("torch", "triton") or fullname in self.is_looking:
            return None
        self.is_looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.is_looking.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            import gpu_on_cpu

            gpu_on_cpu.installed_after(fullname)

        spec.loader.exec_module = execute_and_install
        return spec


if os.environ.get("FAKEGPU"):
    sys.meta_path.insert(0, AfterImport())
