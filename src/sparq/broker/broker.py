"""All topics, all sessions: commands become effects, once a turn effects become writes and output.

The shell's whole view of the broker. Its calls, in the order of a turn:

1. `execute` for each command (and `publish` for HTTP): applied in memory at once.
2. `end_turn`: commits begin, ready sessions are handed messages, ledgers are written.
3. `take_tasks`: disk work for the threads; each task's `done` is called back, then a turn follows.
4. `dirty_sessions`: whose `take_output` has something to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparq.broker.options import BrokerOptions
from sparq.broker.session import Session
from sparq.protocol.commands import Command
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.channel import SeekTarget
    from sparq.broker.stats import BrokerStats
    from sparq.broker.topic import Topic
    from sparq.log.disk import Disk
    from sparq.log.task import Task

Done = Callable[[RemoteError | None], None]


class Broker:
    """Every topic and session of one nsqd.

    Attributes:
        topics: by name.
        limits: what clients may ask for.
        node_id: the data path's own node id.
        backlog_bytes: publishes of all sessions that are not on disk yet.
        busy: another turn should follow at once, though no event is there to cause it.
        changes: ("created" | "deleted", topic, channel or None), for whoever tells nsqlookupd.
    """

    topics: dict[str, Topic]
    changes: deque[tuple[str, str, str | None]]
    node_id: int
    backlog_bytes: int
    busy: bool

    def __init__(
        self,
        options: BrokerOptions,
        disk: Disk,
        data_path: str,
        now: Instant,
        *,
        hostname: str = "",
        version_text: str = "",
    ) -> None: ...

    def load(self, now: Instant) -> list[str]:
        """Open what the data path holds; returns what an operator should read about it."""

    def connect(self, remote_address: str, now: Instant) -> Session: ...
    def disconnect(self, session: Session, now: Instant) -> None: ...
    def execute(self, session: Session, command: Command, now: Instant) -> None: ...
    def fail(self, session: Session, error: RemoteError) -> None: ...
    def writable(self, session: Session) -> None: ...
    def publish(
        self,
        topic_name: str,
        bodies: Bodies,
        now: Instant,
        done: Done,
        *,
        command: str = "PUB",
        defer_ms: int = 0,
    ) -> None: ...
    def end_turn(self, now: Instant) -> None: ...
    def take_tasks(self) -> list[Task]: ...
    def dirty_sessions(self) -> list[Session]: ...
    def tick(self, now: Instant) -> int | None: ...
    def create_topic(self, name: str, now: Instant) -> None: ...
    def delete_topic(self, name: str, now: Instant) -> None: ...
    def empty_topic(self, name: str, now: Instant) -> None: ...
    def pause_topic(self, name: str, paused: bool, now: Instant) -> None: ...
    def create_channel(self, topic_name: str, name: str, now: Instant) -> None: ...
    def delete_channel(self, topic_name: str, name: str, now: Instant) -> None: ...
    def empty_channel(self, topic_name: str, name: str, now: Instant) -> None: ...
    def pause_channel(self, topic_name: str, name: str, paused: bool, now: Instant) -> None: ...
    def seek_channel(
        self, topic_name: str, name: str, target: SeekTarget, now: Instant
    ) -> None: ...
    def channels_known(self, topic_name: str, names: list[str], now: Instant) -> None: ...
    def health(self) -> str: ...
    def close(self, now: Instant) -> None: ...
    def snapshot(
        self,
        now: Instant,
        topic: str | None = None,
        channel: str | None = None,
        include_clients: bool = True,
    ) -> BrokerStats: ...
