"""The page of a report: complete, escaped, under a policy that holds, whatever state a run is in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from analysis.report.made_runs import eval_line, made_run, rewrite, step_line, train_lines, write_lines

from loradock.analysis.report.html import bars, render
from loradock.analysis.report.html.charts import charts
from loradock.analysis.report.html.runs import read
from loradock.errors import InputMissing

pytestmark = pytest.mark.thin(2)

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
FETCHING = {"src", "href", "srcset", "action", "data", "poster", "background", "xlink:href", "formaction"}
VOID = {"meta", "input", "br", "link", "img"}


class Parsed(HTMLParser):
    """Elements with their attributes, texts, and what was never closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get(name))]


def page(*directories: Path) -> str:
    return render.html(read(directories))


def inline(text: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)


def policy_of(text: str) -> str:
    found = next(attrs for tag, attrs in Parsed(text).elements if attrs.get("http-equiv"))
    return str(found["content"])


def test_a_page_is_well_formed_and_fetches_nothing(tmp_path: Path) -> None:
    parsed = Parsed(page(made_run(tmp_path / "run")))
    assert parsed.open == []
    assert {tag for tag, _ in parsed.elements}.isdisjoint({"img", "link", "iframe", "object", "embed", "base", "form"})
    for _, attributes in parsed.elements:
        for name in FETCHING & attributes.keys():
            assert str(attributes[name]).startswith("#")
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)


def test_a_page_has_every_id_once_and_names_only_those_that_are_there(tmp_path: Path) -> None:
    parsed = Parsed(page(made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=1)))
    ids = parsed.attributes("id")
    assert len(ids) == len(set(ids))
    named = [part for value in parsed.attributes("aria-labelledby") for part in value.split()]
    linked = [value.removeprefix("#") for value in parsed.attributes("href")]
    assert {*named, *linked} <= set(ids)


