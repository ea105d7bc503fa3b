"""The program `nsq_to_nsq`: copies messages to other nsqds, optionally filtered.

It has the flags of NSQ's `nsq_to_nsq`, and differs from it where that loses messages:

1. Messages that arrive together are published together, to one nsqd. A message is finished when
   that nsqd has acknowledged the publish. A failure requeues it, and the consumer backs off. No
   message is dropped for having failed often, unless `--consumer-opt=max_attempts,N` asks for it.
2. A message that certainly was not stored (its nsqd is gone, or its disk is full) is offered to the
   other nsqds, and then to all of them again for two seconds. A message whose publish was not
   answered may be stored: it is requeued, and may be copied twice.
3. A message that a filter rejects is finished; so is one that is not a JSON object, with an error
   in the log. With `--require-json-value`, a message without the field is a failure and requeued.
4. A value equals a string with the same characters or a number with the same value; no other kind
   of value equals anything. White-listed fields are re-encoded, with sorted keys and without
   spaces; a number without a fraction is written as an integer, and an integer keeps every digit.
   Only strict JSON counts as JSON here (no NaN, no byte order mark, no nesting too deep to parse).
   Bytes that are not UTF-8 count as U+FFFD.
5. `--mode=round-robin` uses the hosts in turn, publish by publish. `hostpool` does so, too, but
   skips a host that failed for 30 s, and for twice as long after each further failure, up to
   15 min. `epsilon-greedy` prefers hosts that answer quickly.
6. If an nsqd named with `--nsqd-tcp-address` cannot be reached at the start, the tool exits
   with status 1, after `--wait-for-nsqd`.

SIGINT, SIGTERM and SIGHUP: publishes under way are completed, then exit status 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sparq.client.arguments import parse_addresses
from sparq.client.connection import STORAGE_REFUSALS
from sparq.client.consumer import Consumer
from sparq.client.errors import PublishError, SparqClientError
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.client.subscription import Batch
from sparq.program.logging import LEVELS, set_up
from sparq.protocol.errors import RemoteError
from sparq.tools import common
from sparq.tools.commands import NsqToNsqOptions as Options
from sparq.tools.commands import UsageError
from sparq.tools.common import TOGETHER_COUNT, publish_runs
from sparq.tools.relay import BatchRefusedError, HostPool, NotAcceptedError, NotSentError, Relay

PROGRAM: Final = "nsq_to_nsq"
AT_A_TIME_MAX: Final = 1000
"""Publishes under way at the same time; more would not be faster."""

OF_ONE_OF_THEM: Final = frozenset({"E_BAD_MESSAGE", "E_BAD_BODY"})
"""Refusals of a batch whose messages may pass one by one: one, or the whole batch, is too large."""

logger = logging.getLogger(__name__)

INTEGER_MAX: Final = 1 << 63
"""Larger numbers with an exponent keep that form: 1e300 is not written with 300 zeros."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class NotAnObjectError(Exception):
    """A body is not a JSON object; the text says why."""


class FieldMissingError(Exception):
    """A value is required, but the message does not have the field."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages pass, and which of their fields.

    Attributes:
        required: a field that a message must have; "": none.
        value: the value that this field must have; "": any.
        kept: the only fields that pass; (): all, and the body stays as it is.
    """

    required: str = ""
    value: str = ""
    kept: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Whether bodies must be parsed at all."""
        return bool(self.required or self.kept)

    def passed(self, body: bytes) -> bytes | None:
        """Return the body to publish; None: the message does not pass.

        Raises:
            NotAnObjectError: the body is not a JSON object.
            FieldMissingError: the required field is missing, and a value is required.
        """
        if not self:
            return body
        fields = parsed(body)
        if self.required and self.required not in fields:
            if self.value:
                raise FieldMissingError(f"no field {self.required!r}")
            return None
        if self.value and not equals(fields[self.required], self.value):
            return None
        if not self.kept:
            return body
        kept = {name: fields[name] for name in self.kept if name in fields}
        try:
            return _ENCODER.encode(kept).encode()
        except RecursionError:
            raise NotAnObjectError("it is nested too deeply") from None
        except UnicodeEncodeError:  # a lone surrogate, which JSON can express and UTF-8 cannot
            return _ASCII_ENCODER.encode(kept).encode()


def parsed(body: bytes) -> dict[str, Any]:
    """Return a body's fields. Raises NotAnObjectError: it is not a JSON object."""
    try:
        found = _DECODER.decode(body.decode("utf-8", "replace"))
    except RecursionError:
        raise NotAnObjectError("it is nested too deeply") from None
    except ValueError as error:
        raise NotAnObjectError(str(error)) from None
    if not isinstance(found, dict):
        raise NotAnObjectError("it is JSON, but not an object")
    return found


def equals(value: object, text: str) -> bool:
    """Whether a field's value equals the text."""
    if isinstance(value, str):
        return value == text
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return _NUMBER.fullmatch(text) is not None and value == _number(text)
    except ValueError:
        return False  # too large: no body has such a number


