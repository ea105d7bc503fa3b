"""The benchmark's clients of other brokers acknowledge each message once.

This holds however the bytes are split.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable

import pytest
from bench.load import FRAME_OVERHEAD
from bench.peers import rabbitmq
from bench.peers.beanstalkd import BeanstalkAcknowledger
from bench.peers.beanstalkd import answers as beanstalk_answers
from bench.peers.nats import NatsAcknowledger
from bench.peers.nats import answers as nats_answers
from bench.peers.nsq import NsqAcknowledger, Oks, http_answers
from bench.peers.peer import Acknowledger, RefusedError
from bench.peers.rabbitmq import AmqpAcknowledger, Confirms, frame, method, short
from bench.peers.redis import Answers, RedisAcknowledger, command
from hypothesis import given
from hypothesis import strategies as st

SIZE = 12
COUNT = 5
BODIES = [struct.pack(">q", 1000 + number) + b"\r\n$*" for number in range(COUNT)]


def nsq() -> tuple[Acknowledger, bytes, bytes]:
    """NSQ message frames, and FINs of their ids."""
    ids = [b"%016x" % number for number in range(COUNT)]
    parts = [
        struct.pack(">iiqH", SIZE + FRAME_OVERHEAD - 4, 2, 0, 1) + name + body
        for name, body in zip(ids, BODIES, strict=True)
    ]
    return NsqAcknowledger(SIZE), b"".join(parts), b"".join(b"FIN %s\n" % name for name in ids)


def nats() -> tuple[Acknowledger, bytes, bytes]:
    """NATS deliveries with reply subjects, and the replies."""
    parts = [b"MSG to 1 ack.%d %d\r\n%s\r\n" % (10**n, SIZE, body) for n, body in enumerate(BODIES)]
    replies = b"".join(b"PUB ack.%d 0\r\n\r\n" % 10**number for number in range(COUNT))
    return NatsAcknowledger(SIZE), b"INFO {}\r\n" + b"".join(parts), replies


def beanstalkd() -> tuple[Acknowledger, bytes, bytes]:
    """beanstalkd's reserved jobs mixed with answers to deletes."""
    parts = [
        b"RESERVED %d %d\r\n%s\r\nDELETED\r\n" % (10**n, SIZE, body)
        for n, body in enumerate(BODIES)
    ]
    replies = b"".join(b"delete %d\r\nreserve\r\n" % 10**number for number in range(COUNT))
    return BeanstalkAcknowledger(SIZE), b"".join(parts), replies


def amqp() -> tuple[Acknowledger, bytes, bytes]:
    """AMQP's basic.deliver with header and body."""
    tags = [struct.pack(">Q", 1 + number) for number in range(COUNT)]
    parts = []
    for tag, body in zip(tags, BODIES, strict=True):
        arguments = short("c") + tag + b"\0" + short("bench") + short("")
        header = struct.pack(">HHQHB", 60, 0, SIZE, 0x1000, 2)
        parts.append(method(1, (60, 60), arguments))
        parts.append(frame(rabbitmq.HEADER, 1, header) + frame(rabbitmq.BODY, 1, body))
    replies = b"".join(method(1, rabbitmq.ACK, tag + b"\0") for tag in tags)
    return AmqpAcknowledger("bench", SIZE), b"".join(parts), replies


@pytest.mark.parametrize("make", [nsq, nats, beanstalkd, amqp])
@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_each_delivery_is_acknowledged_once(
    make: Callable[[], tuple[Acknowledger, bytes, bytes]], cuts: list[int]
) -> None:
    """However the bytes are split, every message is counted, timestamped and acknowledged once."""
    acknowledger, data, replies = make()
    acknowledger.is_stamped = True

    taken = [acknowledger.take(piece) for piece in pieces(data, cuts)]

    assert COUNT == sum(each.messages for each in taken)
    assert replies == b"".join(each.reply for each in taken)
    assert [1000 + n for n in range(COUNT)] == [stamp for each in taken for stamp in each.stamps]


