"""The log flags that all daemons have in addition to NSQ's, and checks of their effects."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta

from tests.support.flag_rows import FlagServer, Row
from tests.support.v2_client import MAGIC
from tests.support.waiting import wait_for

REPEATS = 2
CLIENTS = 5
NAMES = {"log-format", "log-utc", "log-repeats"}


def connect_clients(server: FlagServer) -> None:
    """Connect CLIENTS clients, one after the other; wait until each is closed."""
    magic = MAGIC if server.module.endswith("nsqd") else b"  V1"
    for _ in range(CLIENTS):
        with socket.create_connection(("127.0.0.1", server.tcp_port), timeout=30) as client:
            client.sendall(magic + b"NONSENSE\n")
            while client.recv(1 << 16):
                pass


def log_format(server: FlagServer) -> None:
    """Every line is a JSON object."""
    connect_clients(server)
    wait_for(lambda: "new client" in server.log_text)
    program = server.module.rpartition(".")[2]
    found = [json.loads(line) for line in server.log_text.splitlines()]
    assert {program} == {line["program"] for line in found}


def log_utc(server: FlagServer) -> None:
    """The time is the current one in UTC."""
    logged = datetime.strptime(server.log_text.split("] ")[1][:19], "%Y/%m/%d %H:%M:%S")
    assert abs(datetime.now(UTC) - logged.replace(tzinfo=UTC)) < timedelta(minutes=10)


def log_repeats(server: FlagServer) -> None:
    """At most REPEATS equal lines a minute are logged, including those of earlier tests."""
    line = "TCP: new client(127.0.0.1"
    before = server.log_text.count(line)
    connect_clients(server)
    after = server.log_text.count(line)
    assert after - before <= REPEATS <= after


AS_JSON = [Row("log-format", "json", log_format)]
BOUNDED = [
    Row("log-utc", True, log_utc),
    Row("log-repeats", REPEATS, log_repeats),
]
