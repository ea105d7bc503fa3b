"""Messages for tests of the source."""

from sparq.client.blocking.connection import BlockingConnection
from sparq.protocol import commands
from tests.support.servers import NsqdServer


def publish(nsqd: NsqdServer, topic: str, *bodies: bytes, channel: str = "any") -> None:
    """Publishes one message after the other, each acknowledged; the topic has a channel before."""
    nsqd.post(f"/topic/create?topic={topic}")
    if channel:
        nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    connection = BlockingConnection(nsqd.tcp)
    for body in bodies:
        assert connection.ask(commands.mpub(topic, [body])) == b"OK"
    connection.close()
