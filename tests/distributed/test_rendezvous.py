"""Where processes meet: on one address alone, and only those with the same secret."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from torch.distributed import DistNetworkError, TCPStore

from loradock.distributed.place import free_port
from loradock.distributed.rendezvous import all_hosts, listener, store_at
from loradock.distributed.seal import Seal
from loradock.errors import Hung
from loradock.facts import Facts

SEAL = Seal(key=b"k" * 16, start="0")
OTHER = Seal(key=b"another secret of 24 byt", start="0")


def rank(number: int) -> Facts:
    return Facts(platform="x", python="3", cpus=1, memory_bytes=1, in_container=False, world_size=2, rank=number)


def test_a_store_listens_on_the_address_of_the_rendezvous_alone() -> None:
    port = free_port()
    kept = store_at(("127.0.0.1", port), keeps=True, timeout_seconds=5)
    other = store_at(("127.0.0.1", port), keeps=False, timeout_seconds=5)
    kept.set("a", b"1")
    assert other.get("a") == b"1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=2)


def test_where_others_come_by_another_address_it_listens_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listener(("192.0.2.1", free_port())) is None  # RFC 5737: an address of nobody
    own = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 1))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: own)
    assert listener(("this-machine", 1)) is None


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(DistNetworkError, match="EADDRINUSE"):
        store_at(("127.0.0.1", server.getsockname()[1]), keeps=True, timeout_seconds=5)


def joined(store: Any, number: int, seal: Seal, *, seconds: float) -> tuple[str, ...]:
    return all_hosts(store, rank(number), ("127.0.0.1", 1), seal=seal, until=time.monotonic() + seconds)


def test_ranks_with_the_same_secret_meet_whatever_a_stranger_writes() -> None:
    store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("host/1", b"a stranger's")
    found: list[tuple[str, ...]] = []
    waiting = threading.Thread(target=lambda: found.append(joined(store, 0, SEAL, seconds=30)))
    waiting.start()
    time.sleep(0.5)
    assert not found
    assert joined(store, 1, SEAL, seconds=30) == (socket.gethostname(),) * 2
    waiting.join(30)
    assert found == [(socket.gethostname(),) * 2]


def test_a_rank_with_another_secret_is_named() -> None:
    store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("host/1", OTHER.close("host/1", b"node-1"))
    with pytest.raises(Hung, match=r"rank 1 of 2 joined at 127\.0\.0\.1:1 with another secret") as caught:
        joined(store, 0, SEAL, seconds=0.5)
    assert "LORADOCK_RUN_SECRET" in str(caught.value.hint)


def test_a_rank_that_did_not_come_is_named() -> None:
    store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(Hung, match="rank 1 of 2 did not join"):
        joined(store, 0, SEAL, seconds=0.5)
