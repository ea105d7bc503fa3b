"""A session: the order of its replies and messages, its window, and what IDENTIFY sets once."""

from __future__ import annotations

from sparq.protocol import commands
from tests.broker.house import House


def test_replies_keep_the_order_of_commands(house: House) -> None:
    """An error that is known at once still waits behind the OK of an earlier publish."""
    consumer = house.consumer("t", "c")
    consumer.answers()
    consumer.say(commands.pub("t", b"x") + commands.fin(b"0" * 16), turn=False)
    house.end_turn()
    assert house.broker.take_output(consumer.session) == []

    house.turn()

    assert consumer.answers() == [
        b"OK",
        b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight",
    ]


def test_no_message_overtakes_the_ok_of_its_sub(house: House) -> None:
    """Clients read the answer to SUB first, whatever else is on its way."""
    house.publish("t", b"x")
    client = house.connect()
    client.say(commands.sub("t", "c") + commands.rdy(1), turn=False)
    house.end_turn()
    assert house.broker.take_output(client.session) == []

    house.turn()

    assert [kind for kind, _ in client.heard()] == [0, 2]
