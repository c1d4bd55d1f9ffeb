"""Each broken manifest is refused for its own reason, at its line; good ones are not, and nothing is ever raised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes.broken import Broken, cases, fine
from kubernetes.goods import DIGEST, GOOD, GOODS

from loradock.delivery.kubernetes.check import GROUPS, RULES, problems, reference

pytestmark = pytest.mark.thin(3)

CASES = cases()


@pytest.mark.parametrize("kind", GOODS)
def test_a_good_manifest_gives_nothing(kind: str) -> None:
    assert [str(problem) for problem in problems({"good.yaml": GOODS[kind]})] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why.replace(" ", "-"))
def test_a_broken_manifest_is_refused_by_its_rule_alone_at_its_line(case: Broken) -> None:
    found = problems({"job.yaml": case.text})
    told = [(problem.what.partition(":")[0], problem.line) for problem in found]
    assert told == [(case.rule, case.line)], "\n".join(map(str, found))
    assert (found[0].rule, found[0].level) == (case.rule, case.level)
    assert case.says in str(found[0])
    assert found[0].file == "job.yaml"
    assert found[0].hint


@pytest.mark.parametrize("case", fine(), ids=lambda case: case.why.replace(" ", "-"))
def test_what_is_near_to_broken_and_is_not_gives_nothing(case: Broken) -> None:
    assert case.text != case.good
    assert [str(problem) for problem in problems({"job.yaml": case.text})] == []


def test_every_rule_has_a_name_of_its_own_and_a_broken_manifest() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    security = {rule.name for group, rules in GROUPS.items() if group.startswith("Pod Security") for rule in rules}
    assert set(names) - security == {case.rule for case in CASES} - security


def test_every_problem_of_every_object_is_told_at_once_in_the_order_of_the_file() -> None:
    text = GOOD.replace("storage: 50Gi", "storage: 50Gb").replace("restartPolicy: Never", "restartPolicy: Always")
    text = text.replace("hostname", "hostname\n          maxSkews: 2").replace(
        "name: demo-output\nspec", "name: Demo\nspec"
    )
    found = problems({"job.yaml": text})
    assert [problem.what.partition(":")[0] for problem in found] == [
        "schema",
        "schema",
        "schema",
        "schema",
    ]
    assert [problem.line for problem in found] == sorted(problem.line or 0 for problem in found)


def test_the_page_of_rules_is_the_table_of_rules(request: pytest.FixtureRequest) -> None:
    page = Path(__file__).parents[2] / "docs" / "manifest-check.md"
    if request.config.getoption("--write-manifest-rules", default=False):
        page.write_text(reference.markdown(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == reference.markdown(), (
        "run: pytest tests/kubernetes --write-manifest-rules"
    )


def test_the_example_on_the_page_is_what_is_said() -> None:
    text = GOOD
    for old, new in (
        ("      name: base\n", "      names: base\n"),
        ("backoffLimit: 3", "backofLimit: 3"),
        ("values: [75]", "values: [0, 75]"),
        ("[launch, --nnodes", '[launch, --nproc, "2", --nnodes'),
        ("sizeLimit: 8Gi", "sizeLimit: 8Gb"),
        (f"fetch{DIGEST}", "fetch:1.2"),
        (
            "            readOnlyRootFilesystem: true\n",
            "            privileged: true\n            readOnlyRootFilesystem: true\n",
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = problems({"job.yaml": text})
    warnings = "".join(f"warning: {each}\n" for each in found if each.level == "warning")
    errors = [each for each in found if each.level == "error"]
    said = f"{warnings}error: {len(errors)} problem(s) in 1 file(s)\n" + "".join(f"  {each}\n" for each in errors)
    assert said == reference.EXAMPLE


def test_without_the_schemas_the_remedy_is_told() -> None:
    code = "import sys; sys.modules['kubernetes_validate'] = None\n"
    code += (
        "from loradock.delivery.kubernetes.check import problems\nproblems({'x': 'kind: Job\\napiVersion: batch/v1'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "EnvironmentUnfit: error: the schemas of Kubernetes 1.37 are not installed" in done.stderr
    assert "pip install 'kubernetes-validate>=1.37'" in done.stderr
