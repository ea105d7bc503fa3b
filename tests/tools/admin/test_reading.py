"""Messages of several nsqds, merged by time."""

from __future__ import annotations

from typing import Any

from sparq.tools.admin.messages import by_time, merged, messages_in


async def test_messages_are_merged_by_time() -> None:
    """Any number of sorted sources is merged; invalid messages are left out."""

    async def source(*stamps: int) -> Any:
        for stamp in stamps:
            yield {"id": str(stamp), "timestamp": str(stamp), "node": "n"}

    found = [one["id"] async for one in merged([source(1, 5, 9), source(), source(2, 3, 10)])]
    assert ["1", "2", "3", "5", "9", "10"] == found


class ErrorsOnly:
    """The part of a job that notes errors."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}


def test_what_is_no_message_is_left_out_and_impossible_figures_are_named() -> None:
    """The nsqd is named with the figures that no nsqd can have; the message is shown without."""
    job: Any = ErrorsOnly()
    answer = {"messages": [1, {}, {"id": 5}, {"id": "a", "size": 3, "timestamp": "7"}]}
    found = [{"node": "n:1", "id": "a", "size": 3, "timestamp": "7"}]
    assert found == messages_in(job, answer, "n:1")
    for nothing in (["?"], {"messages": 5}, None):
        assert [] == messages_in(job, nothing, "n:1")
    assert {} == job.errors
    for name, value in (
        *(("size", 10**30), ("attempts", float("inf")), ("timestamp", "\u00b2")),
        *(("timestamp", "9" * 5000), ("timestamp", 7)),
    ):
        job.errors.clear()
        (message,) = messages_in(job, {"messages": [{"id": "a", name: value}]}, "n:1")
        assert ({"node": "n:1", "id": "a"}, (0, "a")) == (message, by_time(message))
        assert {"n:1": f"unreadable figures of messages: {name}"} == job.errors
