"""client.publish: the publish commands, errors about wrong arguments, and callbacks."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.client.publish import (
    Callback,
    Outcome,
    Receipt,
    multi_publish_command,
    publish_command,
    publish_deferred_command,
)
from sparq.protocol import commands

BODIES = st.binary(min_size=1, max_size=50)
TOPICS = st.text("aZ09._-", min_size=1, max_size=64)


@settings(max_examples=30)
@given(TOPICS, st.lists(BODIES, min_size=1), st.integers(0, 3_600_000))
def test_fast_builders_give_the_bytes_of_protocol_commands(
    topic: str, bodies: list[bytes], delay: int
) -> None:
    """The fast command builders give the same bytes as those of ``protocol.commands``."""
    assert commands.pub(topic, bodies[0]) == publish_command(topic, bodies[0])
    assert commands.mpub(topic, bodies) == multi_publish_command(topic, bodies)
    made = publish_deferred_command(topic, bodies[0], delay / 1000)
    assert commands.dpub(topic, delay, bodies[0]) == made


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_bytes_bytearray_or_memoryview(kind: Callable[[bytes], Any]) -> None:
    """A body may be bytes, bytearray or memoryview; its content at the call is used."""
    assert b"PUB t\n\x00\x00\x00\x01x" == publish_command("t", kind(b"x"))
    assert commands.mpub("t", [b"x", b"yz"]) == multi_publish_command("t", [kind(b"x"), b"yz"])


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: publish_command("t", "text"), TypeError, "not str: encode it"),
        (lambda: publish_command("t", 5), TypeError, "not int"),
        (lambda: publish_command("t", None), TypeError, "not NoneType"),
        (lambda: publish_command(b"t", b"x"), TypeError, "topic must be a str, not bytes"),
        (lambda: publish_command("t", bytearray()), ValueError, "must not be empty"),
        (lambda: publish_command("a b", b"x"), ValueError, 'invalid topic name "a b"'),
        (lambda: publish_command("t" * 65, b"x"), ValueError, "invalid topic name"),
        (lambda: multi_publish_command("t", b"abc"), TypeError, "a sequence of bytes, not bytes"),
        (lambda: multi_publish_command("t", ["a"]), TypeError, "not str"),
        (lambda: multi_publish_command("t", []), ValueError, "bodies is empty"),
        (lambda: multi_publish_command("t", iter([b"x"])), TypeError, "not list_iterator"),
        (lambda: publish_command("a b", b"x"), ValueError, "1-64 characters"),
        (lambda: publish_deferred_command("t", b"x", -0.1), ValueError, "0 to .* not -0.1"),
        (lambda: publish_deferred_command("t", b"x", float("inf")), ValueError, "not inf"),
        (lambda: publish_deferred_command("t", b"x", float("nan")), ValueError, "not nan"),
    ],
)
def test_errors_for_wrong_arguments_state_what_is_required(
    make: Callable[[], bytes], kind: type[Exception], text: str
) -> None:
    """A wrong topic, body or delay raises an error that states what is required."""
    with pytest.raises(kind, match=text):
        make()


def test_a_body_above_the_limit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above BODY_BYTES_MAX raises ValueError, also as the sum of an MPUB."""
    monkeypatch.setattr("sparq.client.publish.BODY_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="101 bytes do not fit into one command: at most 100"):
        publish_command("t", bytes(101))
    with pytest.raises(ValueError, match="do not fit into one command"):
        multi_publish_command("t", [bytes(60), bytes(60)])
    assert struct.pack(">i", 100) in publish_command("t", bytes(100))


async def test_a_callbacks_exception_goes_to_the_loops_exception_handler() -> None:
    """A callback's exception goes to the loop's exception handler, not to the reader of answers."""
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))

    def fail(outcome: Outcome) -> None:
        raise RuntimeError(str(outcome))

    callback = Callback(fail, loop)
    callback.set_result(Receipt("nsqd"))
    assert callback.done()
    assert reported[0]["message"].startswith("publish_nowait: ")
    assert RuntimeError is type(reported[0]["exception"])