def _number(text: str) -> float:
    """Parse a number; one without a fraction becomes an integer.

    Raises:
        ValueError: it is too large.
    """
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number too large: {text:.40}")
    return int(value) if value.is_integer() and abs(value) < INTEGER_MAX else value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_constant=_no_constant)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_ASCII_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def check(options: Options) -> None:
    """Check the options.

    Raises:
        UsageError: one is not valid; the text names its flag.
    """
    if not options.topic or not options.channel:
        raise UsageError("--topic and --channel are required")
    if not options.destination_nsqd_tcp_addresses:
        raise UsageError("--destination-nsqd-tcp-address required")
    # A message would come back and be copied again, endlessly.
    same_nsqd = set(options.nsqd_tcp_addresses) & set(options.destination_nsqd_tcp_addresses)
    if same_nsqd and (options.destination_topic or options.topic[0]) in options.topic:
        raise UsageError("--destination-nsqd-tcp-address: a topic would be copied to itself")
    if options.require_json_value and not options.require_json_field:
        raise UsageError("--require-json-value is valid with --require-json-field only")


async def publish(producer: Producer, address: str, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish messages together to one nsqd and wait for the OK.

    Raises:
        NotSentError: they are not stored there.
        NotAcceptedError: they were refused, or it is unknown whether they are stored.
        BatchRefusedError: they were refused because of one of them.
    """
    # Wait for a connection that is being made, but not for one that has failed.
    if (why := producer.errors.get(address)) is not None:
        raise NotSentError(f"nsqd {address}: {why}")
    try:
        if len(bodies) == 1:
            await producer.publish(topic, bodies[0])
        else:
            await producer.multi_publish(topic, bodies)
    except (RemoteError, SparqClientError) as error:
        code = error.code if isinstance(error, RemoteError) else ""
        if len(bodies) > 1 and code in OF_ONE_OF_THEM:
            raise BatchRefusedError(str(error)) from error
        if isinstance(error, PublishError):
            is_stored_nowhere = not error.unanswered
        else:
            is_stored_nowhere = code in STORAGE_REFUSALS
        kind = NotSentError if is_stored_nowhere else NotAcceptedError
        raise kind(f"nsqd {address}: {error.__cause__ or error}") from error


def filtered(wanted: MessageFilter, batch: Batch) -> tuple[Batch, list[bytes]]:
    """Return the messages that pass the filter and their bodies; answer the others."""
    passed: list[Message] = []
    bodies: list[bytes] = []
    for message in batch:
        try:
            body = wanted.passed(message.body)
        except NotAnObjectError as error:
            logger.error("message %s is dropped: not a JSON object: %s", message.id, error)
            body = None
        except FieldMissingError as error:
            logger.warning("%s; message %s, attempt %d", error, message.id, message.attempts)
            message.requeue()
            continue
        if body is None:
            message.finish()
        else:
            passed.append(message)
            bodies.append(body)
    return Batch(passed), bodies


async def serve(options: Options, stop: asyncio.Event) -> int:
    """Run the tool until the event is set; return its exit status.

    Raises:
        UsageError: an option is not valid.
    """
    check(options)
    set_up(f"[{PROGRAM}] ", LEVELS["info"])
    # The client sends each publish once: the relay chooses the nsqd for a retry.
    config = common.client_config(PROGRAM, options.producer_opt, publish_attempts=1)
    addresses = parse_addresses(options.destination_nsqd_tcp_addresses)
    producers = {address: Producer(address, config=config) for address in addresses}
    hosts = HostPool(options.mode, producers, random.Random())  # noqa: S311 - guards nothing
    relay = Relay(hosts, options.status_every, AT_A_TIME_MAX)
    wanted = MessageFilter(
        options.require_json_field, options.require_json_value, options.whitelist_json_field
    )

    async def copy(topic: str, batch: Batch, bodies: Sequence[bytes]) -> None:
        """Publish messages together; if they are refused because of one of them, one by one."""

        async def send(address: str) -> None:
            await publish(producers[address], address, topic, bodies)

        try:
            await relay.forward(batch, send)
        except BatchRefusedError:
            for message, body in zip(batch, bodies, strict=True):
                relay.spawn(copy(topic, Batch([message]), [body]))

    async def follow(consumer: Consumer) -> None:
        """Copy the consumer's messages until it is stopped."""
        topic = options.destination_topic or consumer.topic
        # Divide max_in_flight, so that every destination gets a batch.
        size = max(1, min(TOGETHER_COUNT, consumer.max_in_flight // len(producers)))
        async for batch in consumer.batches(size, wait=0):
            passed, bodies = filtered(wanted, batch) if wanted else (batch, batch.bodies)
            at = 0
            for part in publish_runs(bodies):
                whole = len(part) == len(passed)
                messages = passed if whole else Batch(passed[at : at + len(part)])
                relay.spawn(copy(topic, messages, part))
                at += len(part)

    consumers = common.consumers_of(PROGRAM, options, options.topic, options.channel)
    async with contextlib.AsyncExitStack() as stack:
        for producer in producers.values():
            await stack.enter_async_context(producer)
        await relay.serve(consumers, stop, options.wait_for_nsqd_ns, follow)
    return 0
