"""client.log_fields: log records have attributes for topic, channel, nsqd and message."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sparq.client import Consumer, Message, Producer
from sparq.client.log_fields import FIELDS
from tests.client.scripted import consuming
from tests.support.servers import free_port
from tests.support.waiting import until


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the record's fields that are set."""
    return {name: value for name in FIELDS if (value := getattr(record, name))}


def line(caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord | None:
    """Return the first record whose message contains `text`."""
    return next((each for each in caplog.records if text in each.getMessage()), None)


async def test_records_of_callbacks_have_the_consumers_topic_and_channel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Records have topic, channel and nsqd, even from callbacks or a module without the topic."""
    caplog.set_level(logging.INFO, "sparq.client")
    async with consuming() as (nsqd, peer, consumer):
        peer.send(1, b"E_FIN_FAILED FIN 0 failed")
        await until(lambda: line(caplog, "E_FIN_FAILED"))
        added = f"127.0.0.1:{free_port()}"
        consumer.connect_to_nsqd(added)
        await until(lambda: line(caplog, added))
    callback, later = line(caplog, "E_FIN_FAILED"), line(caplog, added)
    assert callback is not None
    assert later is not None

    assert "sparq.client.pool" == later.name
    assert {"topic": "t", "channel": "c", "nsqd": nsqd.address} == fields_of(callback)
    assert {"topic": "t", "channel": "c", "nsqd": added} == fields_of(later)


async def test_records_about_a_message_have_its_id_and_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Records about a failed handler or a message given up have its id and attempts."""

    async def fail(message: Message) -> None:
        raise KeyError(message.id)

    async with consuming(handler=fail) as (nsqd, peer, _):
        peer.deliver(1, attempts=2)
        peer.deliver(2, attempts=6)
        await until(lambda: line(caplog, "giving up"))
    expected = {"topic": "t", "channel": "c", "nsqd": nsqd.address}
    for text, number, attempts in (("handler failed", 1, 2), ("giving up", 2, 6)):
        found = line(caplog, text)
        assert found is not None
        message = {"message_id": f"{number:016x}", "attempts": attempts}
        assert {**expected, **message} == fields_of(found)


def test_repr_of_consumers_and_producers_shows_no_secret() -> None:
    """``repr`` of a consumer or producer shows topic and channel or nsqds, and no secret."""
    consumer = Consumer("clicks", "archive", nsqd_tcp_addresses="a:1", auth_secret="hush")
    producer = Producer(["b:2", "a:1"], auth_secret="hush")

    assert repr(consumer) == "<Consumer of clicks/archive>"
    assert repr(producer) == "<Producer to a:1, b:2>"
    assert repr(Producer(lookupd_http_addresses="c:3")) == "<Producer to no nsqd yet>"
