"""What holds for every test: the options of ours, the account of what was skipped, and what many begin with."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from commit import commit, turn_of
from fakegpu import marker
from proven import VERDICT

if TYPE_CHECKING:
    from faults.forking import Forking
    from plain_parent import PlainParent

ALLOWED_SKIPS = Path(__file__).with_name("skips.txt")
# Its tests share one built image and look at all that the engine holds: one process runs them, and starts with them.
ONE_SHARE = "image"
LONG_ONES = (
    ONE_SHARE,
    "published",
    "real",
    "test_readme.py",
    "fuzz",
    "faults/test_campaign.py",
    "commands/test_train.py",
    "env_check/test_kept_by_train.py",
    "env_check/test_env_check.py",
    "kubernetes/kinds/test_kube_play.py",
    "fakegpu",
    "training/test_adding.py",
    "commands/test_diagnose.py",
    "faults",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests that take minutes")
    parser.addoption(
        "--thin", type=int, metavar="TIMES", help="of a file's tests marked thin(N), run each (N x TIMES)-th"
    )
    parser.addoption("--write-faults", action="store_true", help="write docs/faults.md from the faults that are made")
    parser.addoption(
        "--ledger", type=Path, metavar="FILE", help="continue with a campaign: leave out what passed before"
    )


def pytest_configure(config: pytest.Config) -> None:
    for name in ("COLUMNS", "LINES"):  # readline, which pytest imports, sets them past os.environ: a child would fold
        os.unsetenv(name)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # Ignored under nohup or in a script's background, and so in every program that a test starts; a handler that
        # does nothing lets this process live on as well, and is the default in what it starts.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    config.addinivalue_line("markers", "full: takes minutes; runs with --full only")
    config.addinivalue_line(
        "markers",
        "thin(N, together=False): of a file's tests with this mark --thin 1 runs each N-th, by the commit; "
        "together: all of them in one commit of N, where they share what is long to make",
    )
    marker.register(config)
    if not is_worker(config):  # a worker has the verdict's place from the process that started it
        folder = tempfile.TemporaryDirectory(prefix="loradock-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ[VERDICT] = str(Path(folder.name, "verdict"))
    ledger: Path | None = config.getoption("--ledger")
    if ledger:
        from ledger import Ledger, code_state

        config.pluginmanager.register(Ledger(ledger, code_state()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: a million objects are made, stay, and are not looked through again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_worker(config):
        items.sort(key=turn)
    if config.getoption("--full"):
        return
    left_out = {item for item in items if item.get_closest_marker("full")}
    if times := config.getoption("--thin"):
        left_out |= without_a_turn([item for item in items if item not in left_out], times)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def without_a_turn(items: list[pytest.Item], times: int) -> set[pytest.Item]:
    """Of the tests marked thin(N): all but each (N x times)-th of a file; with which to begin the commit chooses."""
    groups: dict[tuple[str, int, bool], list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("thin"):
            key = item.nodeid.partition("::")[0], mark.args[0] * times, mark.kwargs.get("together", False)
            groups.setdefault(key, []).append(item)
    head = commit()
    left_out: set[pytest.Item] = set()
    for (file, among, together), found in groups.items():
        turn = turn_of(f"{head} {file}", among)
        left_out.update(item for place, item in enumerate(found) if (0 if together else place) % among != turn)
    return left_out


def is_worker(config: pytest.Config) -> bool:
    """Whether this is one of several processes that pytest-xdist started."""
    return hasattr(config, "workerinput")


def turn(item: pytest.Item) -> int:
    """The long ones begin first, so that no process ends long after the other."""
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    found = (place for place, start in enumerate(LONG_ONES) if file == start or file.startswith(f"{start}/"))
    return next(found, len(LONG_ONES))


def share_of(nodeid: str) -> str:
    """What one process runs as a whole, so that what a file makes is made once: the file, or all of tests/image."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return ONE_SHARE if file.startswith(f"{ONE_SHARE}/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With pytest-xdist: each process takes one share after another."""
    from xdist.scheduler import LoadScopeScheduling

    class ByShare(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return ByShare(config, log)


def forbidden_skips(config: pytest.Config) -> list[str]:
    """Under CI: each skipped test whose reason does not begin with a line of skips.txt, as `test: reason`."""
    if os.environ.get("CI", "").lower() not in {"1", "true"}:
        return []
    lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
    allowed = tuple(line for line in lines if line and not line.startswith("#"))
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    forbidden: list[str] = []
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not reason.startswith(allowed):
            forbidden.append(f"{report.nodeid}: {reason}")
    return forbidden


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and forbidden_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    forbidden = forbidden_skips(config)
    if forbidden:
        terminalreporter.section("skips that tests/skips.txt does not allow")
        for line in forbidden:
            terminalreporter.line(line, red=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Once a file is done, what it left is looked through a last time: libraries collect garbage again and again."""
    try:
        return (yield)
    finally:
        if nextitem is None or share_of(nextitem.nodeid) != share_of(item.nodeid):
            gc.collect()
            gc.freeze()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama."""
    from tiny import make_llama

    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alpaca rows as JSONL."""
    from tiny import write_rows

    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    """What starts `loradock` commands without the seconds that a cold start takes."""
    from faults.forking import Forking

    parent = Forking()
    yield parent
    parent.end()


@pytest.fixture(scope="session")
def plain_parent() -> Iterator[PlainParent]:
    """What forks the program that proves a merged model."""
    from plain_parent import PlainParent

    parent = PlainParent()
    yield parent
    parent.end()


@pytest.fixture
def forked_proof(plain_parent: PlainParent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process of a full proof of a merge is forked; tests/merge/test_command.py starts it cold."""
    from loradock.use.merge import proof

    monkeypatch.setattr(proof, "subprocess", SimpleNamespace(run=plain_parent.run))
