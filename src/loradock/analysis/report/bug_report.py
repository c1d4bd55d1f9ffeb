"""The bug report of `env-check --report`: Markdown to paste, with what was found first and no secrets."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loradock.env_check.redaction import redactor
from loradock.errors import LoradockError
from loradock.machine import Host
from loradock.machine.lockfile.installed import installed_in
from loradock.machine.lockfile.pins import find_lock, python_of, read_lock, site_packages
from loradock.text import redact

HEAD = "### loradock environment report\n\nWhat happened, and what you expected: \n"
# Variables that change what a run does.
TELLING = re.compile(
    r"^(?:ACCELERATE|BITSANDBYTES|BNB|CUBLAS|CUDA|CUDNN|FLASH_ATTENTION|HF|HUGGING_FACE|HUGGINGFACE|LD|LORADOCK|MKL"
    r"|NCCL|NVIDIA|OMP|PROTOCOL_BUFFERS|PYTHON|PYTORCH|TMP|TOKENIZERS|TORCH|TORCHINDUCTOR|TRANSFORMERS|TRITON|XDG"
    r"|LOCAL|RANK|WORLD|MASTER|GLOO|UCX|SLURM|KUBERNETES_SERVICE|http|https|no|HTTP|HTTPS|NO|SSL|CC|CXX|PATH)"
    r"(?:_|DIR$|PATH$|$)"
)


def bug_report(
    content: Mapping[str, Any],
    *,
    host: Host,
    config: str | None = None,
    comparison: Sequence[str] = (),
    prefix: Path | None = None,
    with_json: bool = False,
) -> str:
    """The whole report. `content` is what --json prints, `config` what the configuration says beyond the defaults.

    `with_json` adds `content` as it is. Packages are those of the environment at `prefix`, by default the one that
    runs. Everything passes the redaction, whatever it came from.
    """
    findings = content["findings"]
    counts = {kind: sum(finding["severity"] == kind for finding in findings) for kind in ("error", "warning", "ok")}
    parts = [
        HEAD,
        *_about(content),
        _counted(counts, content),
        *(_finding(finding) for kind in ("error", "warning") for finding in _of_kind(findings, kind)),
        _folded(f"{counts['ok']} checks passed", "\n".join(map(_finding, _of_kind(findings, "ok")))),
        _folded("Packages that differ from the lock file", _block("", differences(prefix or Path(sys.prefix)))),
        _folded("Environment variables", _block("", variables(host.environ))),
    ]
    if config is not None:
        parts.append(_folded("Configuration", _block("json", config)))
    if comparison:
        parts.append(_folded("Comparison with other nodes", _block("", "\n".join(comparison))))
    if with_json:
        parts.append(_folded("JSON", _block("json", json.dumps(content, indent=1))))
    elif content["measured"]:
        parts.append(_folded("Figures", _block("json", json.dumps(content["measured"], indent=1))))
    return redactor(host)("\n".join(parts))


def _about(content: Mapping[str, Any]) -> list[str]:
    """The machine in a few lines."""
    facts = content["facts"]
    gpus = [f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in facts["gpus"]]
    where = "container" if facts["in_container"] else "no container"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(facts["packages"].items()))
    lines = {
        "loradock": f"{content['loradock']}, commit {facts['git_commit'] or 'unknown'}",
        "system": f"{facts['platform']}, Python {facts['python']}, {where}",
        "machine": f"{facts['cpus']} CPUs, {facts['memory_bytes'] / 2**30:.1f} GiB",
        "gpus": f"{', '.join(gpus) or 'none'}; driver {facts['driver'] or 'none'}",
        "packages": versions,
        "lock": f"sha256 {facts['lock_sha256'] or 'none'}",
    }
    return [*(f"- {name}: {_code(text)}" for name, text in lines.items()), ""]


def _counted(counts: Mapping[str, int], content: Mapping[str, Any]) -> str:
    numbers = f"{counts['error']} errors, {counts['warning']} warnings"
    return f"**{numbers}** at the {content['level']} level, exit code {content['exit_code']}\n"


def _of_kind(findings: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [finding for finding in findings if finding["severity"] == kind]


def _finding(finding: Mapping[str, Any]) -> str:
    """One finding as an item of a list; what it says may hold any sign."""
    mark = "" if finding["severity"] == "ok" else f"**{finding['severity']}** "
    remedy = f"\n  - remedy: {_code(finding['remedy'])}" if finding["remedy"] else ""
    return f"- {mark}{finding['check']}: {_code(finding['what'])}{remedy}"


def _code(text: str) -> str:
    """Text between as many backticks as it does not hold, so that nothing in it is Markdown or HTML."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {text} {ticks}" if longest else f"`{text}`"


def _block(language: str, text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _folded(title: str, body: str) -> str:
    return f"\n<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def variables(environ: Mapping[str, str]) -> str:
    """Variables that change what a run does, by name; of a secret one, that it is set."""
    telling = {name: environ[name] for name in sorted(environ) if TELLING.match(name)}
    return (
        "\n".join(f"{name}={'<set>' if redact.is_secret(name) else value}" for name, value in telling.items()) or "none"
    )


def differences(prefix: Path) -> str:
    """Lines as of `pip freeze`, for each package that is missing, in another version, or not in the lock."""
    try:
        locked = read_lock(find_lock(prefix), python_version=python_of(prefix))
        installed = {distribution.name: distribution for distribution in installed_in(site_packages(prefix))}
    except LoradockError as error:
        return f"not compared: {error.what}"
    lines = [
        f"{name}=={distribution.version}  # not in the lock"
        if name not in locked
        else f"{name}=={distribution.version}  # locked: {locked[name].version}"
        for name, distribution in installed.items()
        if not distribution.is_editable
        and name != "loradock"
        and (name not in locked or distribution.version != locked[name].version)
    ]
    lines += [
        f"# missing: {name}=={requirement.version}" for name, requirement in locked.items() if name not in installed
    ]
    return "\n".join(lines) or "none: every package matches the lock file"
