"""A temporary topic on a real nsqd: created, emptied, counted, and deleted in any case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparq.tools.command_line import ToolError
from sparq.tools.scratch_topic import ScratchTopic
from tests.support.servers import NsqdServer, free_port, spawn_nsqd


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd without topics."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


def topics(nsqd: NsqdServer) -> dict[str, list[str]]:
    """Return the channels of each topic."""
    stats = nsqd.get_json("/stats?format=json&include_clients=false")
    return {
        topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]]
        for topic in stats["topics"]
    }


async def test_the_topic_exists_only_in_the_block(nsqd: NsqdServer) -> None:
    """Each topic has a unique name; an error in the block deletes it, too."""
    async with ScratchTopic(nsqd.http) as one, ScratchTopic(nsqd.http) as two:
        assert {one.name: [], two.name: []} == topics(nsqd)
        assert one.version.startswith("nsqd v")
    with pytest.raises(ZeroDivisionError):
        async with ScratchTopic(nsqd.http):
            raise ZeroDivisionError

    assert {} == topics(nsqd)


async def test_a_new_channel_gets_only_later_messages(
    nsqd: NsqdServer,
) -> None:
    """Earlier messages are dropped, but the topic still counts them."""
    async with ScratchTopic(nsqd.http) as topic:
        nsqd.post(f"/pub?topic={topic.name}", b"before")
        first = await topic.new_channel()
        nsqd.post(f"/pub?topic={topic.name}", b"between")
        second = await topic.new_channel()
        nsqd.post(f"/pub?topic={topic.name}", b"after")

        assert first != second
        assert {topic.name: [second]} == topics(nsqd)
        assert 1 == nsqd.channel(topic.name, second)["depth"]
        assert 3 == await topic.message_count()
        nsqd.post(f"/topic/delete?topic={topic.name}")
        with pytest.raises(ToolError, match=f"its /stats does not list {topic.name}"):
            await topic.message_count()
        nsqd.post(f"/topic/create?topic={topic.name}")


async def test_an_address_without_an_nsqd_is_an_error(nsqd: NsqdServer) -> None:
    """The error names the flag and the address; no topic is created."""
    nobody = f"127.0.0.1:{free_port()}"
    for address, reason in ((nobody, "connection refused"), (nsqd.tcp, "speaks NSQ")):
        with pytest.raises(ToolError, match=f"--nsqd-http-address {address}: .*{reason}"):
            async with ScratchTopic(address):
                pass

    assert {} == topics(nsqd)
