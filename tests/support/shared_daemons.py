"""Two nsqds and an nsqlookupd that tests of the client share, started once.

This is a plugin: if a second conftest imported the fixture, it would start a second set of daemons.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

RDY_COUNT_MAX = 500
"""The second nsqd's `--max-rdy-count`; the first has NSQ's default, 2,500."""


@dataclass(frozen=True, slots=True)
class SharedDaemons:
    """Two nsqds that register with one nsqlookupd."""

    lookupd: Server
    nsqds: tuple[NsqdServer, NsqdServer]

    def make(self, topic: str, channel: str = "c") -> str:
        """Create a topic and channel on both nsqds; return the topic once nsqlookupd lists both."""
        for nsqd in self.nsqds:
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
        wait_for(lambda: self._listed(topic) == len(self.nsqds))
        return topic

    def _listed(self, topic: str) -> int:
        status, body = self.lookupd.request("GET", f"/lookup?topic={topic}")
        return len(json.loads(body)["producers"]) if status == 200 else 0


@pytest.fixture(scope="session")
def shared_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedDaemons]:
    """Two nsqds and an nsqlookupd; each test uses its own topic, and leaves the daemons running."""
    folder = tmp_path_factory.mktemp("shared_daemons")
    lookupd = spawn_nsqlookupd(folder)

    def start(number: int) -> NsqdServer:
        flags = (f"--max-rdy-count={RDY_COUNT_MAX}",) if number else ()
        return spawn_nsqd(folder, *flags, lookupds=(lookupd,), name=f"nsqd-{number}")

    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        stack.enter_context(lookupd)
        first, second = (stack.enter_context(nsqd) for nsqd in threads.map(start, range(2)))
        yield SharedDaemons(lookupd, (first, second))
