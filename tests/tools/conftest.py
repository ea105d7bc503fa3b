"""Daemons that tests of several tools share; each test uses its own topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sparq.daemon.access import tokens
from sparq.tools.admin.verbs import main as admin
from tests.client.certificates import certificates
from tests.support.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd


@dataclass(frozen=True)
class GuardedNsqd:
    """An nsqd that requires a token, and the flags that reach its HTTPS port with it."""

    nsqd: NsqdServer
    address: str
    token: str
    authority: str


@pytest.fixture(scope="session")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqlookupd."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookup")) as server:
        yield server


@pytest.fixture(scope="session")
def nsqds(
    tmp_path_factory: pytest.TempPathFactory, lookupd: Server
) -> Iterator[tuple[NsqdServer, NsqdServer]]:
    """Two nsqds; the first one counts messages beyond three as on disk."""
    folder = tmp_path_factory.mktemp("nsqds")
    with (
        spawn_nsqd(folder, "--mem-queue-size=3", lookupds=(lookupd,), name="first") as first,
        spawn_nsqd(folder, lookupds=(lookupd,), name="second") as second,
    ):
        yield first, second


@pytest.fixture(scope="session")
def nsqd(nsqds: tuple[NsqdServer, NsqdServer]) -> NsqdServer:
    """The first nsqd, for tests that need only one."""
    return nsqds[0]


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNsqd]:
    """An nsqd with the topic `t` and its channel `c`, a token, and a private authority's TLS."""
    folder = tmp_path_factory.mktemp("guarded")
    made, place = certificates(folder / "pem"), f"127.0.0.1:{free_port()}"
    tls = (f"--tls-cert={made.server}", f"--tls-key={made.server}", f"--https-address={place}")
    token, line = tokens.make("operator", "administer,publish,consume")
    (folder / "tokens").write_text(f"{line}\n")
    with spawn_nsqd(folder, *tls, f"--token-file={folder / 'tokens'}") as nsqd:
        words = (f"--token={token}", f"--http-client-tls-root-ca-file={made.authority}")
        address = f"--nsqd-http-address=https://{place}"
        assert 0 == admin(["create", "t", "c", address, *words])
        yield GuardedNsqd(nsqd, address, *words)
