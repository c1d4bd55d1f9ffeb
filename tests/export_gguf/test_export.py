"""A GGUF file read back by transformers is the model it was made of, by its logits and by its ids."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from click.testing import CliRunner, Result
from env_check.conftest import namespace
from families import make_model
from faults.forking import Forking
from merge.made import log_probabilities, make_adapter
from tiny import WORDS, make_llama
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from loradock.cli import cli
from loradock.errors import DiskFull, LoradockError
from loradock.machine.answers import Space
from loradock.machine.folders import Folders
from loradock.use.gguf import metadata
from loradock.use.gguf.export import predicts_ahead
from loradock.use.merge.proof import kl

pytestmark = pytest.mark.thin(1)

IN_Q8_0 = 5e-3
TEXTS = [
    "Hello World 123 it's  a   test",
    "ünïcode 日本 🙂\n\n\tx",
    " a b ",
    "### Response:\n42",
    *map(str.upper, WORDS),
]


def typed(*arguments: str | Path) -> Result:
    """`loradock export gguf` in this process."""
    result = CliRunner().invoke(cli, ["export", "gguf", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, (LoradockError, SystemExit)):
        raise result.exception
    return result


def exported(model: Path, file: Path, *options: str) -> dict[str, Any]:
    """Write the file; what the command prints as JSON."""
    result = typed(model, "-o", file, "--json", *options)
    assert result.exit_code == 0, result.exception or result.output
    return json.loads(result.stdout)


def halved(base: Path) -> Path:
    """The model in bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model.save_pretrained(base)
    return base


def read(file: Path) -> Any:
    """The model of a GGUF file, by transformers."""
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)


@pytest.mark.thin(4)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_models_logits_come_back_to_the_bit(tmp_path: Path, family: str, is_tied: bool) -> None:
    settings: dict[str, Any] = {"tie_word_embeddings": is_tied}
    if family == "qwen2":  # transformers' reader knows no windows
        settings |= {"layer_types": ["full_attention"] * 2, "use_sliding_window": False}
    if family == "qwen3":  # it reads no width of heads
        settings["head_dim"] = 128
    base = halved(make_model(tmp_path / "base", family, **settings))
    exported(base, tmp_path / "a.gguf")
    wanted = log_probabilities(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), 800)
    assert torch.equal(log_probabilities(read(tmp_path / "a.gguf"), 800), wanted)
    exported(base, tmp_path / "b.gguf", "--type", "q8_0")
    assert float(kl(wanted, log_probabilities(read(tmp_path / "b.gguf"), 800)).mean()) < IN_Q8_0
    exported(base, tmp_path / "c.gguf", "--type", "f16")
    assert float(kl(wanted, log_probabilities(read(tmp_path / "c.gguf"), 800)).mean()) < 1e-6
    sizes = {name: (tmp_path / f"{name}.gguf").stat().st_size for name in "abc"}
    assert sizes["b"] < sizes["a"] * 0.7


def test_a_mistral_is_a_llama_there_and_its_window_is_the_longest_text(tmp_path: Path) -> None:
    base = halved(make_model(tmp_path / "base", "mistral"))
    result = typed(base, "-o", tmp_path / "a.gguf")
    assert "context_length is 16" in result.stderr
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["general.architecture"].contents() == "llama"
    assert fields["llama.context_length"].contents() == 16
    short = torch.randint(800, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted, found = (
            model(short).logits
            for model in (AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), read(tmp_path / "a.gguf"))
        )
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_ids_are_those_of_the_tokenizer(tmp_path: Path, llama: Path) -> None:
    exported(llama, tmp_path / "a.gguf")
    own = AutoTokenizer.from_pretrained(llama)
    other = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    draw = random.Random(0)
    texts = TEXTS + [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(1000)]
    for text in texts:
        wanted = own(text, add_special_tokens=False)["input_ids"]
        assert other(text, add_special_tokens=False)["input_ids"] == wanted, text
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["tokenizer.ggml.add_bos_token"].contents() is True
    assert fields["tokenizer.ggml.eos_token_id"].contents() == own.eos_token_id
    assert fields["tokenizer.chat_template"].contents() == own.chat_template


def test_tokens_that_end_an_answer_are_control_tokens(tmp_path: Path) -> None:
    own = make_llama(tmp_path / "base")
    (own / "generation_config.json").write_text('{"eos_token_id": [1, 4, 300]}')
    file = own / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["pad_token"]
    file.write_text(json.dumps(settings))
    content = json.loads((own / "tokenizer.json").read_text())
    for each in content["added_tokens"]:
        each["special"] = each["id"] < 3
    (own / "tokenizer.json").write_text(json.dumps(content))
    exported(own, tmp_path / "a.gguf")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["tokenizer.ggml.token_type"].contents()[:6] == [3, 3, 3, 3, 3, 3]
    assert fields["tokenizer.ggml.eos_token_id"].contents() == 1
    assert fields["tokenizer.ggml.eot_token_id"].contents() == 4  # 300 is a word, which ends no answer
    assert "tokenizer.ggml.padding_token_id" not in fields
    stops = [line for line in (tmp_path / "a.gguf.Modelfile").read_text().splitlines() if "stop" in line]
    assert stops == ['PARAMETER stop "</s>"', 'PARAMETER stop "<|assistant|>"']


