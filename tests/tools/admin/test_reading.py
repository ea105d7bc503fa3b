"""Messages of several nsqds, merged by time."""

from __future__ import annotations

from typing import Any

from sparq.tools.admin.exporting import merged
from sparq.tools.admin.reading import messages_in


async def test_messages_are_merged_by_time() -> None:
    """Any number of sorted sources is merged; invalid messages are left out."""

    async def source(*stamps: int) -> Any:
        for stamp in stamps:
            yield {"id": str(stamp), "timestamp": str(stamp), "node": "n"}

    found = [one["id"] async for one in merged([source(1, 5, 9), source(), source(2, 3, 10)])]
    assert ["1", "2", "3", "5", "9", "10"] == found
    answer = {"messages": [1, {}, {"id": 5}, {"id": "a"}]}
    assert [{"node": "n:1", "id": "a"}] == messages_in(answer, "n:1")
    assert [] == messages_in(["?"], "n:1")
