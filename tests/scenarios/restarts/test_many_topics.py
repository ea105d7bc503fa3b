"""Commits of many topics share a sync, and nothing is lost in a kill, a stop and a start."""

from pathlib import Path

from sparq.protocol.commands import pub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK, V2Client, drain

TOPICS = [f"topic-{number}" for number in range(30)]
ROUNDS = 4


def publish_everywhere(server: NsqdServer, rounds: range) -> None:
    """Publish to every topic in one write, wait for all answers, and repeat."""
    with V2Client(server) as line:
        for number in rounds:
            line.send(b"".join(pub(topic, b"%s %d" % (topic.encode(), number)) for topic in TOPICS))
            assert [line.ask(b"") for _ in TOPICS] == [OK] * len(TOPICS)


def journals(server: NsqdServer) -> list[Path]:
    """The files of the journal."""
    return sorted(server.folder.glob("journal-*"))


def test_commits_of_many_topics_share_a_journal(tmp_path: Path) -> None:
    """Commits of many topics share one journal with acknowledged messages.

    A kill leaves it on disk, the next start applies and deletes it, and a clean stop leaves none.
    """
    with spawn_nsqd(tmp_path) as server:
        for topic in TOPICS:
            server.post(f"/topic/create?topic={topic}")
            server.post(f"/channel/create?topic={topic}&channel=c")
        publish_everywhere(server, range(ROUNDS))
        (journal,) = journals(server)
        held = journal.read_bytes()
        assert sum(b"%s %d" % (t.encode(), ROUNDS - 1) in held for t in TOPICS) >= len(TOPICS) // 2

        server.restart()
        assert journals(server) == []
        publish_everywhere(server, range(ROUNDS, 2 * ROUNDS))
        server.restart(gracefully=True)
        assert journals(server) == []

        for topic in TOPICS:
            expected = [b"%s %d" % (topic.encode(), number) for number in range(2 * ROUNDS)]
            assert sorted(drain(server, topic, "c")) == sorted(expected)
