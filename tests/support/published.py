"""Messages for tests of Spark's source and of the pipeline."""

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol import commands
from tests.support.servers import NsqdServer


def publish(nsqd: NsqdServer, topic: str, *bodies: bytes, channel: str = "any") -> None:
    """Publish messages one by one, each acknowledged; a channel exists before the first one."""
    publish_batches(nsqd, topic, list(bodies), size=1, channel=channel)


def publish_batches(
    nsqd: NsqdServer, topic: str, bodies: list[bytes], size: int = 200, channel: str = "any"
) -> None:
    """Publish MPUBs of at most `size` messages, each acknowledged, as `publish` does."""
    nsqd.post(f"/topic/create?topic={topic}")
    if channel:
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    connection = BlockingConnection(nsqd.tcp)
    for at in range(0, len(bodies), size):
        assert connection.ask(commands.mpub(topic, bodies[at : at + size])) == b"OK"
    connection.close()


def numbered(first: int, end: int) -> list[bytes]:
    """Return the numbers from `first` up to, but not including, `end` as bodies."""
    return [b"%d" % number for number in range(first, end)]