def test_headings_are_in_order(tmp_path: Path) -> None:
    for directories in ([made_run(tmp_path / "a")], [tmp_path / "a", made_run(tmp_path / "b")]):
        levels = [int(tag[1]) for tag, _ in Parsed(page(*directories)).elements if re.fullmatch(r"h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_policy_allows_this_script_and_this_style_and_no_other_source(tmp_path: Path) -> None:
    text = page(made_run(tmp_path / "run"))
    policy = dict(part.split(" ", 1) for part in policy_of(text).split("; "))
    assert policy.pop("script-src") == f"'{digest(inline(text, 'script')[0])}'"
    assert policy.pop("style-src") == f"'{digest(inline(text, 'style')[0])}'"
    assert len(inline(text, "script")) == len(inline(text, "style")) == 1
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_a_page_from_disk_has_no_code_that_could_ask_a_network(tmp_path: Path) -> None:
    script = inline(page(made_run(tmp_path / "run")), "script")[0]
    assert (
        re.search(r"fetch|XMLHttpRequest|WebSocket|import\s*\(|EventSource|sendBeacon|innerHTML|eval", script) is None
    )


@pytest.mark.parametrize("count", [1, 2])
def test_whatever_a_run_calls_itself_stays_text(tmp_path: Path, count: int) -> None:
    record = {
        "error": f"error: {EVIL}",
        "status": "failed",
        "env_check": {"level": EVIL, "findings": [{"severity": "error", "check": EVIL, "what": EVIL, "remedy": EVIL}]},
        "alerts": [{"severity": EVIL, "name": EVIL, "what": EVIL, "remedy": EVIL, "step": 3}],
        "engine": [{"name": EVIL, "value": EVIL, "why": EVIL}],
        "base": {"name": EVIL},
        "origins": {"lora.rank": EVIL},
        "timings_seconds": {EVIL: 3.0},
    }
    names = [f"<script>alert({number})<!--&" for number in range(count)]
    runs = [made_run(tmp_path / name, change=record) for name in names]
    text = page(*runs)
    tags = [tag for tag, _ in Parsed(text).elements]
    assert "img" not in tags
    assert tags.count("script") == 1 + len(charts(read(runs)))
    assert "onerror=alert(2)&gt;" in text
    assert "<img" not in text
    assert not any("<" in block for block in re.findall(r'class="points">(.*?)</script>', text))


def test_points_for_the_script_are_those_that_are_drawn(tmp_path: Path) -> None:
    text = page(made_run(tmp_path / "run", steps=1_000))
    blocks = [json.loads(each) for each in re.findall(r'class="points">(.*?)</script>', text)]
    paths = re.findall(r'<path class="curve [^"]*" data-run="0" d="([^"]*)"', text)
    drawn = [series for block in blocks for series in block["series"]]
    assert len(drawn) == len(paths) > 6
    for series, path in zip(drawn, paths, strict=True):
        assert len(re.findall(r"[ML]", path)) == len(series["xs"]) == len(series["ys"]) > 0


def test_a_run_of_one_line_is_drawn(tmp_path: Path) -> None:
    text = page(made_run(tmp_path / "run", steps=1))
    assert "1.2500" in text
    assert "nan" not in text.lower()


def test_a_run_of_a_hundred_thousand_lines_is_thinned_out_and_says_so(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    lines = (f'{{"kind": "train", "step": {step}, "loss": {1 + 1 / step}}}\n' for step in range(1, 100_001))
    (directory / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    text = page(directory)
    assert "of up to 100,000 values" in text
    assert "mean over about 2000 lines" in text
    assert len(text) < 1_000_000


def test_a_run_that_has_only_begun_is_shown(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "run.json").write_text('{"status": "running"}', encoding="utf-8")
    text = page(directory)
    assert "running: setup" in text
    assert "No metric line has been written yet." in text


def test_a_run_that_failed_tells_the_reason_at_the_top(tmp_path: Path) -> None:
    failed = {"status": "failed", "exit_code": 80, "error": "error: the card is full\nhint: take a smaller one"}
    text = page(made_run(tmp_path / "run", change=failed))
    assert '<p class="banner">failed with exit code 80: the card is full</p>' in text


def test_a_record_of_another_age_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    older = [{"kind": "train", "step": step, "loss": 2.0, "novel": {"a": [1]}} for step in (1, 2)]
    odd = {"config": ["no", "object"], "facts": 7, "plan": {"decisions": "none", "memory_bytes": {"total": "much"}}}
    directory = made_run(tmp_path / "run", change={**odd, "timings_seconds": None, "attempts": {}, "novel": 1})
    write_lines(directory / "metrics.jsonl", [*older, {"kind": "eval", "step": 2}, {"kind": "novel", "step": 2}])
    assert "2.0000 over the first 1 step, 2.0000 over the last 1 step" in page(directory)


def test_a_damaged_line_is_passed_over_and_told_and_one_that_is_being_written_is_not(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    file = directory / "metrics.jsonl"
    file.write_text("\0\0{broken\n" + file.read_text(encoding="utf-8") + '{"kind": "tra', encoding="utf-8")
    assert "metrics.jsonl: 1 damaged line was passed over" in page(directory)


def test_a_value_that_is_no_number_is_left_out_and_counted(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    lines = [*train_lines(10), step_line(11, loss=float("nan")), step_line(12, loss=float("inf"))]
    write_lines(directory / "metrics.jsonl", lines)
    text = page(directory)
    assert "2 values that are no finite number are left out." in text
    assert "NaN" not in text


def test_a_step_that_was_made_twice_counts_once(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    write_lines(directory / "metrics.jsonl", [step_line(1, loss=9.0), step_line(2, loss=8.0), step_line(1, loss=3.0)])
    assert [line["loss"] for line in read([directory])[0].train] == [3.0, 8.0]


def test_where_there_is_no_run_that_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="there is no run in"):
        read([tmp_path])


def test_runs_of_one_name_get_labels_of_their_own(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / "a" / "run"), made_run(tmp_path / "b" / "run"), made_run(tmp_path / "c" / "other")]
    assert [run.label for run in read(runs)] == ["a/run", "b/run", "other"]
    assert [run.label for run in read([runs[0], runs[0]])] == ["a/run (1)", "a/run (2)"]


def test_a_secret_in_a_record_does_not_reach_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "swordfish4711")
    error = "error: 401 for hf_AbCdEf4711AbCdEf4711 at https://ada:pass4711@hub.example/x, swordfish4711"
    text = page(made_run(tmp_path / "run", change={"status": "failed", "error": error}))
    assert "4711" not in text
    assert "&lt;SOME_TOKEN&gt;" in text


def test_the_shares_of_a_step_are_those_of_its_lines(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    cadence = {"name": "cadence", "value": {"log": 1, "evaluate": 0, "save": 10}, "why": ""}
    rewrite(directory, plan={"decisions": [cadence]})
    found = bars.phases(read([directory]))[0]
    shares = {part.name: part.width for part in found.parts}
    whole = 0.5 + 0.01 + 2.0 + 0.15
    assert shares["forward and backward"] == pytest.approx(100 * 0.35 / whole)
    assert shares["saving"] == pytest.approx(100 * 0.15 / whole)
    assert sum(shares.values()) == pytest.approx(100)
    assert found.parts[-1].start + found.parts[-1].width == pytest.approx(100)


def test_expected_and_seen_memory_are_drawn_to_one_scale(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    rewrite(directory, plan={"memory_bytes": {"base weights": 6 << 30, "activations": 4 << 30, "total": 10 << 30}})
    expected, seen = bars.memory(read([directory])[0])
    assert [part.width for part in expected.parts] == pytest.approx([30, 20])
    assert [part.width for part in seen.parts] == pytest.approx([100])
    assert seen.total.startswith("20.00 GiB, 2.00x")


def test_a_live_page_may_ask_its_own_server_and_nobody_else(tmp_path: Path) -> None:
    text = render.html(read([made_run(tmp_path / "run")]), live_version="abc")
    assert "connect-src 'self'" in policy_of(text)
    assert 'data-live="abc"' in text
    assert 'fetch("/version"' in inline(text, "script")[0]


def test_an_evaluation_is_named_beside_the_training_loss(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    write_lines(directory / "metrics.jsonl", [*train_lines(5), eval_line(3, loss=2.0), eval_line(5, loss=1.5)])
    loss = charts(read([directory]))[0]
    assert [(each.name, each.total) for each in loss.series] == [("training", 5), ("evaluation", 2)]
    assert "evaluation: 2 values, first 2, last 1.5" in loss.description


def test_both_losses_of_a_run_that_embeds_and_its_accuracy_have_charts(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    supervised = {each.kind.name for each in charts(read([directory]))}
    parts = {"embedding_loss": 2.0, "generative_loss": 1.0, "in_batch_accuracy": 0.5}
    held_out = [eval_line(step, loss=2.0) | parts for step in (2, 4)]
    write_lines(directory / "metrics.jsonl", [*(step_line(step, loss=3.0, **parts) for step in range(1, 5)), *held_out])
    added = [each for each in charts(read([directory])) if each.kind.name not in supervised]
    assert [each.kind.title for each in added] == [
        "Contrastive loss",
        "Generative loss",
        "Queries whose positive is first in the step",
    ]
    assert [(each.name, each.total) for each in added[2].series] == [("training", 4), ("evaluation", 2)]
    assert added[2].table()[0][1] == "50"


def test_samples_of_the_monitor_are_drawn_over_minutes_also_those_that_nobody_knows_yet(tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run")
    times = [f"2026-11-21T12:0{minute}:30.000+00:00" for minute in range(4)]
    sample = {
        "utilization": 0.5,
        "card_used_bytes": 3 << 30,
        "slowdowns": ["HW Slowdown"],
        "fan_percent": 40,
        "step": 1,
    }
    write_lines(directory / "monitor.jsonl", [{"time": time, **sample} for time in times])
    found = {chart.kind.name: chart for chart in charts(read([directory]))}
    assert found["utilisation"].series[0].points == ((0.0, 50.0), (1.0, 50.0), (2.0, 50.0), (3.0, 50.0))
    assert found["utilisation"].x_name == "minute"
    assert [each.name for each in found["gpu-memory"].series] == ["in use"]
    assert found["sampled-fan-percent"].kind.unit == "%"
    assert "HW Slowdown in 100% of the samples" in page(directory)


def test_alerts_come_first_with_their_remedies(tmp_path: Path) -> None:
    alert = {
        "name": "data-bound",
        "what": "steps wait 40 % of their time",
        "remedy": "--set train.workers=4",
        "step": 9,
    }
    text = page(made_run(tmp_path / "run", change={"alerts": [alert]}))
    assert text.index("data-bound at step 9") < text.index('id="summary"')
    assert "remedy: --set train.workers=4" in text
