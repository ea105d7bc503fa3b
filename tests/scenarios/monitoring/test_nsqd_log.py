"""nsqd's log reports clients, topics and channels, and leaves out noise."""

from __future__ import annotations

import re
from pathlib import Path

from sparq.protocol.commands import pub, sub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

PREFIX = re.compile(r"\[nsqd\] [0-9/]{10} [0-9:.]{15} INFO: ")


def visit(nsqd: NsqdServer) -> None:
    """Subscribe, publish and disconnect; create and delete a topic and its channel over HTTP."""
    with V2Client(nsqd) as line:
        assert OK == line.ask(sub("t", "c"))
        assert OK == line.ask(pub("t", b"x"))
    nsqd.post("/topic/create?topic=u")
    nsqd.post("/channel/create?topic=u&channel=d")
    nsqd.post("/channel/delete?topic=u&channel=d")
    nsqd.post("/topic/delete?topic=u")
    wait_for(lambda: "disconnected" in nsqd.log_text and "TOPIC(u): deleted" in nsqd.log_text)


def test_clients_topics_and_channels_are_logged_at_info(tmp_path: Path) -> None:
    """Clients, topics and channels are logged at info; a second subscriber creates nothing."""
    with spawn_nsqd(tmp_path) as nsqd:
        visit(nsqd)
        with V2Client(nsqd) as line:
            assert OK == line.ask(sub("t", "c"))
        wait_for(lambda: nsqd.log_text.count("disconnected") == 2)
    lines = [PREFIX.sub("", line) for line in nsqd.log_text.splitlines()]
    where = r"127\.0\.0\.1:\d+"

    for text, times in (
        (rf"TCP: new client\({where}\)", 2),
        (rf"PROTOCOL\(V2\): \[{where}\] SUB t c \(client_id .*, user_agent .*\)", 2),
        (rf"TCP: client\({where}\) disconnected", 2),
        (r"TOPIC\(t\): created", 1),
        (r"TOPIC\(t\): channel c created", 1),
        (r"TOPIC\(u\): created", 1),
        (r"TOPIC\(u\): channel d created", 1),
        (r"TOPIC\(u\): channel d deleted", 1),
        (r"TOPIC\(u\): deleted", 1),
    ):
        assert times == sum(re.fullmatch(text, line) is not None for line in lines), (text, lines)


def test_a_restart_does_not_log_existing_topics_as_created(tmp_path: Path) -> None:
    """A restart logs no existing topic as created, and what is polled is not logged at all."""
    with spawn_nsqd(tmp_path) as nsqd:
        visit(nsqd)
        nsqd.terminate()
        told = len(nsqd.log_text)
        nsqd.start()
        for _ in range(3):
            assert 200 == nsqd.request("GET", "/ping")[0]
            assert 200 == nsqd.request("GET", "/stats")[0]
        assert 200 == nsqd.request("GET", "/info")[0]
        again = nsqd.log_text[told:]

    assert "TOPIC(" not in again
    assert "/ping" not in again
    assert "/stats" not in again
    assert "200 GET /info" in again
