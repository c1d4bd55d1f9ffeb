"""P14: no secret of the environment, of the arguments or of the input files comes out in a file or on the screen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.conftest import Trial
from proven import unchecked
from tiny import make_llama, write_rows

pytestmark = pytest.mark.thin(2)

VARIABLES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN",
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET",
    "OPENAI_API_KEY", "GITHUB_TOKEN", "NETRC_PASSWORD", "DATABASE_URL", "HTTPS_PROXY",
)  # fmt: skip
SHARED_OUTPUT_MASK = 0o027


def canary(name: str) -> str:
    """A token that occurs nowhere else, in the shape that its owner gives to them."""
    return {"HF_TOKEN": "hf_", "OPENAI_API_KEY": "sk-", "GITHUB_TOKEN": "ghp_"}.get(
        name, ""
    ) + f"cnry{name.lower()}x7q9"


def value_of(name: str) -> str:
    """What the variable holds: a token, or an address with one in it."""
    if name in ("DATABASE_URL", "HTTPS_PROXY"):
        return f"http://user:{canary(name)}@127.0.0.1:9/"
    return canary(name)


@dataclass(frozen=True)
class Trained:
    """One run of a tiny model, with everything that it wrote."""

    run: Path
    cache: Path
    home: Path
    screen: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """`loradock train` with canaries wherever a secret can stand, checkpoints, and an evaluation."""
    place = tmp_path_factory.mktemp("secrets")
    home = place / "home"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text(canary("token_file"))
    (home / ".netrc").write_text(f"machine example.org login me password {canary('netrc')}\n")
    (home / ".netrc").chmod(0o600)
    make_llama(place / "base")
    (place / "base" / ".env").write_text(f"HF_TOKEN={canary('beside_the_model')}\n")
    write_rows(place / "rows.jsonl")
    (place / ".env").write_text(f"WANDB_API_KEY={canary('beside_the_data')}\n")
    (place / "run.yaml").write_text(
        f"# {canary('comment')}\n"
        f"model:\n  name: {place / 'base'}\n"
        f"data:\n  sources:\n    - path: {place / 'rows.jsonl'}\n  cache: {place / 'cache'}\n  validation: 8\n"
        "lora:\n  rank: 4\ncheckpoints:\n  every: 2\ntrain:\n  max_steps: 4\n  global_batch: 4\n"
    )
    command = [sys.executable, "-m", "loradock", "train", str(place / "run.yaml"), "--output", str(place / "run")]
    environment = {**os.environ, **{name: value_of(name) for name in VARIABLES}}
    environment |= {"HOME": str(home), "HF_HUB_OFFLINE": "1"}
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HF_TOKEN_PATH"):
        environment.pop(name, None)
    done = subprocess.run(
        [*command, unchecked("what a run writes"), "--json"],
        capture_output=True, text=True, timeout=600, env=environment, umask=SHARED_OUTPUT_MASK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Trained(run=place / "run", cache=place / "cache", home=home, screen=done.stdout + done.stderr)


def canaries() -> list[str]:
    files = ("token_file", "netrc", "beside_the_model", "beside_the_data", "comment")
    return [canary(name) for name in (*VARIABLES, *files)]


def places(*folders: Path) -> Iterator[Path]:
    """Every file below these folders."""
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def hits(*folders: Path, screen: str = "") -> list[str]:
    """Each canary with the place where it stands, as it is or in UTF-16, archives included: none is compressed."""
    found = [f"{token} on the screen" for token in canaries() if token in screen]
    for path in places(*folders):
        content = path.read_bytes()
        held = [token for token in canaries() if token.encode() in content or token.encode("utf-16-le") in content]
        found += [f"{token} in {path}" for token in held]
    return found


@pytest.mark.thin(3)
def test_no_file_of_a_run_and_no_line_on_the_screen_holds_a_secret(trained: Trained, trial: Trial) -> None:
    names = {path.name for path in places(trained.run)}
    assert {"run.json", "metrics.jsonl", "training_state.pt", "adapter_model.safetensors", "manifest.json"} <= names
    found = hits(trained.run, trained.cache, screen=trained.screen)
    trial("P14", found == [], count=len(canaries()), hits=found, files=len(names))


def test_a_planted_secret_is_found_in_each_kind_of_file(trained: Trained, tmp_path: Path, trial: Trial) -> None:
    """The control: were one there, the search above would hit."""
    import torch

    token = canary("HF_TOKEN")
    torch.save({"args": {"hub_token": token}}, tmp_path / "training_args.bin")
    (tmp_path / "run.json").write_text(json.dumps({"environment": {"HF_TOKEN": token}}))
    (tmp_path / "wide.bin").write_bytes(token.encode("utf-16-le"))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "log.txt").write_text(f"GET /api?token={token}")
    found = hits(tmp_path, screen=trained.screen + token)
    trial("P14", len(found) == 5, kind="leak control", hits=found)


def test_a_run_leaves_nothing_outside_of_its_directory_and_the_caches(trained: Trained) -> None:
    left = [path for path in places(trained.home) if ".cache" not in path.parts]
    assert [path.name for path in left] == [".netrc"]


def test_files_have_the_mode_that_the_umask_leaves_and_none_is_writable_by_all(trained: Trained) -> None:
    everything = [*trained.run.rglob("*"), *places(trained.cache)]
    assert [path for path in everything if path.stat().st_mode & 0o002] == []
    owned = [path for path in places(trained.run) if path.stat().st_mode & 0o777 != 0o666 & ~SHARED_OUTPUT_MASK]
    assert owned == []
    folders = [path for path in trained.run.rglob("*") if path.is_dir()]
    assert [path for path in folders if path.stat().st_mode & 0o777 != 0o777 & ~SHARED_OUTPUT_MASK] == []
