"""Clients that send many commands: they take several turns, which serve others, too."""

from pathlib import Path

from sparq.nsqd.tcp import COMMANDS_PER_TURN
from sparq.protocol.commands import nop, pub, sub, touch
from tests.nsqd.daemon import Consumer, start, stop


async def test_commands_beyond_a_turns_limit_run_in_later_turns(tmp_path: Path) -> None:
    """Commands left for later turns keep their order, and none is lost."""
    daemon = await start(tmp_path)
    client = await Consumer.identified(daemon, sub("t", "c"))
    count = 3 * COMMANDS_PER_TURN + 7
    parts = [touch(b"%016x" % number) for number in range(count)]
    client.send(nop() * count + b"".join(parts) + pub("t", b"x"))

    for number in range(count):
        kind, text = await client.frame()
        assert (1, b"E_TOUCH_FAILED TOUCH %016x" % number) == (kind, text[:37])
    assert (0, b"OK") == await client.frame()
    assert [b"x"] == await client.messages(1)
    await client.close()
    await stop(daemon)


async def test_other_clients_are_served_between_one_clients_commands(tmp_path: Path) -> None:
    """10 * COMMANDS_PER_TURN commands take 10 turns or more; another client gets its OK first."""
    daemon = await start(tmp_path)
    busy = await Consumer.identified(daemon)
    other = await Consumer.identified(daemon)
    turns = 0
    take_turn = daemon.nsqd.turns.run_turn

    def counted() -> None:
        nonlocal turns
        turns += 1
        take_turn()

    daemon.nsqd.turns.run_turn = counted  # type: ignore[method-assign]  # counts the turns
    busy.send(nop() * (10 * COMMANDS_PER_TURN) + pub("t", b"last"))
    other.send(pub("t", b"first"))

    assert (0, b"OK") == await other.frame()
    assert (0, b"OK") == await busy.frame()
    assert 10 <= turns
    await busy.close()
    await other.close()
    await stop(daemon)
