"""A program for a mount namespace: commits on small volumes, and says in JSON what came of it: FOLDER SIZE_KIB..."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from faults.committing import RUN_ID, committer

from loradock.errors import LoradockError
from loradock.training.checkpoint.store import newest_good

OLD = {"adapter_model.safetensors": bytes(20_000), "training_state.pt": bytes(40_000)}
NEW = {"adapter_model.safetensors": bytes(60_000), "training_state.pt": bytes(150_000)}


def committed(folder: Path, step: int, files: dict[str, bytes]) -> int:
    """The exit code that this commit would end a run with."""
    try:
        committer(folder).commit(step, files=files, progress={})
    except LoradockError as error:
        return error.exit_code
    return 0


def on_volume(folder: Path, *, size_kib: int) -> dict[str, Any]:
    """An old commit, then a larger one on what is left of a volume of this size; the same when it is read-only."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "none", str(folder)], check=True)
    checkpoints = folder / "checkpoints"
    codes = [committed(checkpoints, 10, OLD), committed(checkpoints, 20, NEW)]
    good, lines = newest_good(checkpoints, run_id=RUN_ID)
    names = sorted(path.name for path in checkpoints.iterdir())
    subprocess.run(["mount", "-o", "remount,ro", "none", str(folder)], check=True)
    codes.append(committed(checkpoints, 30, OLD))
    subprocess.run(["umount", str(folder)], check=True)
    return {"size_kib": size_kib, "codes": codes, "good": good and good.step, "lines": lines, "names": names}


if __name__ == "__main__":
    json.dump([on_volume(Path(sys.argv[1]), size_kib=int(size)) for size in sys.argv[2:]], sys.stdout)
