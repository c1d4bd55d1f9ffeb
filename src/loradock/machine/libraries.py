"""Shared libraries: which ones a file needs, where the linker looks, and which ones a process has loaded."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

from loradock.machine.answers import SharedObject
from loradock.machine.elf import shared_object
from loradock.machine.machine import Machine

LDCONFIG = "/sbin/ldconfig"
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
CACHED = re.compile(r"^\s+(\S+) \(([^)]*)\) => (\S+)", re.MULTILINE)
SHARED = re.compile(r"\.so(\.[\w.]+)?$")


class Libraries(Machine):
    """Shared libraries and the search path that leads to them."""

    def shared_object(self, path: str) -> SharedObject | None:
        """What a shared library asks of the linker; None where the file is none, or may not be read."""
        return shared_object(Path(path))

    def libraries_in(self, folder: str) -> tuple[str, ...]:
        """Names of the files of a folder that are named as shared libraries; () where it cannot be read."""
        try:
            return tuple(sorted(name for name in os.listdir(folder) if SHARED.search(name)))
        except OSError:
            return ()

    def libraries_below(self, folder: str) -> tuple[str, ...]:
        """Paths of the shared libraries in a folder and all that it holds."""
        return tuple(
            os.path.join(place, name)
            for place, _, names in sorted(os.walk(folder))
            for name in sorted(names)
            if SHARED.search(name)
        )

    def system_libraries(self) -> dict[str, str]:
        """{soname: path} of what the linker finds without being told where: its cache, then its default folders."""
        cache = self.output_of([LDCONFIG, "-p"]) or ""
        libraries = {name: path for name, kind, path in reversed(CACHED.findall(cache)) if "64" in kind}
        for folder in DEFAULT_FOLDERS:
            for name in self.libraries_in(folder):
                libraries.setdefault(name, f"{folder}/{name}")
        return libraries

    def loaded_libraries(self) -> tuple[str, ...]:
        """Paths of the shared libraries that this process has mapped."""
        lines = (self.read_text("/proc/self/maps") or "").splitlines()
        fields = [line.split(None, 5) for line in lines]
        paths = {field[5].strip() for field in fields if len(field) == 6}
        return tuple(sorted(path for path in paths if path.startswith("/") and SHARED.search(path)))

    def loading(self, path: str) -> str | None:
        """Why this process cannot load a shared library, in the linker's words; None where it can."""
        try:
            ctypes.CDLL(path)
        except OSError as refused:
            return str(refused)
        return None

    def real_path(self, path: str) -> str:
        """The path without links."""
        return os.path.realpath(path)

    def newest_in(self, path: str, prefixes: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """{prefix: highest version} of the symbol versions that a file holds, as GLIBCXX_3.4.30 for `GLIBCXX_`."""
        try:
            content = Path(path).read_bytes()
        except OSError:
            return {}
        newest: dict[str, tuple[int, ...]] = {}
        for prefix in prefixes:
            texts = re.findall(rb"\0" + prefix.encode() + rb"(\d+(?:\.\d+)+)(?=\0)", content)
            newest[prefix] = max((tuple(map(int, text.split(b"."))) for text in texts), default=())
        return newest
