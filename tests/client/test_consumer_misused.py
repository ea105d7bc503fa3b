"""client.consumer: what is used in a wrong way says so at once."""

import gc
from typing import Any

import pytest

from sparq.client import ClosedError, Consumer


async def test_who_iterates_before_the_start_is_told() -> None:
    """It would wait for ever."""
    consumer = Consumer("t", "c", nsqd_tcp_addresses="127.0.0.1:1")
    for iteration in (aiter(consumer), consumer.batches()):
        with pytest.raises(ClosedError, match="not started: use 'async with consumer'"):
            await anext(iteration)


def test_a_start_outside_of_an_event_loop_begins_nothing() -> None:
    """Nothing is left that was never awaited."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        Consumer("t", "c", nsqd_tcp_addresses="127.0.0.1:1").start()
    gc.collect()


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("bad topic", "c"), {"nsqd_tcp_addresses": "a:1"}, "topic name"),
        (("t", ""), {"nsqd_tcp_addresses": "a:1"}, "channel name"),
        (("t", "c"), {}, "nsqd_tcp_addresses"),
        (("t", "c"), {"nsqd_tcp_addresses": "a"}, "host:port"),
        (("t", "c"), {"lookupd_http_addresses": "a"}, "host:port"),
        (("t", "c"), {"nsqd_tcp_addresses": "a:1", "concurrency": 0}, "concurrency"),
        (("t", "c"), {"nsqd_tcp_addresses": "a:1", "sample_rate": 100}, "sample_rate"),
        (("t", "c"), {"nsqd_tcp_addresses": "a:1", "max_in_flight": -1}, "0 to 2,147,483,647"),
    ],
)
async def test_mistakes_are_told_at_once(arguments: Any, options: Any, text: str) -> None:
    """A wrong name, address or option is told where the consumer is made."""
    with pytest.raises(ValueError, match=text):
        Consumer(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((b"t", "c"), {}, "topic must be a str, not bytes"),
        (("t", 5), {}, "channel must be a str, not int"),
        (("t", "c"), {"nsqd_tcp_addresses": ("a", 4150)}, "^nsqd_tcp_addresses: .* not int"),
        (("t", "c"), {"nsqd_tcp_addresses": b"a:4150"}, "^nsqd_tcp_addresses: .* not bytes"),
        (("t", "c"), {"lookupd_http_addresses": None}, "^lookupd_http_addresses: .* not NoneType"),
        (("t", "c"), {"handler": 5}, "handler takes a function, not int"),
        (("t", "c"), {"on_giving_up": "x"}, "on_giving_up takes a function, not str"),
        (("t", "c"), {"discovery_filter": []}, "discovery_filter takes a function, not list"),
        (("t", "c"), {"concurrency": "3"}, "concurrency takes int, not str"),
        (("t", "c"), {"config": {"max_in_flight": 5}}, r"not dict \(see Config.from_mapping\)"),
    ],
)
async def test_wrong_types_are_told_at_once(arguments: Any, options: Any, text: str) -> None:
    """With the argument's name: what would fail far from here, or silently, does so here."""
    with pytest.raises(TypeError, match=text):
        Consumer(*arguments, **{"nsqd_tcp_addresses": "a:1", **options})
