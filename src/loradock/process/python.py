"""A Python of ours sees the installed packages and PYTHONPATH, never modules that lie in the working directory.

`python -c` and `python -m` look there first, and the working directory is where people keep what others sent them.

This module is imported before anything else, so it imports what Python itself has imported by then.
"""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"


def command(*arguments: str) -> list[str]:
    """The command line that starts this interpreter with `arguments` (`-c PROGRAM ...` or `-m MODULE ...`)."""
    return [sys.executable, "-P", *arguments]


def leave_working_directory() -> None:
    """Take the working directory off this process's module path, and off that of every Python started from here.

    What multiprocessing and libraries start is reached by PYTHONSAFEPATH. A folder that PYTHONPATH names stays, and the
    one that loradock itself was imported from; an empty part of PYTHONPATH (`:/folder`), which names none, goes.
    """
    folders = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    os.environ[SAFE_PATH] = "1"
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it was removed, and holds nothing
        return
    if folder == _package_folder():
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([folder, *folders]))
    elif folder not in map(os.path.abspath, folders):
        _remove(folder)


def _remove(folder: str) -> None:
    """Only where it lies before the standard library: what the installation itself added comes after."""
    standard = os.path.dirname(os.__file__)
    end = sys.path.index(standard) if standard in sys.path else len(sys.path)
    sys.path[:end] = [entry for entry in sys.path[:end] if entry not in ("", folder)]


def _package_folder() -> str:
    """The folder that holds the package loradock."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
