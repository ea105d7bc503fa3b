"""`/config`: reading and changing options over HTTP."""

import json
import logging
from collections.abc import Iterator

import pytest

from sparq.nsqd.http import NOT_IN_GO
from sparq.nsqd.options import NsqdOptions
from sparq.options.declare import flags_of
from tests.nsqd.daemon import Daemon

INVALID_VALUE = b'{"message":"INVALID_VALUE"}'
INVALID_OPTION = b'{"message":"INVALID_OPTION"}'


@pytest.fixture(autouse=True)
def level_kept() -> Iterator[None]:
    """Restore the log level of the process, which the test may change."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.mark.behaviour("TestHTTPconfig")
async def test_lookupd_addresses(nsqd: Daemon) -> None:
    """A PUT of a JSON list replaces the addresses, takes effect and is returned; null: none."""
    path = "/config/nsqlookupd_tcp_addresses"
    assert await nsqd.ask("GET", path) == (200, b"[]")
    wanted = b'["127.0.0.1:1","localhost:2"]'
    assert await nsqd.ask("PUT", path, wanted) == (200, wanted)
    assert await nsqd.ask("GET", path) == (200, wanted)
    assert list(nsqd.peers._peers) == ["127.0.0.1:1", "localhost:2"]
    for bad in (b"127.0.0.1:1", b'{"a":1}', b"[1]", b"[null]", b"[" * 90, b"\xff"):
        assert await nsqd.ask("PUT", path, bad) == (400, INVALID_VALUE)
    assert await nsqd.ask("GET", path) == (200, wanted)
    assert await nsqd.ask("PUT", path, b"null") == (200, b"null")
    assert not nsqd.peers._peers
    assert await nsqd.ask("PUT", path, b"[]") == (200, b"[]")


@pytest.mark.behaviour("TestHTTPconfig")
async def test_log_level(nsqd: Daemon) -> None:
    """PUT takes a level's name in any case, applies it, and returns NSQ's number for it."""
    for word, number, level in (
        (b"fatal", b"5", logging.CRITICAL),
        (b"DEBUG", b"1", logging.DEBUG),
        (b"Warn", b"3", logging.WARNING),
    ):
        assert await nsqd.ask("PUT", "/config/log_level", word) == (200, number)
        assert await nsqd.ask("GET", "/config/log_level") == (200, number)
        assert logging.getLogger().level == level
    assert await nsqd.ask("PUT", "/config/log_level", b"bad") == (400, INVALID_VALUE)
    assert await nsqd.ask("GET", "/config/log_level") == (200, b"3")


async def test_invalid_values_and_options_are_refused(nsqd: Daemon) -> None:
    """Empty or too large values get 413; unknown or read-only options get INVALID_OPTION."""
    for body in (b"", b"x" * 101):
        assert await nsqd.ask("PUT", "/config/log_level", body) == (413, INVALID_VALUE)
    assert await nsqd.ask("PUT", "/config/max_msg_size", b"5") == (400, INVALID_OPTION)
    assert await nsqd.ask("PUT", "/config/none", b"5") == (400, INVALID_OPTION)
    assert await nsqd.ask("GET", "/config/none") == (400, INVALID_OPTION)
    assert (await nsqd.ask("GET", "/config"))[0] == 404
    assert (await nsqd.ask("GET", "/config/a/b"))[0] == 404


async def test_every_option_can_be_read(nsqd: Daemon) -> None:
    """Text is returned as is, the rest as JSON: durations in ns, enumerations as Go's numbers."""
    values = {}
    for flag in flags_of(NsqdOptions):
        if flag.key in NOT_IN_GO:
            continue
        status, headers, body = await nsqd.raw(f"GET /config/{flag.key} HTTP/1.1", b"\r\n")
        assert status == 200
        is_json = headers.get("content-type", "").startswith("application/json")
        values[flag.key] = json.loads(body) if is_json else body.decode()
        assert is_json or isinstance(flag.default, str) or flag.kind.name == "string"

    assert values["id"] == 5
    assert values["broadcast_address"] == "here"
    assert values["broadcast_http_port"] == nsqd.nsqd.http_port
    assert values["msg_timeout"] == 60_000_000_000
    assert (values["tls_required"], values["tls_min_version"]) == (0, 0x303)
    assert (values["log_level"], values["statsd_mem_stats"]) == (2, True)
    assert values["e2e_processing_latency_percentiles"] == []
