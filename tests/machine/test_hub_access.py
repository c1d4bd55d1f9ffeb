"""What the hub's variables hold is told by name before anything is asked, and a hub that is away costs seconds."""

from __future__ import annotations

import json
import time
from pathlib import Path

import mlflow_server
import pytest
from faults.forking import Forking
from proven import unchecked

from loradock.errors import EnvironmentUnfit, HubError, NotWritable
from loradock.machine import hub_access

WRONG = {
    "HF_ENDPOINT": ("hub.example", "hub.example:8080/path", "ftp://hub.example", "https://", "http://hub.example:port"),
    "SSL_CERT_FILE": ("/no/such.pem", "{empty}"),
    "REQUESTS_CA_BUNDLE": ("/no/such.pem", "{empty}"),
    "CURL_CA_BUNDLE": ("/no/such.pem", "{empty}"),
    "SSL_CERT_DIR": ("/no/such",),
    "HTTPS_PROXY": ("ftp://proxy.example", "http://proxy.example:port", "http://"),
    "http_proxy": ("proxy.example:port",),
    "ALL_PROXY": ("socks5://proxy.example:1080", "gopher://proxy.example"),
    "HF_HUB_ETAG_TIMEOUT": ("ten", "1e1"),
    "HF_HUB_DOWNLOAD_TIMEOUT": ("10s",),
    "HF_TOKEN": ("hf_a hf_b", "hf_ä"),
    "HUGGING_FACE_HUB_TOKEN": ("hf_a\nhf_b",),
}
RIGHT = {
    "HF_ENDPOINT": ("", "http://hub.example", "https://hub.example:8443/mirror/", "https://user:word@hub.example"),
    "SSL_CERT_FILE": ("",),
    "SSL_CERT_DIR": ("/no/such:/etc",),
    "HTTPS_PROXY": ("proxy.example:3128", "http://user:p%40ss@proxy.example:3128"),
    "HF_HUB_ETAG_TIMEOUT": ("30",),
    "HF_TOKEN": ("hf_abc\n", ""),
}

ONLINE = {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_variable_that_cannot_be_right_is_told_by_its_name_with_a_remedy(
    name: str, value: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(EnvironmentUnfit) as told:
        hub_access.check({name: value.format(empty=tmp_path / "empty.pem")})
    shown = name.upper() if name.endswith("proxy") else name
    assert told.value.what.startswith(shown)
    assert shown in (told.value.hint or "")
    assert "TOKEN" not in name or "hf_" not in str(told.value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in RIGHT.items() for value in values])
def test_a_variable_that_may_be_right_is_left_alone(name: str, value: str) -> None:
    assert not list(hub_access.wrong({name: value}))


def test_all_variables_are_told_at_once_and_no_password_with_them() -> None:
    with pytest.raises(EnvironmentUnfit) as told:
        hub_access.check({"HF_ENDPOINT": "ftp://me:hush@hub.example", "SSL_CERT_FILE": "/no/such"})
    assert len(told.value.problems) == 2
    assert "hush" not in str(told.value)


def test_a_hub_that_is_away_costs_seconds() -> None:
    began = time.monotonic()
    with mlflow_server.hanging() as address:
        why = hub_access.away({"HF_ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": "1"})
    assert why == f"{address} has not answered for 1 s"
    with mlflow_server.refusing() as address:
        assert f"{address} cannot be reached: " in str(hub_access.away({"HF_ENDPOINT": address}))
    assert time.monotonic() - began < 20
    with mlflow_server.answering() as server:
        assert hub_access.away({"HF_ENDPOINT": server.address}) is None, "any answer is one"


def test_what_a_library_raises_is_told_by_its_cause() -> None:
    with (
        pytest.raises(HubError, match=r"the hub did not give m at main: ZeroDivisionError: division by zero"),
        hub_access.asking("m at main", hint="h"),
    ):
        raise ZeroDivisionError("division by zero")
    with pytest.raises(NotWritable, match="cannot write /cache"), hub_access.asking("m", hint="h"):
        raise PermissionError(13, "Permission denied", "/cache")


def test_a_run_that_never_began_is_corrected_by_the_same_command_with_another_model(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    """Whether a hub did not answer (69) or a variable was wrong (71): no step was made that could be continued."""
    given = ("--data", str(rows), "--max-steps", "2", "--output", "out", unchecked("what precedes it is the subject"))
    hub = ("train", "--model", "owner/name", "--set", "model.revision=main", *given)
    with mlflow_server.refusing() as address:
        first = forking.start(tmp_path, *hub, HF_ENDPOINT=address, **ONLINE)
        assert first.finish() == 69, first.text()
    assert f"is not in the local cache, and {address} cannot be reached: " in first.text()
    second = forking.start(tmp_path, *hub, HF_ENDPOINT="hub.example", **ONLINE)
    assert second.finish() == 71, second.text()
    assert "error: HF_ENDPOINT=hub.example is not an address" in second.text()
    third = forking.start(tmp_path, "train", "--model", str(llama), *given)
    assert third.finish() == 0, third.text()
    record = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["model"]["name"] == str(llama)
    assert [attempt["exit_code"] for attempt in record["attempts"]] == [69, 71]
    other = forking.start(tmp_path, "train", "--model", str(llama), *given, "--lr", "1e-3")
    assert other.finish() == 83, other.text()