def test_pieces_of_sentencepiece_are_merged_in_their_order(tmp_path: Path) -> None:
    base = make_llama(tmp_path / "base")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    draw = random.Random(1)
    lines = [" ".join(draw.choices(WORDS, k=6)) for _ in range(300)]
    tokenizer.train_from_iterator(lines, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # bytes are pieces, no tokens that are cut out of a text
    (tmp_path / "t.json").write_text(json.dumps(content))
    words = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "t.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    words.save_pretrained(base)
    (base / "chat_template.jinja").unlink()
    exported(base, tmp_path / "a.gguf")
    other = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    for text in [*lines[:200], "river 日本 stones", "a  b"]:
        wanted = words(text, add_special_tokens=False)["input_ids"]
        assert other(text, add_special_tokens=False)["input_ids"] == wanted, text
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    types = fields["tokenizer.ggml.token_type"].contents()
    assert types[:4] == [2, 3, 3, 6]
    assert types[-1] == 5  # a row of the embedding that no token has


def test_frequencies_of_llama_3_1_are_divided_as_transformers_does(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    base = make_llama(tmp_path / "base", rope_parameters=rope, head_dim=64)
    config: Any = AutoModelForCausalLM.from_pretrained(base).config
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 500_000.0 ** (torch.arange(0, 64, 2).float() / 64)
    found = torch.tensor(metadata.read(config).factors)
    torch.testing.assert_close(plain / found, wanted, rtol=1e-6, atol=0)
    assert set(found.tolist()) >= {1.0, 8.0}
    exported(base, tmp_path / "a.gguf")
    assert "rope_freqs.weight" in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "a.gguf").tensors}


def test_what_cannot_be_exported_is_refused(tmp_path: Path, llama: Path) -> None:
    def error(model: Path, *options: str) -> LoradockError:
        found = typed(model, "-o", tmp_path / "x.gguf", *options).exception
        assert isinstance(found, LoradockError)
        assert not list(tmp_path.glob("*.gguf*"))
        assert not list(tmp_path.glob(".*"))
        return found

    assert (error(make_adapter(tmp_path / "adapter", base=llama)).exit_code) == 64
    gemma = error(make_model(tmp_path / "gemma", "gemma"))
    assert (gemma.exit_code, "gemma models are not exported" in gemma.what) == (78, True)
    own = make_llama(tmp_path / "other")
    file = own / "tokenizer.json"
    content = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}"}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}
    file.write_text(json.dumps(content))
    cut = error(own)
    assert (cut.exit_code, "(Split, ByteLevel)" in cut.what) == (78, True)
    (tmp_path / "there").write_text("mine")
    taken = typed(llama, "-o", tmp_path / "there")
    assert isinstance(taken.exception, LoradockError)
    assert (tmp_path / "there").read_text() == "mine"


def test_kills_leave_no_half_file_and_the_same_command_finishes(tmp_path: Path, llama: Path, forking: Forking) -> None:
    first = forking.start(tmp_path, "export", "gguf", str(llama), "-o", str(tmp_path / "whole.gguf"))
    assert first.finish() == 0, first.text()
    lasted, wanted = time.monotonic() - first.began, (tmp_path / "whole.gguf").read_bytes()
    draw = random.Random(0)
    for _ in range(8):
        command = forking.start(tmp_path, "export", "gguf", str(llama), "-o", str(tmp_path / "a.gguf"))
        time.sleep(lasted * draw.uniform(0.3, 1.0))
        command.send(signal.SIGKILL)
        command.finish()
        if (tmp_path / "a.gguf").exists():
            assert (tmp_path / "a.gguf").read_bytes() == wanted
            (tmp_path / "a.gguf").unlink()
    last = forking.start(tmp_path, "export", "gguf", str(llama), "-o", str(tmp_path / "a.gguf"))
    assert last.finish() == 0, last.text()
    assert (tmp_path / "a.gguf").read_bytes() == wanted
    assert not list(tmp_path.glob(".a.gguf*"))


FILLED = """
import json, sys
from pathlib import Path
from loradock.errors import LoradockError
from loradock.use.gguf import export as exporting
from loradock.use.inference.opener import find
exporting.before_output = lambda *_: None
code = 0
try:
    exporting.export(find(Path(sys.argv[1])), Path("/mnt/a.gguf"), type_name="bf16", progress=lambda *_: None)
except LoradockError as error:
    code = error.exit_code
print(json.dumps([code, sorted(path.name for path in Path("/mnt").iterdir())]))
"""


@pytest.mark.thin(4)
@pytest.mark.parametrize("kib", [16, 100])
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(llama: Path, kib: int) -> None:
    command = [*namespace(f"mount -t tmpfs -o size={kib}k none /mnt"), sys.executable, "-c", FILLED, str(llama)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [73, []]


def test_a_disk_that_is_too_small_is_known_beforehand(
    tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folders, "space", lambda *_: Space(device=1, free_bytes=1 << 20, total_bytes=1, free_inodes=9))
    result = typed(llama, "-o", tmp_path / "a.gguf")
    assert isinstance(result.exception, DiskFull)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_export_staged_is_removed_by_the_next(tmp_path: Path, llama: Path) -> None:
    for name in (".a.gguf.staged", ".a.gguf.Modelfile.staged"):
        (tmp_path / name).write_text("half")
    done = typed(llama, "-o", tmp_path / "a.gguf")
    assert done.exit_code == 0, done.output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.gguf", "a.gguf.Modelfile"]


@pytest.mark.parametrize(
    ("name", "is_ahead"),
    [
        ("model.layers.61.eh_proj.weight", True),
        ("mtp.layers.0.mlp.gate_proj.weight", True),
        ("model.language_model.layers.61.enorm.weight", True),
        ("model.layers.60.mlp.gate_proj.weight", False),
        ("model.visual.layers.70.norm.weight", False),
        ("model.vision_tower.encoder.layers.70.norm.weight", False),
    ],
)
def test_layers_for_multi_token_prediction_are_known_by_their_names(name: str, is_ahead: bool) -> None:
    assert predicts_ahead(["lm_head.weight", "model.layers.0.mlp.up_proj.weight", name], layers=61) == is_ahead
