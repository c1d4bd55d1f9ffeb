"""`loradock render --check` as a person types it: levels, exit codes, rules left out, several files, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kubernetes.goods import DIGEST, GOOD

from loradock.cli import cli

BY_TAG = GOOD.replace(f"fetch{DIGEST}", "fetch:1.2")


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["render", "--check", *(str(each) for each in arguments)])


def code(done: Result) -> int:
    return getattr(done.exception, "exit_code", done.exit_code)


def written(folder: Path, text: str, name: str = "job.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_what_render_itself_prints_for_the_demo_passes_with_a_warning_on_its_tag(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    CliRunner().invoke(cli, ["render", "pod", "--demo", "-o", str(file)])
    done = check(file)
    assert (code(done), done.stdout) == (0, f"ok: {file}\n")
    assert f"warning: {file}:" in done.stderr
    assert "image-digest" in done.stderr


def test_a_warning_changes_the_exit_code_only_where_it_is_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path, BY_TAG)
    assert code(check(file)) == 0
    strict = check(file, "--strict")
    assert code(strict) == 78
    assert "image-digest" in str(strict.exception)
    assert "warning" not in strict.stderr


def test_a_rule_that_is_skipped_says_nothing_and_the_others_go_on(tmp_path: Path) -> None:
    file = written(tmp_path, BY_TAG.replace("restartPolicy: Never", "restartPolicy: Always"))
    done = check(file, "--skip", "image-digest")
    assert (code(done), done.stderr) == (78, "")
    assert "schema" in str(done.exception)
    assert code(check(file, "--skip", "image-digest", "--skip", "schema", "--strict")) == 0


def test_a_rule_that_there_is_not_is_refused_with_the_nearest(tmp_path: Path) -> None:
    done = check(written(tmp_path, GOOD), "--skip", "image-digset")
    assert code(done) == 64
    assert "did you mean --skip image-digest?" in str(done.exception)


@pytest.mark.parametrize("option", [("--strict",), ("--skip", "image-digest")], ids=str)
def test_an_option_of_the_check_without_one_is_refused(option: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["render", "pod", "--demo", *option])
    assert code(done) == 64
    assert option[0] in str(done.exception)


def test_json_says_rule_and_level_of_each(tmp_path: Path) -> None:
    file = written(tmp_path, BY_TAG.replace("restartPolicy: Never", "restartPolicy: Always") + "---\nkind: [\n")
    done = check(file, "--json")
    assert code(done) == 78
    found = [(each["rule"], each["level"]) for each in json.loads(done.stdout)]
    assert found == [("schema", "error"), ("image-digest", "warning"), ("yaml", "error")]


def test_files_of_one_call_are_looked_at_side_by_side(tmp_path: Path) -> None:
    parts = GOOD.split("---\n")
    job = written(tmp_path, parts[3])
    beside = written(tmp_path, "---\n".join(parts[:3]).replace("name: base", "nam: base"), "beside.yaml")
    alone = check(job)
    assert "config-map" in alone.stderr
    assert "headless-service" in str(alone.exception)
    together = check(job, "--check", beside)
    assert [str(each).partition(": ")[0] for each in together.exception.problems] == [f"{beside}:10"]  # type: ignore[union-attr]
