"""Fixtures of the tests of the blocking API."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import sparq
from sparq.client import Session
from tests.client.blocking.sessions import running
from tests.support.servers import NsqdServer, spawn_nsqd


@pytest.fixture(scope="session")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd for all tests; each test uses its own topic."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd"), "--max-msg-size=10000") as server:
        yield server


@pytest.fixture
def session(nsqd: NsqdServer) -> Iterator[Session]:
    """A session; after the test, its thread must have ended."""
    with sparq.connect(nsqd.tcp, max_in_flight=100, max_backoff_duration=0) as made:
        yield made
    assert not running()


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address that refuses connections and that no other test's nsqd can take."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
