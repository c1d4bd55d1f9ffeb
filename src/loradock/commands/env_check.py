"""`loradock env-check`: prove that this machine can train, name what is wrong, say what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from loradock.analysis.report.findings import INDENT, finding_lines, verdict
from loradock.commands.page import coloured, say
from loradock.commands.paths import LocalPath
from loradock.env_check.base import LEVELS, Level
from loradock.env_check.child import Looked
from loradock.errors import UsageError

COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command("env-check")
@click.option("--config", type=LocalPath(), help="Also check what this run needs: model, data, disk.")
@click.option(
    "--level", type=click.Choice(LEVELS), help="quick: no torch; compute (default): test computations; bench: speeds."
)
@click.option("--only", metavar="NAME,...", default="", help="Only these groups or checks; --list names them.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print everything as JSON on stdout; with --report, append it there."
)
@click.option("--report", "as_report", is_flag=True, help="Print a bug report without secrets, in Markdown to paste.")
@click.option("--list", "as_list", is_flag=True, help="Print the checks as the text of docs/checks.md, run none.")
@click.option("--schema", "as_schema", is_flag=True, help="Print the JSON Schema of --json.")
@click.option(
    "others",
    "--compare",
    type=LocalPath(),
    multiple=True,
    metavar="FILE...",
    help="Compare this node, at the bench level, with --json output of other nodes.",
)
@click.argument("more", nargs=-1, type=LocalPath(), metavar="")
def env_check(
    *,
    config: Path | None,
    level: Level | None,
    only: str,
    as_json: bool,
    as_report: bool,
    as_list: bool,
    as_schema: bool,
    others: tuple[Path, ...],
    more: tuple[Path, ...],
) -> None:
    """Check that this machine, its driver and the installed packages can train.

    \b
    loradock env-check
    loradock env-check --config run.yaml --json
    loradock env-check --only gpu,compute
    loradock env-check --compare node-a.json node-b.json

    Exit code: 0 without errors (warnings do not count), else that of the first error.
    """
    from loradock.env_check import reference

    if as_list or as_schema:
        click.echo(reference.markdown() if as_list else json.dumps(reference.schema(), indent=2), nl=as_schema)
        return
    from loradock.env_check.compare import compare, lines, read
    from loradock.env_check.examination import FORMAT, examine, gathered
    from loradock.env_check.intent import cache_of_machine, intent
    from loradock.env_check.kept import Kept
    from loradock.machine import Host

    if more and not others:
        raise UsageError(
            f"unexpected argument: {more[0]}", hint=f"loradock env-check --config {more[0]}, or --compare {more[0]}"
        )
    nodes = read([*others, *more], format=FORMAT)
    host = Host()
    loaded = None
    if config:
        from loradock.commands.run_options import commit_of
        from loradock.config.load import load

        loaded = load(config, pin=commit_of).config
    facts = gathered(host)
    names = [name.strip() for name in only.split(",")] if only else []
    plan = intent(host, loaded)
    examination = examine(
        host=host,
        facts=facts,
        plan=plan,
        only=names,
        level=level or ("bench" if nodes else None),
        progress=None if as_json or as_report else show,
        kept=Kept(cache_of_machine(host), (host, facts, plan), is_full=True),
    )
    content = examination.as_dict()
    differences = compare([content, *nodes]) if nodes else []
    if as_report:
        from loradock.analysis.report.bug_report import bug_report

        configuration = loaded.model_dump_json(indent=1, exclude_defaults=True) if loaded else None
        click.echo(
            bug_report(content, host=host, config=configuration, comparison=lines(differences), with_json=as_json)
        )
    elif as_json:
        comparison = {"comparison": [difference.as_dict() for difference in differences]} if nodes else {}
        click.echo(json.dumps({**content, **comparison}, indent=2))
    else:
        say("\n".join([verdict(examination), *lines(differences)]))
    sys.exit(examination.exit_code)


def show(looked: Looked) -> None:
    """Print what a check found, as soon as it ends."""
    for finding in looked.findings:
        first, *lines = finding_lines(looked.check, finding)
        coloured(first, COLORS[finding.severity], indent=INDENT)
        for line in lines:
            click.echo(line)
