"""Helpers for tests of dead letters."""

from __future__ import annotations

from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from tests.broker.harness import BrokerHarness, Client, Message

MAX_ATTEMPTS = 3


def requeue(client: Client, messages: list[Message], delay_ms: int = 0) -> None:
    """REQ these messages, as a consumer that cannot process them does."""
    for message in messages:
        client.say(commands.req(message.id, delay_ms))


def exhaust(client: Client) -> None:
    """Requeue everything the client receives, until all `MAX_ATTEMPTS` attempts are used up."""
    for _ in range(MAX_ATTEMPTS):
        requeue(client, client.messages())


def histories(harness: BrokerHarness, topic: str = "t.dead") -> list[tuple[dict[str, str], bytes]]:
    """Envelope fields and body of every dead letter, as read with `dead_letter_envelopes`."""
    reader = harness.consumer(topic, "histories", dead_letter_envelopes=True)
    harness.broker.seek(topic, "histories", "earliest", harness.clock.now())
    reader.say(commands.rdy(2_500))
    found = [unseal(message.body) for message in reader.messages()]
    reader.close()
    harness.broker.delete_channel(topic, "histories", harness.clock.now())
    harness.turn()
    return [(dict(fields), body) for fields, body in found]
