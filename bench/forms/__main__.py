"""Two steps of each form of rows by the command that users type, of a real base: `python -m bench.forms --model DIR`.

What came out is bench/results/forms/runs.json, and the table of docs/rows.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trl

from bench.forms.rows import FORMS, Form

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "forms" / "runs.json"
SETTINGS = ("train.max_steps=2", "train.global_batch=2", "logging.every=1", "model.quantization=none")


def main() -> None:
    """Train each, write, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a real base")
    parser.add_argument("--work", type=Path, default=Path("forms"), help="where rows and runs lie")
    parser.add_argument("--only", action="append", help="the name of a form; may be repeated")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    options.work.mkdir(exist_ok=True)
    for form in FORMS:
        if not options.table and (not options.only or form.name in options.only):
            found = trained(form, options.work, options.model)
            print(form.name, found, file=sys.stderr, flush=True)
            # Read again: with --only, several of these may run at a time.
            RESULTS.write_text(json.dumps(results() | {form.name: found}, indent=1) + "\n", encoding="utf-8")
    print(table(results()))


def results() -> dict[str, Any]:
    """What is there of earlier runs, by form."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}


def words_of(form: Form, file: Path) -> list[str]:
    """`--data FILE` and the settings that the form takes, as they are typed."""
    template = Path(trl.__file__).parent / "chat_templates" / f"{form.template}.jinja"
    settings = [*form.settings, *([f"data.template={template}"] if form.template else [])]
    return ["--data", str(file), *(word for setting in settings for word in ("--set", setting))]


def trained(form: Form, work: Path, model: Path) -> dict[str, Any]:
    """What two steps of a form came to; what refused it, where something did."""
    output = work / f"{form.name}-{time.time_ns()}"
    words = [*words_of(form, form.write(work)), "--set", f"data.cache={work / 'cache'}"]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "loradock", "train", "--model", str(model), "--output", str(output), *words]
    done = subprocess.run([*command, "--skip-env-check"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"exit_code": done.returncode, "said": done.stderr.strip().splitlines()[-2:]}
    record = json.loads((output / "run.json").read_text("utf-8"))
    lines = map(json.loads, (output / "metrics.jsonl").read_text("utf-8").splitlines())
    facts = record["plan"]["data"]
    return {
        "format": record["data"]["sources"][0]["format"],
        "rows": facts["train_rows"],
        "tokens": facts["tokens"],
        "learned": facts["supervised_tokens"],
        "losses": [round(line["loss"], 3) for line in lines if line["kind"] == "train"],
    }


def table(found_by_form: dict[str, Any]) -> str:
    """Markdown, a line a form."""
    lines = ["| form | template | set beside `--data` | learned of all tokens | loss, steps 1 and 2 |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for form in FORMS:
        found = found_by_form.get(form.name)
        if not found:
            continue
        settings = ", ".join(f"`{setting}`" for setting in form.settings)
        template = f"TRL's {form.template}" if form.template else "its own"
        came = f"{found['learned']} of {found['tokens']} | {' -> '.join(f'{loss:.2f}' for loss in found['losses'])}"
        lines.append(f"| {form.name} | {template} | {settings} | {came} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