@given(cuts=st.lists(st.integers(0, 600), max_size=8))
def test_each_redis_read_is_acknowledged_and_repeated(cuts: list[int]) -> None:
    """Each id is acknowledged once in its read's XACK, and each complete read starts another."""
    parts = []
    for entries in ((0, 1, 2), (3, 4)):
        parts.append(b"*1\r\n*2\r\n$5\r\nbench\r\n*%d\r\n" % len(entries))
        for number in entries:
            fields = command(b"b", BODIES[number])
            parts.append(b"*2\r\n$15\r\n170000000000%d-0\r\n" % number + fields)
        parts.append(b":%d\r\n" % len(entries))
    acknowledger = RedisAcknowledger(b"bench", b"ch0", SIZE, b"READ")
    acknowledger.is_stamped = True

    taken = [acknowledger.take(piece) for piece in pieces(b"".join(parts), cuts)]
    replies = b"".join(each.reply for each in taken)

    assert COUNT == sum(each.messages for each in taken)
    assert [1000 + n for n in range(COUNT)] == [stamp for each in taken for stamp in each.stamps]
    assert [b"170000000000%d-0" % number for number in range(COUNT)] == re.findall(
        rb"\d{13}-0", replies
    )
    assert 2 == replies.count(b"READ")
    for each in taken:
        if each.reply:
            words = int(each.reply[1 : each.reply.index(b"\r")])
            assert words == 3 + each.messages


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Split the bytes at these positions."""
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def test_confirms_count_each_publish_once() -> None:
    """Confirms count each publish once, whether single or cumulative (all up to a tag).

    A cumulative confirm does not count tags again that were confirmed before.
    """
    acks = [(2, False), (3, False), (4, True), (6, False), (5, False), (9, True)]
    data = b"".join(
        method(1, rabbitmq.ACK, struct.pack(">QB", tag, has_all)) for tag, has_all in acks
    )
    confirms = Confirms()

    assert [1, 1, 2, 1, 1, 3] == [confirms(data[at : at + 21]) for at in range(0, len(data), 21)]


def test_an_answer_in_two_parts_is_counted_once() -> None:
    """Each request's answer is counted once, even if an OK arrives in two parts."""
    oks = Oks()
    two = b"\0\0\0\x06\0\0\0\0OK" * 2

    assert [1, 1] == [oks(two[:14]), oks(two[14:])]
    assert 2 == http_answers(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK" * 2)
    assert 2 == Answers(b"$")(b"$15\r\n1700000000000-0\r\n" * 2)
    assert 1 == Answers(b"*")(b"+OK\r\n+QUEUED\r\n*1\r\n$15\r\n1700000000000-0\r\n")
    assert 1 == nats_answers(b'MSG answers.1 1 30\r\n{"stream":"bench", "seq":1}\r\n')
    assert 2 == beanstalk_answers(b"INSERTED 1\r\nINSERTED 2\r\n")


@pytest.mark.parametrize(
    ("count", "refusal"),
    [
        (Oks(), b"\0\0\0\x0e\0\0\0\x01E_BAD_TOPIC"),
        (http_answers, b"HTTP/1.1 413 Payload Too Large\r\n\r\n"),
        (Answers(b"$"), b"-ERR unknown command\r\n"),
        (nats_answers, b'MSG answers.1 1 30\r\n{"error":{"code":503}}\r\n'),
        (beanstalk_answers, b"OUT_OF_MEMORY\r\n"),
        (Confirms(), method(1, (20, 40), bytes(10))),
    ],
)
def test_an_error_response_raises_refused_error(
    count: Callable[[bytes], int], refusal: bytes
) -> None:
    """An error response raises RefusedError and is never counted as an answer."""
    with pytest.raises(RefusedError):
        count(refusal)
