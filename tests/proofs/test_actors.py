"""The proofs' consumer distinguishes late deliveries from messages that returned."""

import random

from proofs.actors import Consumer
from proofs.checker import check
from proofs.history import Command, History, Outcome

from proofs import bodies
from tests.support.v2_client import Message

CHANNEL = "live"
NO_REQUEUE = 0.5


class NeverRequeue(random.Random):
    """A generator with which no consumer requeues anything."""

    def random(self) -> float:
        return NO_REQUEUE


def consumers(*, delays: bool) -> tuple[History, Consumer, Consumer, bytes]:
    """Return two consumers of one channel, and the body of the one acknowledged message."""
    history = History(9, {0: [Command(0, 1, Outcome.OK)]}, delays=delays)
    first, second = (Consumer("a:1", "t", CHANNEL, history, name) for name in ("one", "two"))
    first.chance = second.chance = NeverRequeue()
    return history, first, second, bodies.write(bodies.Author(9, 0, 0), random.Random(1))


def deliver(consumer: Consumer, attempts: int, body: bytes, *, answered: bool) -> None:
    """Deliver a message; with `answered`, the command sent after its FIN is answered, too."""
    consumer.delivered(Message(0, attempts, b"0" * 16, body))
    consumer.marked.append(consumer.unmarked)
    consumer.unmarked = []
    if answered:
        consumer.acknowledged()
    else:
        consumer.broken()


def returned(*, delays: bool, late_attempts: int, answered: bool) -> int:
    """Finish attempt 2 with one consumer, then deliver to the other; return the returned count."""
    history, first, second, body = consumers(delays=delays)
    deliver(first, 2, body, answered=True)
    deliver(second, late_attempts, body, answered=answered)
    return check(history)[CHANNEL].returned


def test_a_delivery_sent_before_a_fin_has_not_returned() -> None:
    """nsqd lost the connection, so another consumer got the message and finished it."""
    assert 0 == returned(delays=True, late_attempts=1, answered=False)
    assert 1 == returned(delays=False, late_attempts=1, answered=False)


def test_a_delivery_sent_after_a_fin_has_returned() -> None:
    """A later attempt has returned, and so has any whose FIN nsqd still answers."""
    assert 1 == returned(delays=True, late_attempts=3, answered=False)
    assert 1 == returned(delays=True, late_attempts=1, answered=True)
    assert 1 == returned(delays=True, late_attempts=2, answered=True)
