"""The bug report: complete enough to help, and without a secret, whatever it was planted in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loradock.analysis.report.bug_report import bug_report, differences
from loradock.cli import cli
from loradock.env_check.redaction import Redactor, redactor
from loradock.machine import Host

pytestmark = pytest.mark.thin(2)

SECRETS = {
    "HF_TOKEN": "hf_AbCdEf4711AbCdEf4711AbCdEf4711AbCd",
    "WANDB_API_KEY": "4711aaaabbbbccccddddeeeeffff000011112222",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtn/K7MDENG+bPxRfi4711",
    "CUDA_TEST_PASSWORD": 'quo"ted\\4711',
    "HTTPS_PROXY": "http://bob:pass4711word@proxy.example:3128",
    "HF_ENDPOINT": "http://127.0.0.1:9/?token=query4711&x=1",
    "NVIDIA_NOTE": "Bearer bear4711er, ghp_4711abcdefgh and sk-proj-4711abcdefgh",
}


class Machine(Host):
    """A machine of this name with these variables."""

    def __init__(self, environ: Mapping[str, str], name: str = "node-17.cluster.example") -> None:
        self.variables, self.name = environ, name

    @property
    def environ(self) -> Mapping[str, str]:
        return self.variables

    def read_text(self, path: str) -> str | None:
        return self.name if path.endswith("hostname") else None

    def output_of(self, command: Any, *, timeout_seconds: float = 5.0) -> str | None:
        return "carol" if list(command) == ["id", "-un"] else None


def content(*findings: Mapping[str, Any]) -> dict[str, Any]:
    """What --json prints, as far as the report reads it."""
    facts = {"gpus": [], "driver": None, "in_container": False, "packages": {"torch": "2.10.0"}, "cpus": 8}
    facts |= {"platform": "Linux", "python": "3.11.9", "memory_bytes": 2**35, "git_commit": None, "lock_sha256": None}
    whole = {"level": "quick", "exit_code": 0, "loradock": "0.1.0", "measured": {}, "facts": facts}
    return {**whole, "findings": list(findings)}


def test_planted_secrets_and_names_are_in_no_report_and_the_exit_code_stays(tmp_path: Path) -> None:
    home = tmp_path / "home" / "alice4711"
    home.mkdir(parents=True)
    model = home / "hf_planted4711planted" / "model"
    config = home / "run.yaml"
    sources = [str(home / "rows.jsonl")]
    settings = {"name": "sk-run4711run4711", "model": {"name": str(model)}, "data": {"sources": sources}}
    config.write_text(json.dumps(settings), encoding="utf-8")
    environ = {**os.environ, **SECRETS, "HOME": str(home), "USER": "alice4711", "HOSTNAME": "box4711"}
    environ["NCCL_SOCKET_IFNAME"] = "eth0 on box4711 of alice4711"
    command = [sys.executable, "-m", "loradock", "env-check", "--level", "quick", "--only", "model,user,home"]
    command += ["--config", str(config), "--report"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    report = done.stdout
    assert done.returncode == 66, (report, done.stderr)
    assert report.startswith("### loradock")
    assert [line for line in report.splitlines() if "4711" in line] == []
    assert "~/<hub token>/model" in report
    assert "HTTPS_PROXY=http://<credentials>@proxy.example:3128" in report
    assert "NCCL_SOCKET_IFNAME=eth0 on <host> of <user>" in report
    assert "WANDB" not in report.replace("WANDB_API_KEY=<set>", "")
    assert report.index("**error** base") < report.index("<details>")
    with_json = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environ, timeout=120)
    assert with_json.returncode == 66
    assert '"exit_code": 66' in with_json.stdout
    assert "4711" not in with_json.stdout
    settings["data"] = {"sources": [*sources, "https://carl:pw4711@files.example/rows.jsonl"]}
    config.write_text(json.dumps(settings), encoding="utf-8")
    refused = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    assert refused.returncode == 78
    assert "pw4711" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at /home/dave/x and /Users/erin/y", "at /home/<user>/x and /Users/<user>/y"),
        ("/srv/carol/run on node-17, node-17.cluster.example", "/srv/<user>/run on <host>, <host>"),
        ("/data/me/run, /data/me, /data/men", "~/run, ~, /data/men"),
        ("git+https://x-access-token:abc@git.example/r.git", "git+https://<credentials>@git.example/r.git"),
        (
            "s3://key@bucket/file?X-Amz-Signature=0123abcd&a=1",
            "s3://<credentials>@bucket/file?X-Amz-Signature=<secret>&a=1",
        ),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic <credentials>"),
        ("http://bob:p@s/s@host:80/x, ftp:/a:b@host", "http://<credentials>@host:80/x, ftp:/<credentials>@host"),
        ("eyJhbGciOi.eyJzdWIiOi.c2lnbmF0", "<signed token>"),
        ("AKIAIOSFODNN7EXAMPLE glpat-abc-def1234", "<access key> <git token>"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "<private key>"),
        ("line two of it", "<DEPLOY_KEY>"),
    ],
)
def test_what_looks_like_a_secret_or_a_name_is_replaced(text: str, shown: str) -> None:
    take_out = redactor(Machine({"HOME": "/data/me", "DEPLOY_KEY": "line one of it\nline two of it\n"}))
    assert take_out(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "commit fbc8df5cafe1234567890abcdef1234567890abc",
        "pads with <pad>, 878 ids, vocab_size 32000",
        "TOKENIZERS_PARALLELISM=false",
        "carolina, knode-17b, /rootfs/homework",
        "https://files.example:443/a@b/c, https://files.example/a@b",
        "export HF_HUB_OFFLINE=1",
        "NVIDIA A100-SXM4-80GB, basic tokens, a bearer of news",
        "disk-1234, task-management-suite",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    environ = {"HOME": "/root", "USER": "root", "TOKENIZERS_PARALLELISM": "false", "KEY_COUNT": "32000", "TOKEN": ""}
    assert redactor(Machine(environ))(text) == text


def test_the_worst_comes_first_and_nothing_that_a_finding_says_is_markdown() -> None:
    def finding(severity: str, what: str, remedy: str = "") -> dict[str, Any]:
        return {"check": "base", "severity": severity, "what": what, "remedy": remedy}

    found = content(
        finding("ok", "</details> all is well"),
        finding("warning", "a `tick` and <b>bold</b>", "export A=``x``"),
        finding("error", "ends with </s>", "fix it"),
    )
    report = bug_report(found, host=Machine({"HOME": "/root"}), comparison=["driver differs"], prefix=Path("/nowhere"))
    lines = report.splitlines()
    assert "**1 errors, 1 warnings** at the quick level, exit code 0" in lines
    assert lines.index("- **error** base: `ends with </s>`") < lines.index(
        "- **warning** base: `` a `tick` and <b>bold</b> ``"
    )
    assert "  - remedy: ``` export A=``x`` ```" in lines
    assert "- base: `</details> all is well`" in lines
    assert "not compared: /nowhere is not a virtual environment: No such file or directory for pyvenv.cfg" in lines
    assert "driver differs" in lines
    assert report.count("<details>") == report.count("\n</details>")


def test_packages_that_differ_from_the_lock_are_listed_as_pip_would(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, version in (("numpy", "0.0.1"), ("left_pad", "1.0")):
        folder = site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n", encoding="utf-8")
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.9\n", encoding="utf-8")
    told = differences(tmp_path).splitlines()
    assert "left-pad==1.0  # not in the lock" in told
    assert [line for line in told if line.startswith("numpy==0.0.1  # locked: ")]
    assert [line for line in told if line.startswith("# missing: torch==")]


def test_a_redactor_that_knows_nothing_changes_nothing() -> None:
    assert Redactor(secrets={})("as it is") == "as it is"


def test_the_help_says_what_json_adds_to_a_report() -> None:
    assert "with --report, append it" in " ".join(CliRunner().invoke(cli, ["env-check", "--help"]).stdout.split())
