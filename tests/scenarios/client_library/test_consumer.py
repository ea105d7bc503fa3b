"""Where the client and nsqd must agree: names, and the options of IDENTIFY."""

from typing import Any
from urllib.parse import quote

from sparq.client import Consumer
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until

NAMES = [
    *("a", "a.b-c_D9", "x" * 64, "a#ephemeral", "x" * 54 + "#ephemeral", ".", "-"),
    *("", "x" * 65, "a b", "ä", "#ephemeral", "a#ephemeral#ephemeral", "a\n", "a/b", "a#eph", "*"),
]


async def test_valid_names_are_those_that_nsqd_accepts(shared_daemons: SharedDaemons) -> None:
    """A consumer refuses exactly the names of topics and channels that nsqd refuses."""

    def refuses(topic: str, channel: str) -> bool:
        try:
            Consumer(topic, channel, nsqd_tcp_addresses="a:1")
        except ValueError:
            return True
        return False

    nsqd = shared_daemons.nsqds[0]
    for name in NAMES:
        status, _ = nsqd.request("POST", f"/topic/create?topic={quote(name)}")
        assert refuses(name, "c") is refuses("t", name) is (status != 200), name


async def test_nsqd_applies_the_identify_options(shared_daemons: SharedDaemons) -> None:
    """nsqd applies the options that IDENTIFY sends; the client keeps nsqd's response."""
    topic, nsqd = shared_daemons.make("identified"), shared_daemons.nsqds[1]
    options: dict[str, Any] = {
        "max_in_flight": 10,
        "client_id": "me",
        "hostname": "my.host",
        "user_agent": "mine/1",
        "msg_timeout": 7.0,
        "sample_rate": 50,
        "output_buffer_size": 12_345,
        "output_buffer_timeout": 0.123,
    }
    async with Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp, **options) as consumer:
        await until(lambda: consumer.connections)
        [client] = nsqd.channel(topic, "c")["clients"]
        expected = {
            "client_id": "me",
            "hostname": "my.host",
            "user_agent": "mine/1",
            "sample_rate": 50,
        }
        assert expected == {name: client[name] for name in expected}
        [subscription] = consumer._subscriptions
        facts = subscription.connection.facts
        assert (facts["max_rdy_count"], facts["msg_timeout"]) == (500, 7000)
        assert (facts["output_buffer_size"], facts["output_buffer_timeout"]) == (12_345, 123)
