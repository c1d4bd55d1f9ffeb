"""The report of real runs in a real browser: opened from disk, alone, drawn, reached by keys, named, readable."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from analysis.report import browser as browsers
from analysis.report.browser import Browser, Page
from analysis.report.made_runs import made_run, step_line
from whole_runs import train

from loradock.analysis.report.html import render
from loradock.analysis.report.html.differences import mean_loss
from loradock.analysis.report.html.runs import read
from loradock.analysis.report.html.server import Server

pytestmark = [
    pytest.mark.skipif(browsers.found() is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.thin(1),
]
PHONE = 360


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.end()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    opened = browser.page()
    opened.look()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> list[Path]:
    """Two real runs that differ in rank and learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    settings = (
        "train.max_steps=8",
        "train.global_batch=8",
        "data.max_length=64",
        "data.validation=0.2",
        "logging.monitor_seconds=0.2",
    )
    one, other = ("lora.rank=4", "train.learning_rate=1e-2"), ("lora.rank=8", "train.learning_rate=1e-3")
    train(folder / "rank-4", *settings, *one, "evaluation.every=4", model=llama, data=rows)
    train(folder / "rank-8", *settings, *other, "evaluation.every=4", model=llama, data=rows)
    return [folder / "rank-4", folder / "rank-8"]


def written(folder: Path, *directories: Path) -> str:
    """The address of a report that was written to disk."""
    file = folder / "report.html"
    file.write_text(render.html(read(directories)), encoding="utf-8")
    return file.as_uri()


def metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_a_report_opens_from_disk_and_no_request_leaves(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    address = written(tmp_path, runs[0])
    tab.open(address)
    assert tab.requests == [address]
    assert tab.complaints == []


def test_a_planted_request_is_seen_and_refused_by_the_policy(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    address = written(tmp_path, runs[0])
    file = tmp_path / "report.html"
    planted = '<img src="http://127.0.0.1:9/x.png"><script>document.title = "planted"</script></main>'
    file.write_text(file.read_text(encoding="utf-8").replace("</main>", planted), encoding="utf-8")
    tab.open(address)
    assert len(tab.complaints) == 2
    assert all("Content Security Policy" in each for each in tab.complaints)
    assert tab.ask("document.title") != "planted"
    file.write_text(re.sub("<meta http-equiv[^>]*>", "", file.read_text(encoding="utf-8")), encoding="utf-8")
    tab.open(address)
    assert "http://127.0.0.1:9/x.png" in tab.requests


def test_every_curve_is_drawn_with_the_points_of_its_lines(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, runs[0]))
    drawn = tab.ask(
        """[...document.querySelectorAll(".field path.curve")].map((path) => {
          const box = path.getBBox();
          return { chart: path.closest("figure").id, length: path.getTotalLength(), points: path.getAttribute("d"),
                   isInside: box.x >= -1 && box.y >= -1 && box.x + box.width <= 1001 && box.y + box.height <= 1001,
                   stroke: getComputedStyle(path).stroke, height: path.getBoundingClientRect().height };
        })"""
    )
    counts = [(each["chart"], len(re.findall("[ML]", each["points"]))) for each in drawn]
    steps, evaluations = len(metrics(runs[0], "train")), len(metrics(runs[0], "eval"))
    assert steps == 8
    assert counts[:2] == [("chart-loss", steps), ("chart-loss", evaluations)]
    assert {name for name, _ in counts} >= {"chart-loss", "chart-rate", "chart-gradient", "chart-throughput"}
    assert all(each["isInside"] and each["stroke"] != "none" for each in drawn)
    assert all(each["length"] > 100 for each in drawn if each["points"].count("L"))


def test_a_curve_is_really_painted(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, runs[0]))
    with_curves = tab.picture()
    tab.ask("document.querySelector('#chart-loss').scrollIntoView()")
    with_curves = tab.picture()
    tab.ask("document.querySelectorAll('.curve, .dot').forEach((each) => each.remove())")
    assert tab.picture() != with_curves


def test_the_comparison_of_two_runs_is_right(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, *runs))
    table = """(name) => [...document.querySelectorAll(`.wide[aria-label="${name}"] tbody tr`)].map(
      (row) => [...row.cells].map((cell) => cell.textContent))"""
    did = {row[0]: row[1:] for row in tab.ask(f"({table})('What it did')")}
    lines = [metrics(run, "train") for run in runs]
    last = [found[0] for each in lines if (found := mean_loss(each[::-1]))]
    assert did["training loss, last steps"] == [f"{loss:.4f}" for loss in last]
    speeds = [sum(line["tokens"] for line in each) / sum(line["seconds"] for line in each) for each in lines]
    assert did["real tokens a second of training"][1].endswith(f"({speeds[1] / speeds[0]:.2f}x)")
    assert did["how it ended"] == ["finished", "finished"]
    differed = {row[0]: row[2:] for row in tab.ask(f"({table})('What differed')")}
    assert differed["lora.rank"] == ["4", "8"]
    assert differed["train.learning_rate"] == ["0.01", "0.001"]
    assert "train.global_batch" not in differed


def test_a_run_can_be_switched_off_in_every_chart(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, *runs))
    seen = """(run) => [...document.querySelectorAll(`.field [data-run="${run}"]`)].filter(
      (each) => getComputedStyle(each).display !== "none").length"""
    before = [tab.ask(f"({seen})({run})") for run in (0, 1)]
    assert min(before) > 4
    tab.ask("document.querySelector('[data-toggle=\"1\"]').click()")
    assert (tab.ask(f"({seen})(0)"), tab.ask(f"({seen})(1)")) == (before[0], 0)
    tab.ask("document.querySelector('#chart-loss .slider').focus()")
    assert "rank-8" not in tab.ask("document.querySelector('#chart-loss .readout').textContent")
    tab.ask("document.querySelector('[data-toggle=\"1\"]').click()")
    assert tab.ask(f"({seen})(1)") == before[1]
    assert "rank-8" in tab.ask("document.querySelector('#chart-loss .readout').textContent")


