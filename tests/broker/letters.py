"""What tests of dead letters ask a broker."""

from __future__ import annotations

from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from tests.broker.house import Client, House, Message

MOST = 3


def requeue(client: Client, messages: list[Message], delay_ms: int = 0) -> None:
    """Put messages back, as a consumer that cannot process them."""
    for message in messages:
        client.say(commands.req(message.id, delay_ms))


def exhaust(client: Client) -> None:
    """Have all that comes fail as often as it may be delivered."""
    for _ in range(MOST):
        requeue(client, client.messages())


def histories(house: House, topic: str = "t.dead") -> list[tuple[dict[str, str], bytes]]:
    """What a consumer that asks for envelopes is given, of all that are there."""
    reader = house.consumer(topic, "histories", dead_letter_envelopes=True)
    house.broker.seek_channel(topic, "histories", "earliest", house.clock.now())
    reader.say(commands.rdy(2_500))
    found = [unseal(message.body) for message in reader.messages()]
    reader.close()
    house.broker.delete_channel(topic, "histories", house.clock.now())
    house.turn()
    return [(dict(fields), body) for fields, body in found]
