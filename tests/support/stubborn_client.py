"""A consumer that subscribes again at once, at the same nsqd, each time its connection ends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Self

from sparq.protocol.commands import identify, sub
from tests.support.v2_client import OK, V2Client


class StubbornClient:
    """Subscribes as long as the block lasts; asks no nsqlookupd. `port`: the nsqd's TCP port."""

    def __init__(self, port: int, topic: str, channel: str, **facts: Any) -> None:
        self._port = port
        self._names = (topic, channel)
        self._facts = json.dumps({"client_id": "stubborn", "user_agent": "raw/1", **facts}).encode()
        self._subscribed = threading.Event()
        self._ended = threading.Event()
        self._client: V2Client | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._subscribed.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        while self._thread.is_alive():
            with contextlib.suppress(OSError):  # between two connections
                assert self._client is not None
                self._client.socket.shutdown(socket.SHUT_RDWR)
            self._thread.join(0.05)

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError), V2Client(self._port) as self._client:
                self._client.ask(identify(self._facts))
                if self._client.ask(sub(*self._names)) == OK:
                    self._subscribed.set()
                self._client.rest()
