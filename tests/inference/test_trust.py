"""A directory that somebody hands over decides nothing that runs: a person trusts a base's own code, by its name."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.forking import Forking
from merge.made import make_adapter
from proven import unchecked
from tiny import make_llama, write_pairs

from loradock.errors import InputMissing, ModelError
from loradock.model.source import read_config
from loradock.training.lineage import Lineage
from loradock.use.inference.opener import find

CONFIGURATION = """
from pathlib import Path
from transformers import LlamaConfig
Path({marker!r}).touch()
class MineConfig(LlamaConfig):
    model_type = "mine"
"""
MODEL = """
from transformers import LlamaForCausalLM
from .configuration_mine import MineConfig
class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
"""
CLASSES = {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
EMBEDDING = ("objective=embedding", "embedding.query_length=48", "embedding.passage_length=48")
COMMIT = "0123456789" * 4


class Handed:
    """A base that ships code, and runs on it; `ran` says whether the code ran since it was last asked."""

    def __init__(self, folder: Path, forking: Forking) -> None:
        self.folder, self.forking = folder, forking
        self.base, self.marker = folder / "base", folder / "ran"
        make_llama(self.base)
        (self.base / "configuration_mine.py").write_text(CONFIGURATION.format(marker=str(self.marker)))
        (self.base / "modeling_mine.py").write_text(MODEL)
        edit(self.base / "config.json", model_type="mine", architectures=["MineForCausalLM"], auto_map=CLASSES)

    def command(self, *words: str) -> tuple[int, str]:
        started = self.forking.start(self.folder, *words, HF_HOME=str(self.folder / "hf"))
        return started.finish(), started.text()

    def train(self, name: str, data: Path, *settings: str) -> None:
        sets = ("model.trust_remote_code=base", "lora.rank=4", *settings)
        words = ["train", "--model", "base", "--data", str(data), "--output", name, "--max-steps", "1"]
        words.append(unchecked("who may run code is tried"))
        code, said = self.command(*words, *(word for each in sets for word in ("--set", each)))
        assert code == 0, said

    @property
    def ran(self) -> bool:
        found = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        return found


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory, forking: Forking, rows: Path) -> Handed:
    found = Handed(tmp_path_factory.mktemp("handed"), forking)
    (found.folder / "rows.jsonl").write_text("".join(rows.read_text().splitlines(keepends=True)[:2]))
    found.train("run", rows)
    found.train("pairs", write_pairs(found.folder / "pairs.jsonl"), *EMBEDDING)
    code, said = found.command("merge", "run", "whole", "--trust-remote-code", str(found.base))
    assert code == 0, said
    assert found.ran
    return found


VERBS = {
    "generate": (("generate", "run", "--input", "rows.jsonl", "-o", "a.jsonl", "--max-new-tokens", "2"), "BASE"),
    "generate from the adapter": (("generate", "run/adapter", "--input", "rows.jsonl", "-o", "b.jsonl"), "BASE"),
    "generate from a merged model": (("generate", "whole", "--input", "rows.jsonl", "-o", "c.jsonl"), "whole"),
    "chat": (("chat", "run", "--max-new-tokens", "2"), "BASE"),
    "evaluate": (("evaluate", "run", "--data", "rows.jsonl", "--max-new-tokens", "2"), "BASE"),
    "merge": (("merge", "run", "merged"), "BASE"),
    "merge of a checkpoint": (("merge", "run", "merged-1", "--checkpoint", "1"), "base"),
    "export gguf": (("export", "gguf", "whole", "-o", "a.gguf"), "whole"),
    "checkpoint export": (("checkpoint", "export", "run", "-o", "exported"), "base"),
    "checkpoint export for others": (
        ("checkpoint", "export", "pairs", "-o", "st", "--as", "sentence-transformers"),
        "BASE",
    ),
    "embed": (("embed", "pairs", "--input", "texts.txt", "-o", "v.npy"), "BASE"),
    "evaluate of embeddings": (("evaluate", "pairs", "--sts", "sts.jsonl"), "BASE"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_a_bases_code_because_a_record_trusted_it_and_each_names_what_does(
    handed: Handed, verb: str
) -> None:
    words, name = VERBS[verb]
    (handed.folder / "texts.txt").write_text("salt\nriver\n")
    pairs = (("salt", "salt", 3), ("salt", "river", 1), ("green table", "river", 2))
    rows = [{"sentence1": first, "sentence2": second, "score": score} for first, second, score in pairs]
    (handed.folder / "sts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, said = handed.command(*words)
    assert (code, handed.ran) == (78, False), said
    name = name.replace("BASE", str(handed.base))
    assert f"hint: --trust-remote-code {name} runs it" in said
    if verb == "export gguf":  # llama.cpp knows no architecture of one's own
        return
    code, said = handed.command(*words, "--trust-remote-code", name)
    assert (code, handed.ran) == (0, True), said


def test_a_run_that_is_continued_by_its_record_alone_needs_the_trust_again(handed: Handed) -> None:
    code, said = handed.command("train", "--resume", "--output", "run")
    assert (code, handed.ran) == (64, False), said
    assert "hint: --set model.trust_remote_code=base" in said
    code, said = handed.command("train", "--resume", "--output", "run", "--set", "model.trust_remote_code=base")
    assert code == 0, said


def test_trust_in_one_model_is_none_in_another(handed: Handed) -> None:
    with pytest.raises(ModelError, match="needs Python code that it ships"):
        find(handed.folder / "run", trusted=("elsewhere", "org/other"))


def test_trust_in_a_base_does_not_reach_code_that_an_adapter_brings(handed: Handed, tmp_path: Path) -> None:
    """A tokenizer's class beside the adapter, which the base does not have."""
    adapter = Path(shutil.copytree(handed.folder / "run/adapter", tmp_path / "adapter"))
    evil = tmp_path / "evil"
    (adapter / "mine.py").write_text(f"from pathlib import Path\nPath({str(evil)!r}).touch()\nclass Mine: pass\n")
    edit(adapter / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "mine.Mine"]}, tokenizer_class="Mine")
    words = ("generate", str(adapter), "--input", "rows.jsonl", "-o", str(tmp_path / "a.jsonl"))
    code, said = handed.command(*words, "--trust-remote-code", str(handed.base), "--max-new-tokens", "2")
    assert not evil.exists(), said
    assert code in (0, 78)


