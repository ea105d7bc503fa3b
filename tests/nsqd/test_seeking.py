"""`/channel/seek`: the positions that it accepts, and its answer."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.daemon.http import HttpError
from sparq.nsqd.parameters import FORMS, target_of
from sparq.options.units import HOUR
from sparq.protocol.commands import sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.waiting import until

NOW = 1_800_000_000_000_000_000
DAY_BEGINS = 1_735_776_000_000_000_000
"""2025-01-02 in UTC."""


async def seek(nsqd: Daemon, to: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await nsqd.post(f"/channel/seek?topic=t&channel=c&to={to}"))
    return answer


def moment(text: str) -> int:
    target = target_of(text, 0)
    assert isinstance(target, tuple)
    return target[1]


async def test_a_channel_is_moved(nsqd: Daemon) -> None:
    """After a seek to an end, an index, a time or a duration back, later messages arrive."""
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await nsqd.post("/mpub?topic=t", b"a\nb")
    between = time.time_ns()
    await nsqd.post("/pub?topic=t", b"c")
    assert await consumer.messages(3) == [b"a", b"b", b"c"]

    first = int((await nsqd.topic("t"))["first_index"])
    for to, bodies in (
        ("earliest", [b"a", b"b", b"c"]),
        (str(first + 1), [b"b", b"c"]),
        (f"time:{between}", [b"c"]),
        ("time:2001-01-01T00:00:00Z", [b"a", b"b", b"c"]),
        ("2001-01-01", [b"a", b"b", b"c"]),
        ("-1h", [b"a", b"b", b"c"]),
    ):
        # nsqd may not have processed the FINs of the previous round yet.
        await until(lambda: finished(nsqd))
        landed = await seek(nsqd, to)
        assert (landed["again"], landed["waiting"]) == (len(bodies), len(bodies))
        assert int(landed["index"]) == first + 3 - len(bodies)
        assert (landed["oldest_index"], landed["older_are_gone"]) == (str(first), False)
        assert (await nsqd.channel("t", "c"))["depth"] == len(bodies)
        assert await consumer.messages(len(bodies)) == bodies
    await seek(nsqd, "earliest")
    landed = await seek(nsqd, "latest")
    assert (landed["again"], landed["waiting"], landed["time"]) == (0, 0, None)
    assert (await nsqd.channel("t", "c"))["depth"] == 0
    await consumer.close()


async def finished(nsqd: Daemon) -> bool:
    channel = await nsqd.channel("t", "c")
    return channel["depth"] == channel["in_flight_count"] == 0


async def test_a_seek_before_the_log_reports_older_are_gone(tmp_path: Path) -> None:
    """A seek before the start of the log has `older_are_gone`, and the oldest index and time."""
    nsqd = await start(tmp_path, max_bytes_per_file=4096, retention_bytes=8192)
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    began = time.time()
    for _ in range(10):
        await nsqd.post("/pub?topic=t", b"x" * 3000)
    await consumer.messages(10)

    async def some_are_gone() -> bool:
        return bool(int((await nsqd.topic("t"))["log_messages"]) < 10)

    await until(some_are_gone)
    landed = await seek(nsqd, "-24h")
    kept = int((await nsqd.topic("t"))["log_messages"])
    assert landed["older_are_gone"] is True
    assert (landed["again"], landed["waiting"]) == (kept, kept)
    assert landed["index"] == landed["oldest_index"]
    assert landed["time"] == landed["oldest_time"]
    oldest = moment(landed["oldest_time"]) / 1e9
    assert began - 1 <= oldest <= time.time() + 1
    await consumer.close()
    await stop(nsqd)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("930242357656354", 930242357656354),
        ("time:-5", ("time", -5)),
        ("time:1735776000000000000", ("time", DAY_BEGINS)),
        ("2025-01-02", ("time", DAY_BEGINS)),
        ("time:2025-01-02", ("time", DAY_BEGINS)),
        ("2025-01-02T00:00:00", ("time", DAY_BEGINS)),
        ("2025-01-02T00:00Z", ("time", DAY_BEGINS)),
        ("2025-01-02 02:00:00+02:00", ("time", DAY_BEGINS)),
        ("2025-01-02T02:00:00 02:00", ("time", DAY_BEGINS)),
        ("2025-01-01T19:00:00-05:00", ("time", DAY_BEGINS)),
        ("2025-01-02T00:00:00.25Z", ("time", DAY_BEGINS + 250_000_000)),
        ("-1h", ("time", NOW - HOUR)),
        ("-1.5h", ("time", NOW - 3 * HOUR // 2)),
        ("time:-24h", ("time", NOW - 24 * HOUR)),
        ("0001-01-01T00:00:00Z", ("time", -62_135_596_800_000_000_000)),
    ],
)
def test_valid_positions_are_parsed(text: str, target: object) -> None:
    """Ends, indexes, dates, times with or without a zone (default UTC), durations before now."""
    assert target_of(text, NOW) == target


INVALID_POSITIONS = [
    "",
    "time",
    "time:",
    "-1",
    "1h",
    str(1 << 54),
    "9" * 40,
    "first",
    "\u0661",
    "-1x",
]
INVALID_TIMES = ["2025-13-01", "2025-02-30T00:00:00Z", "2025-01-01T25:00", "time:" + "9" * 30]


@pytest.mark.parametrize("text", [*INVALID_POSITIONS, *INVALID_TIMES, None])
def test_invalid_positions_get_the_accepted_forms(text: str | None) -> None:
    """The 400 answer lists the accepted forms, also if `to` is missing."""
    with pytest.raises(HttpError) as refused:
        target_of(text, NOW)

    code = "MISSING_ARG_TO" if text is None else "INVALID_ARG_TO"
    assert (refused.value.status, refused.value.code) == (400, f"{code}: use {FORMS}")


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """Any text is either read or refused with INVALID_ARG_TO; no other exception occurs."""
    try:
        target_of(text, NOW)
        target_of(f"time:{text}", NOW)
    except HttpError as error:
        assert error.code.startswith("INVALID_ARG_TO: ")
