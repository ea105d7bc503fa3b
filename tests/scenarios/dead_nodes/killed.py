"""Three real nsqds registered with two real nsqlookupds; one nsqd is killed after all topics exist.

The first nsqlookupd does not notice, as after a power cut: a relay keeps the nsqd's connection
open, so it still lists the nsqd. The second one notices, and lists two nsqds.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for

CHANNEL = "archive"
KEEPER = "keeper"
"""A channel without consumers, so that the log keeps its messages."""


class Relay:
    """Forwards between an nsqd and an nsqlookupd, and keeps the nsqlookupd's connection open."""

    def __init__(self, target: Server) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.tcp = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = target
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target.tcp_port))
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=_forward, args=pair))
                    self._threads[-1].start()

    def close(self) -> None:
        """Close all connections and end the threads."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)


@dataclass
class ClusterWithDeadNsqd:
    """The daemons; the last nsqd has been killed.

    Attributes:
        unaware: the nsqlookupd that lists the killed nsqd.
        aware: the nsqlookupd that does not list it.
        alive: the nsqds that answer.
        dead: the address of the killed nsqd.
        ids: by topic, its deferred message's id at each nsqd, the killed one's last.
    """

    unaware: Server
    aware: Server
    alive: tuple[NsqdServer, NsqdServer]
    dead: str
    ids: dict[str, list[str]] = field(default_factory=dict)

    def state(self, topic: str) -> list[dict[str, Any]]:
        """The state of a topic and its channel at each live nsqd; {} if it has no such topic."""
        return [_state(nsqd, topic) for nsqd in self.alive]


def _state(nsqd: NsqdServer, topic: str) -> dict[str, Any]:
    found = nsqd.get_json(f"/stats?format=json&topic={topic}")["topics"]
    if not found:
        return {}
    state = {"topic_paused": found[0]["paused"]}
    channel = nsqd.channel(topic, CHANNEL)
    if channel:
        state |= {"paused": channel["paused"], "waiting": channel["depth"]}
        state |= {"deferred": channel["deferred_count"]}
    return state


@contextmanager
def three_nsqds(folder: Path, topics: Iterable[str]) -> Iterator[ClusterWithDeadNsqd]:
    """Start all; each nsqd has each topic with a channel, 2 waiting messages and 1 deferred one."""
    with (
        spawn_nsqlookupd(folder, name="unaware") as unaware,
        spawn_nsqlookupd(folder, name="aware") as aware,
        contextlib.closing(Relay(unaware)) as relay,
        spawn_nsqd(folder, lookupds=(unaware, aware), name="first") as first,
        spawn_nsqd(folder, "--node-id=2", lookupds=(unaware, aware), name="second") as second,
        spawn_nsqd(
            folder,
            *("--node-id=3", f"--lookupd-tcp-address={relay.tcp}"),
            lookupds=(aware,),
            name="third",
        ) as third,
    ):
        found = ClusterWithDeadNsqd(unaware, aware, (first, second), third.http)
        for topic in topics:
            found.ids[topic] = [_create_topics(nsqd, topic) for nsqd in (first, second, third)]
        for lookupd in (unaware, aware):
            wait_for(lambda at=lookupd: all(_listed(at, topic) == 3 for topic in found.ids))
        third.kill9()
        wait_for(lambda: len(aware.get_json("/nodes")["producers"]) == 2)
        yield found


def _create_topics(nsqd: NsqdServer, topic: str) -> str:
    nsqd.post(f"/topic/create?topic={topic}")
    for channel in (CHANNEL, KEEPER):
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    nsqd.post(f"/mpub?topic={topic}", b'{"n": 1}\n{"n": 2}')
    nsqd.post(f"/pub?topic={topic}&defer=3600000", b'{"n": 3}')
    query = f"topic={topic}&channel={CHANNEL}&state=deferred&bodies=false"
    path = f"/channel/messages?{query}"
    wait_for(lambda: nsqd.get_json(path)["messages"])
    (message,) = nsqd.get_json(path)["messages"]
    return str(message["id"])


def _listed(lookupd: Server, topic: str) -> int:
    status, answer = lookupd.request("GET", f"/lookup?topic={topic}")
    return len(json.loads(answer)["producers"]) if status == 200 else 0