def test_a_trusted_model_that_names_code_of_another_repository_is_refused(handed: Handed, tmp_path: Path) -> None:
    base = Path(shutil.copytree(handed.base, tmp_path / "base"))
    edit(base / "config.json", auto_map={"AutoConfig": "org/other--configuration_mine.MineConfig"})
    with pytest.raises(ModelError, match="name code of another repository") as refused:
        read_config(base, name=str(base), trusted=True)
    assert "org/other--configuration_mine.MineConfig" in str(refused.value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[bytes]]:
    """What is asked of a hub that listens on this machine."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(1 << 12))

        threading.Thread(target=answer, daemon=True).start()
        yield asked
        server.shutdown(socket.SHUT_RDWR)


def named_by_a_record(folder: Path, llama: Path, revision: str | None) -> Path:
    adapter = make_adapter(folder / "adapter", base=llama)
    lineage = Lineage.read(adapter)
    assert lineage
    lineage.model_copy(update={"base": "org/stranger", "revision": revision}).write(adapter)
    edit(adapter / "adapter_config.json", base_model_name_or_path="org/stranger", revision=revision)
    return adapter


@pytest.mark.parametrize("revision", [COMMIT, None])
def test_a_hub_name_in_a_record_is_looked_for_in_the_cache_and_never_fetched(
    tmp_path: Path, llama: Path, hub: list[bytes], revision: str | None
) -> None:
    adapter = named_by_a_record(tmp_path, llama, revision)
    with pytest.raises(InputMissing, match="is not on this machine: looked for org/stranger") as refused:
        find(adapter)
    commit = f" --revision {revision}" if revision else ""
    assert f"hf download org/stranger{commit} fetches it" in str(refused.value.hint)
    assert "--base-model DIR" in str(refused.value.hint)
    assert not hub
    snapshot = tmp_path / "hf/hub/models--org--stranger/snapshots" / COMMIT
    shutil.copytree(llama, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text(COMMIT)
    assert find(adapter).base.revision == COMMIT
    assert not hub


def test_a_run_that_is_continued_by_its_record_alone_fetches_neither_base_nor_data(
    handed: Handed, tmp_path: Path, llama: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = json.loads((handed.folder / "run/run.json").read_text())
    record["config"]["model"] |= {"name": "org/stranger", "revision": COMMIT, "trust_remote_code": None}
    record["config"]["data"]["sources"] = [{"path": "hub:org/rows", "revision": COMMIT}]
    (run / "run.json").write_text(json.dumps(record))
    resume = ("train", "--resume", "--output", str(run))
    code, said = handed.command(*resume)
    assert code == 66, said
    assert f"hint: hf download org/stranger --revision {COMMIT}" in said
    code, said = handed.command(*resume, "--model", str(llama))
    assert code == 66, said
    assert f"datasets.load_dataset('org/rows', revision='{COMMIT}')" in said


def test_comparing_merges_fetches_no_rows_that_a_record_names(handed: Handed, tmp_path: Path) -> None:
    run = Path(shutil.copytree(handed.folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    record = json.loads((run / "run.json").read_text())
    record["config"]["data"]["sources"] = [{"path": "hub:org/rows", "revision": COMMIT}]
    (run / "run.json").write_text(json.dumps(record))
    trust = ("--trust-remote-code", str(handed.base))
    code, said = handed.command("merge", str(run), str(tmp_path / "out"), "--compare", *trust)
    assert code == 66, said
    assert "the data set org/rows is not on this machine" in said


@pytest.mark.parametrize("settings", [{"peft_type": "XLORA"}, {"peft_type": "PROMPT_TUNING"}])
def test_an_adapter_of_a_type_that_fetches_what_it_names_is_not_opened(
    tmp_path: Path, llama: Path, hub: list[bytes], settings: dict[str, object]
) -> None:
    from loradock.use.inference.opener import open_model

    adapter = make_adapter(tmp_path / "adapter", base=llama)
    edit(adapter / "adapter_config.json", **settings)
    with pytest.raises(ModelError, match="loradock opens LoRA and DoRA"):
        open_model(adapter)
    assert not hub
