"""nsq_to_file killed at random moments: no finished message is lost, and no lines are mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparq.tools import nsq_to_file
from tests.support.servers import NsqdServer
from tests.tools.forwarding import new_topic
from tests.tools.killing import SHORT_TIMEOUTS, Killer, exit_status_of, start
from tests.tools.recording import files, is_gzip, lines

KILLS = 3

PLAIN = ("--filename-format=<TOPIC>",)
GZIP = ("--gzip", "--filename-format=<TOPIC><REV>", "--rotate-size=50000", "--work-dir={work}")


@pytest.mark.parametrize("kind", [PLAIN, GZIP], ids=["plain", "gzip"])
async def test_kill_9_loses_no_finished_message(
    nsqd: NsqdServer, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """After several kills, all messages are finished and each is complete in the files.

    Each kill may leave one truncated line.
    """
    topic, out, work = new_topic(), tmp_path / "out", tmp_path / "work"
    flags = [f"--nsqd-tcp-address={nsqd.tcp}", f"--topic={topic}", "--sync-interval=100ms"]
    flags += [f"--output-dir={out}", *SHORT_TIMEOUTS, *(flag.format(work=work) for flag in kind)]
    async with Killer(nsqd, topic, "nsq_to_file") as killer:
        for _ in range(KILLS):
            await killer.kill(start(nsq_to_file, *flags))
        process = start(nsq_to_file, *flags)
        await killer.until_all_is_finished()
        process.terminate()
        assert 0 == exit_status_of(process)

    bodies, found = set(killer.bodies), set(lines(out))
    assert set() == bodies - found
    torn = found - bodies
    assert all(any(body.startswith(line) for body in bodies) for line in torn)
    assert len(torn) <= KILLS
    assert {} == files(work)
    assert all(is_gzip(path) for path in out.glob("*.gz"))
