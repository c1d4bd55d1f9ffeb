"""Put into the path of a process, it damages libraries as they are imported: those that LORADOCK_WRENCHES names.

A wrench is a module here with `AFTER`, the module that it waits for, and `apply()`, which damages it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any


class Wrench(importlib.abc.MetaPathFinder):
    """Applies wrenches when the module that they wait for has been imported."""

    def __init__(self, waiting: dict[str, list[Any]]) -> None:
        self._waiting = waiting
        self._is_asking = False  # the finder that it asks asks all finders, this one too

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._waiting or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return None
        wrenches, execute = self._waiting[fullname], spec.loader.exec_module

        def execute_then_damage(module: ModuleType) -> None:
            execute(module)
            for wrench in wrenches:
                wrench.apply()

        spec.loader.exec_module = execute_then_damage
        return spec


waiting: dict[str, list[Any]] = {}
for name in os.environ.get("LORADOCK_WRENCHES", "").split():
    wrench = importlib.import_module(name)
    waiting.setdefault(wrench.AFTER, []).append(wrench)
sys.meta_path.insert(0, Wrench(waiting))
