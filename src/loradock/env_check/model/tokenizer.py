"""The tokenizer: its files can be read, it has an end token, and a template that the data can be put in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from loradock.data.templates import check_default
from loradock.env_check.base import Check, Finding, Intent, error, ok
from loradock.env_check.model.refusal import one_line
from loradock.env_check.remedies import from_hint, train_with
from loradock.errors import ConfigError, ModelError
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model import hub_cache, tokenizer_files
from loradock.model.files import json_object
from loradock.model.tokenizer_files import TokenizerFiles


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """By its files. A missing pad token is EOS, a missing template is alpaca: a run fills them in by itself."""
    assert plan.config is not None
    model = plan.config.model
    directory = hub_cache.directory_of(model.name, model.revision, environ=host.environ)
    if directory is None or not any(directory.glob("tokenizer*")):
        return [ok("its files are not here yet")]
    remedy = f"hf download OWNER/NAME tokenizer.json tokenizer_config.json --local-dir {shlex.quote(str(directory))}"
    try:
        files = tokenizer_files.read(directory)
    except OSError as wrong:
        return [
            error(
                f"{wrong.filename} cannot be read",
                remedy=f"chmod a+r {shlex.quote(str(wrong.filename))}",
                ends=ModelError,
            )
        ]
    except ValueError as wrong:
        return [error(one_line(str(wrong)), remedy=remedy, ends=ModelError)]
    return judge(files, directory=directory, template=plan.config.data.template)


def judge(files: TokenizerFiles, *, directory: Path, template: str) -> list[Finding]:
    """An error only for what a run cannot fill in by itself."""
    if files.eos is None and files.is_generic:
        what = f"the tokenizer in {directory} names no end-of-sequence token: the model could not learn to stop"
        return [error(what, remedy=naming_eos(directory), ends=ModelError)]
    if template == "auto":
        try:
            check_default(files.named_templates, directory=str(directory))
        except ConfigError as wrong:
            return [
                error(
                    one_line(wrong.what),
                    remedy=from_hint(wrong.hint) or train_with("data.template=chatml"),
                    ends=ConfigError,
                )
            ]
    eos = files.eos or "the end token of its class"
    pad = files.pad or f"{eos} (it has none of its own)"
    template_text = "its own" if files.has_template else "alpaca (it has none of its own)"
    return [ok(f"ends with {eos}, pads with {pad}, template: {template_text if template == 'auto' else template}")]


def naming_eos(directory: Path) -> str:
    """A command that names the end token, by the id that the model's configuration gives where it does."""
    token = None
    for name in ("generation_config.json", "config.json"):
        file = directory / name
        if token is None and file.is_file():
            numbers = json_object(file).get("eos_token_id")
            number = numbers[0] if isinstance(numbers, list) and numbers else numbers
            token = tokenizer_files.token_of(directory, number) if isinstance(number, int) else None
    entry = (
        json.dumps({"eos_token": token or "EOS"})[1:-1].replace("\\", "\\\\").replace("/", "\\/").replace("&", "\\&")
    )
    return f"sed -i {shlex.quote(f'0,/{{/s/{{/{{{entry}, /')} {shlex.quote(str(directory / 'tokenizer_config.json'))}"


CHECK = Check(
    name="tokenizer",
    group="model",
    proves="The tokenizer's files can be read and name an end token; pad and template are there or filled in.",
    look=look,
    needs="config",
)
