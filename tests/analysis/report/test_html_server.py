"""The live report: on the loopback address alone, for who asked for it by name, and always as new as its files."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from analysis.report.made_runs import made_run, step_line

from loradock.analysis.report.html.server import Server
from loradock.errors import InputMissing, UsageError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return made_run(tmp_path / "run", steps=3)


@pytest.fixture
def server(run: Path) -> Iterator[Server]:
    with Server([run]) as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def asked(server: Server, path: str = "/", *, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """Status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    headers = {"Host": host or f"127.0.0.1:{server.server_port}"}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_it_listens_on_the_loopback_address_alone(server: Server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_it_answers_with_the_page_of_now(server: Server, run: Path) -> None:
    status, before = asked(server)
    version = asked(server, "/version")[1]
    assert status == 200
    assert f'data-live="{version}"' in before
    assert asked(server)[1] == before
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(step_line(4, loss=0.123)) + "\n")
    assert asked(server, "/version")[1] != version
    assert "last 0.123" in asked(server)[1]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "[::1]:80", "0.0.0.0"])
def test_a_page_that_was_led_here_under_another_name_gets_nothing(server: Server, host: str) -> None:
    status, body = asked(server, host=host)
    assert status == 421
    assert "loradock report" not in body


def test_localhost_is_a_name_of_its_own(server: Server) -> None:
    assert asked(server, host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_nothing_but_get_is_answered(server: Server, method: str) -> None:
    assert asked(server, method=method)[0] == 501


@pytest.mark.parametrize("path", ["/run.json", "/../run.json", "/?a", "/%2e%2e/run.json"])
def test_no_file_is_served(server: Server, path: str) -> None:
    assert asked(server, path)[0] == 404


def test_a_page_says_how_it_may_be_used(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", "/")
    headers = connection.getresponse().headers
    connection.close()
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"].strip() == "loradock"


def test_a_run_that_is_gone_is_told_and_the_server_goes_on(server: Server, run: Path) -> None:
    assert asked(server)[0] == 200
    (run / "run.json").rename(run / "away.json")
    status, body = asked(server)
    assert status == 503
    assert "there is no run in" in body
    (run / "away.json").rename(run / "run.json")
    assert asked(server)[0] == 200


def test_a_port_that_is_taken_is_told(server: Server, run: Path) -> None:
    with pytest.raises(UsageError, match=f"port {server.server_port} cannot be had"):
        Server([run], port=server.server_port)


def test_where_there_is_no_run_the_page_is_an_error(tmp_path: Path) -> None:
    with Server([tmp_path]) as server, pytest.raises(InputMissing):
        server.page()
