"""What one of two processes does that train by both engines together, then by TRL's DPOTrainer; rank 0 writes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import distributed
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from loradock.machine import Host, probe
from objectives.against_trl import arguments, begun, lines, logged


def main(folder: Path) -> None:
    """`asked.json` says which model and pairs, and has the rows of a step as TRL takes them."""
    asked: dict[str, Any] = json.loads((folder / "asked.json").read_text("utf-8"))
    facts = probe.gather(Host())
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=facts.rank, world_size=facts.world_size)
    own = folder / f"rank-{facts.rank}"
    inputs: dict[str, Path] = {name: Path(asked[name]) for name in ("model", "data")}
    found: dict[str, Any] = {}
    for engine, settings in asked["engines"].items():
        made = begun(own / engine, *settings, **inputs)
        assert (made.world_size, len(made.steps[0].micro_batches) > 0) == (facts.world_size, True)
        found[engine] = [asdict(each) for each in lines(made)]
    made = begun(own / "theirs", *asked["engines"]["peft"], **inputs)
    rows = asked["rows"]
    config = DPOConfig(**arguments(made, own / "trl", samples=len(rows) // facts.world_size), max_length=None)
    assert config.world_size == facts.world_size
    first = [{"prompt": "a", "chosen": " b", "rejected": " c"}] * len(rows)
    found["trl"] = logged(DPOTrainer, made, config, first=first, rows=rows)
    if facts.rank == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")
    distributed.destroy_process_group()
