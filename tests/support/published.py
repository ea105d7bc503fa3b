"""Messages for tests of Spark's source and of the pipeline."""

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol import commands
from tests.support.servers import NsqdServer


def publish(nsqd: NsqdServer, topic: str, *bodies: bytes, channel: str = "any") -> None:
    """Publishes one message after the other, each acknowledged; the topic has a channel before."""
    publish_batches(nsqd, topic, list(bodies), size=1, channel=channel)


def publish_batches(
    nsqd: NsqdServer, topic: str, bodies: list[bytes], size: int = 200, channel: str = "any"
) -> None:
    """Publishes MPUBs of at most `size` messages, each acknowledged, as `publish` does."""
    nsqd.post(f"/topic/create?topic={topic}")
    if channel:
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    connection = BlockingConnection(nsqd.tcp)
    for at in range(0, len(bodies), size):
        assert connection.ask(commands.mpub(topic, bodies[at : at + size])) == b"OK"
    connection.close()


def numbered(first: int, end: int) -> list[bytes]:
    """The bodies `first` to `end`, without the last."""
    return [b"%d" % number for number in range(first, end)]
