"""A base that ZeRO-3 reads part by part: what processes of one host take of its memory until the weights are cut."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from families import make_model
from training.backends.zero.conftest import ALL_CUT, Group, Start

pytestmark = pytest.mark.full
SHAPE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 8}
SET_UP_BYTES = 64 << 20
"""Of DeepSpeed in two processes; 35 MB beyond a copy were seen, and 94 MB would be with two copies."""
ONCE = ("train.max_steps=1", "train.global_batch=2", "train.micro_batch=1", "lora.targets=[q_proj]")
# From before the base is read to where an engine would be made of it, which ends it: what all share counts once.
MEASURED = """
import json, os, threading
from pathlib import Path
import deepspeed
from loradock.distributed import collectives
from loradock.training.backends.peft.backend import PeftBackend
from loradock.training.backends.zero import weights
from loradock.model import load
def look():
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {name: int(size) << 10 for name, size, *_ in lines if name in ("Pss:", "Pss_Anon:")}
seen, is_over = [], threading.Event()
def watch():
    while not is_over.wait(0.02):
        seen.append(look())
real_load = load.load
def measured(*rest, **more):
    collectives.any_of(False)
    seen.append(look())
    threading.Thread(target=watch, daemon=True).start()
    return real_load(*rest, **more)
def prepare(*rest, **more):
    is_over.set()
    seen.append(look())
    peak = {name: max(each[name] for each in seen) - seen[0][name] for name in seen[0]}
    kept = {name: seen[-1][name] - seen[0][name] for name in seen[0]}
    Path(f"memory-{os.environ['RANK']}.json").write_text(json.dumps({"peak": peak, "kept": kept}))
    collectives.any_of(False)
    os._exit(0)
load.load, PeftBackend.begin, weights.cut = measured, prepare, prepare
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.1 billion weights, so that a copy is well above what libraries take by the way."""
    return make_model(tmp_path_factory.mktemp("model"), "llama", **SHAPE)


def taken(group: Group) -> dict[str, dict[str, int]]:
    """Bytes of all processes together: at the peak of each, and at the end."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(group.folder.glob("memory-*.json"))]
    assert len(found) == len(group.processes), group.text()
    return {when: {name: sum(each[when][name] for each in found) for name in found[0][when]} for when in found[0]}


def test_two_processes_that_cut_a_base_have_no_second_copy_of_it_in_host_memory(
    tmp_path: Path, start: Start, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is freed goes back at once, so that the allocator's own habits do not count."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    one = start(tmp_path / "one", *ONCE, model=model, count=1, code=MEASURED)
    assert one.finish() == [0], one.text()
    two = start(tmp_path / "two", *ONCE, model=model, stage=3, own=ALL_CUT, code=MEASURED)
    assert two.finish() == [0, 0], two.text()
    alone, together = taken(one), taken(two)
    (quantised,) = re.findall(r"([\d,]+) of [\d,]+ weights are quantised", one.text())
    copy = int(quantised.replace(",", "")) // 2
    for when in ("peak", "kept"):
        more = together[when]["Pss_Anon:"] - alone[when]["Pss_Anon:"]
        assert more < copy + SET_UP_BYTES, (when, alone, together)
