"""The files of a checkpoint: as they decay, and as somebody writes them who also writes the manifest's digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz.kinds.base import Kind, Mutate
from fuzz.kinds.run_directory import SAME, SPOILT, make, make_unfinished, of_run
from fuzz.mutate import any_of, near_start, of_bytes, of_json

NEWEST = "checkpoints/checkpoint-4"
CONTINUED = "checkpoints/checkpoint-2"
STATE, WEIGHTS, SETTINGS = "training_state.pt", "adapter_model.safetensors", "adapter_config.json"
LIST, VERIFY = ("checkpoint", "list", "run"), ("checkpoint", "verify", "run")
EXPORT = ("checkpoint", "export", "run", "--output", "exported")
SPOILT_WEIGHTS = any_of(near_start(1024), of_bytes)


def signed(content: bytes, draw: Random) -> bytes:
    """A manifest whose values are others, and whose own digest agrees."""
    from loradock.training.checkpoint.manifest import text

    document = json.loads(of_json(content, draw))
    if not isinstance(document, dict):
        return content
    document.pop("sha256", None)
    try:
        return text(document)
    except ValueError:  # not a number: JSON has none
        return content


def sign(file: str) -> Callable[[Path], None]:
    """Have the manifest agree with a file of the checkpoint that a run continues from."""

    def write(folder: Path) -> None:
        from loradock.training.checkpoint.manifest import text

        place = folder / "run" / CONTINUED
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        content = (place / file).read_bytes()
        manifest["files"][file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.pop("sha256")
        (place / "manifest.json").write_bytes(text(manifest))

    return write


def continued(name: str, file: str, mutate: Mutate, *, share: float, is_signed: bool = False) -> Kind:
    """A file of the checkpoint from which a run goes on."""
    return Kind(
        name=name,
        make=make_unfinished,
        file=f"run/{CONTINUED}/{file}",
        mutate=mutate,
        command=SAME,
        share=share,
        sign=sign(file) if is_signed else None,
    )


CHECKPOINTS = (
    of_run("manifest, list", f"{NEWEST}/manifest.json", any_of(SPOILT, signed), LIST, share=0.5),
    of_run("manifest, verify", f"{NEWEST}/manifest.json", any_of(SPOILT, signed), VERIFY, share=0.5),
    of_run("manifest, export", f"{NEWEST}/manifest.json", any_of(SPOILT, signed), EXPORT, share=0.3),
    of_run("state, verify", f"{NEWEST}/{STATE}", of_bytes, VERIFY, share=0.3),
    continued("manifest, continued", "manifest.json", any_of(SPOILT, signed, signed), share=0.1),
    continued("state, continued", STATE, of_bytes, share=0.05),
    continued("signed state, continued", STATE, of_bytes, share=0.1, is_signed=True),
    continued("signed weights, continued", WEIGHTS, SPOILT_WEIGHTS, share=0.1, is_signed=True),
    of_run("run.json, export", "run.json", SPOILT, EXPORT, share=0.3, made=make),
)
