"""nsq_to_nsq and its destination nsqd, killed at random: what was finished has been copied."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sparq.tools import nsq_to_nsq
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.tools.forwarding import new_topic, received
from tests.tools.killing import SHORT_TIMEOUTS, Killer, exit_status_of, start

KILLS = 2


def count_copied(target: NsqdServer, topic: str) -> int:
    """The number of messages in a topic, counted by a new channel `test`."""
    target.post(f"/channel/create?topic={topic}&channel=test")
    return int(target.channel(topic, "test")["depth"])


async def test_kill_9_loses_no_finished_message(nsqd: NsqdServer, tmp_path: Path) -> None:
    """After several kills all messages are finished, and the destination has every one.

    At the last kill the destination is killed first: messages on their way to it are lost then.
    """
    topic = new_topic()
    with spawn_nsqd(tmp_path, name="target") as target:
        flags = [f"--nsqd-tcp-address={nsqd.tcp}", f"--destination-nsqd-tcp-address={target.tcp}"]
        flags += [f"--topic={topic}", *SHORT_TIMEOUTS]
        async with Killer(nsqd, topic, "nsq_to_nsq") as killer:
            for _ in range(KILLS):
                await killer.kill(start(nsq_to_nsq, *flags))
            await killer.kill(start(nsq_to_nsq, *flags), first=target.kill9)
            target.launch()
            process = start(nsq_to_nsq, *flags)
            await asyncio.to_thread(target.wait_ready)
            await killer.until_all_is_finished()
            process.terminate()
            assert 0 == exit_status_of(process)
        copies = await received(target, topic, count_copied(target, topic))

    assert [] == sorted(set(killer.bodies).difference(copies))
    assert set() == set(copies).difference(killer.bodies)
