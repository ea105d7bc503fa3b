"""Creates data paths of Go's nsqd for tests of their import, and checks the result."""

import json
from collections import Counter
from pathlib import Path

import numpy as np

from sparq.protocol.commands import cls, identify, rdy, sub
from tests.support.go_data import GoQueue, write_metadata
from tests.support.v2_client import FRAME_RESPONSE, OK, V2Client, fin_each

Message = tuple[bytes, int]
"""(body, attempts at its next delivery)"""


def bodies(prefix: str, count: int) -> list[bytes]:
    """Numbered bodies of varying sizes."""
    return [b"%s %d " % (prefix.encode(), n) + b"." * (n * 7 % 90) for n in range(count)]


class GoPath:
    """A data path with two channels, a topic queue that both must get, and a paused second topic.

    Attributes:
        expected: (topic, channel) -> the messages a consumer must get, with their counts.
        damaged: the body that is lost because its length is damaged.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        share = count // 3
        archive, metrics, own = (bodies(w, share) for w in ("archive", "metrics", "own"))
        limit = max(20_000, share * 20)
        self.archive = GoQueue(folder, "clicks:archive", limit).put(*archive).take(share // 50)
        again = bodies("again", 30)
        self.archive.put(*again, attempts=4).close()
        self.metrics = GoQueue(folder, "clicks:metrics", limit).put(*metrics).close()
        tail = bodies("tail", share // 20)
        self.metrics.put(*tail)
        own_queue = GoQueue(folder, "clicks", limit).put(*own).close()
        position = share // 2
        self.damaged = own[position]
        own_queue.damage_length(position)
        late = bodies("late", 20)
        GoQueue(folder, "late.topic").put(*late).close()
        write_metadata(
            folder,
            {"clicks": {"archive": False, "metrics": True}, "late.topic": {"c": False}},
            paused="late.topic",
        )
        shared = [(body, 1) for body in own if body != self.damaged]
        self.expected: dict[tuple[str, str], Counter[Message]] = {
            ("clicks", "archive"): Counter(
                [(body, 1) for body in archive[share // 50 :]]
                + [(body, 5) for body in again]
                + shared
            ),
            ("clicks", "metrics"): Counter([(body, 1) for body in metrics + tail] + shared),
        }
        self.late = late

    def depths(self) -> dict[tuple[str, str], int]:
        """The depths that /stats must show for each channel and topic."""
        depths = {key: expected.total() for key, expected in self.expected.items()}
        return depths | {("late.topic", "c"): 0, ("late.topic", ""): 20, ("clicks", ""): 0}


def drain(port: int, topic: str, channel: str, count: int) -> list[tuple[Message, int]]:
    """Consume and finish `count` messages; return ((body, attempts), timestamp) in order."""
    got: list[tuple[Message, int]] = []
    with V2Client(port, seconds=60) as client:
        assert client.ask(identify(json.dumps({"client_id": "drain"}).encode())) == OK
        assert client.ask(sub(topic, channel)) == OK
        client.send(rdy(1000))
        while len(got) < count:
            messages = client.messages_within(60)
            assert messages, f"{len(got)} of {count} messages came"
            got += [((one.body, one.attempts), one.timestamp_ns) for one in messages]
            client.send(fin_each(messages))
        # The answer to CLS confirms that nsqd has processed every FIN before it.
        assert client.ask(cls()) == (FRAME_RESPONSE, b"CLOSE_WAIT")
    return got


def in_order(numbers: list[int]) -> bool:
    """Whether the numbers are strictly ascending."""
    return bool((np.diff(numbers) > 0).all())