def test_keys_reach_a_chart_and_move_along_its_curve(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, runs[0]))
    losses = {line["step"]: line["loss"] for line in metrics(runs[0], "train")}
    for _ in range(60):
        tab.press("Tab")
        if tab.ask("document.activeElement.closest('#chart-loss') && document.activeElement.type") == "range":
            break
    said = "document.querySelector('#chart-loss .slider').getAttribute('aria-valuetext')"
    assert tab.ask(said).startswith("step 8: ")
    places = []
    for key, step in (("ArrowLeft", 7), ("ArrowLeft", 6), ("ArrowRight", 7), ("Home", 1), ("End", 8)):
        tab.press(key)
        assert tab.ask(said).startswith(f"step {step}: training {float(f'{losses[step]:.4g}')}")
        places.append(tab.ask("document.querySelector('#chart-loss .cursor').getBoundingClientRect().left"))
    assert places[0] > places[1] < places[2] > places[3] < places[4]
    outline = tab.ask("getComputedStyle(document.querySelector('#chart-loss .slider')).outlineStyle")
    assert outline == "solid"


def test_pointing_at_a_chart_reads_the_nearest_step(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, runs[0]))
    tab.ask("document.querySelector('#chart-loss').scrollIntoView({ behavior: 'instant' })")
    box = tab.ask("document.querySelector('#chart-loss .field').getBoundingClientRect().toJSON()")
    tab.point(box["left"] + box["width"] * 3.1 / 7, box["top"] + 100)
    assert tab.ask("document.querySelector('#chart-loss .readout').textContent").startswith("step 4: training ")


def test_assistive_technology_has_a_name_for_everything(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, *runs))
    charts = tab.ask("document.querySelectorAll('.chart').length")
    images = tab.names("image", "img", "graphics-document")
    assert len(images) >= charts > 3
    for names in (images, tab.names("slider"), tab.names("table", "region", "navigation"), tab.names("checkbox")):
        assert names
        assert all(names)
    assert len(tab.names("slider")) == charts == len(set(tab.names("slider")))
    assert tab.ask("document.documentElement.lang") == "en"
    described = tab.ask("document.querySelector('#chart-loss desc').textContent")
    assert re.match(r"Over the step\. rank-4: training: 8 values, first ", described)


@pytest.mark.parametrize("count", [1, 2])
def test_on_a_phone_nothing_has_to_be_scrolled_sideways(
    tab: Page, runs: list[Path], tmp_path: Path, count: int
) -> None:
    long = made_run(tmp_path / ("a-run-with-a-name-that-is-longer-than-a-phone-is-wide" * 3), steps=2_000)
    directories = [*runs[: count - 1], long]
    tab.look(width=PHONE, height=740)
    tab.open(written(tmp_path, *directories))
    tab.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert tab.ask("document.documentElement.scrollWidth") <= PHONE
    small = tab.ask("[...document.querySelectorAll('.plot text')].map((each) => each.getBoundingClientRect().height)")
    assert min(small) >= 12
    assert tab.ask("document.querySelector('#chart-loss .field').getBoundingClientRect().width") > PHONE * 0.6


def test_light_and_dark_differ_in_ground_text_and_curves(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    address = written(tmp_path, runs[0])
    seen = {}
    for scheme in ("light", "dark"):
        tab.look(scheme=scheme)
        tab.open(address)
        colours = tab.ask(
            """[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
                getComputedStyle(document.querySelector(".field .curve")).stroke]"""
        )
        seen[scheme] = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
    light, dark = seen["light"], seen["dark"]
    assert light[0] > 700 > 150 > dark[0]
    assert light[1] < 150 < 600 < dark[1]
    assert light[2] < dark[2]


def test_who_wants_less_motion_gets_none(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    address = written(tmp_path, runs[0])
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    tab.open(address)
    assert tab.ask(behaviour) == "smooth"
    tab.look(motion="reduce")
    assert tab.ask(behaviour) == "auto"


def test_on_paper_there_are_no_controls(tab: Page, runs: list[Path], tmp_path: Path) -> None:
    tab.open(written(tmp_path, runs[0]))
    tab.call("Emulation.setEmulatedMedia", media="print")
    hidden = "[...document.querySelectorAll('.slider, nav')].every((each) => getComputedStyle(each).display === 'none')"
    assert tab.ask(hidden)


def test_a_live_page_takes_in_new_lines_and_stays_where_it_was(tab: Page, tmp_path: Path) -> None:
    directory = made_run(tmp_path / "run", steps=10)
    with Server([directory]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab.open(server.url)
        tab.ask("document.getElementById('config-table').open = true")
        tab.ask("document.querySelector('#chart-loss .slider').focus()")
        tab.ask("window.scrollTo({ top: 500, behavior: 'instant' })")
        with (directory / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(step_line(11, loss=0.5)) + "\n")
        tab.wait_for("document.querySelector('#chart-loss desc').textContent.includes('last 0.5')")
        assert abs(tab.ask("window.scrollY") - 500) < 5
        assert tab.ask("document.getElementById('config-table').open")
        assert tab.ask("document.activeElement === document.querySelector('#chart-loss .slider')")
        assert tab.ask("document.querySelector('#chart-loss .readout').textContent").startswith("step 11: training 0.5")
        assert tab.complaints == []
        assert all(address.startswith(server.url) for address in tab.requests)
        server.shutdown()
    tab.wait_for("document.getElementById('live').textContent.startsWith('not live any more')")
