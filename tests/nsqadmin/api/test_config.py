"""`/config` of nsqadmin: every option read, two of them written, for whom the network allows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.program.flags import flags_of
from tests.nsqadmin.api.house import Admin, House, admin, free_address

LOOKUPDS = "nsqlookupd_http_addresses"


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """The level of the log is as it was."""
    loggers = [logging.getLogger(name) for name in ("", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("log_level", 2),
        ("http_client_request_timeout", 5_000_000_000),
        ("http_client_connect_timeout", 2_000_000_000),
        ("statsd_interval", 60_000_000_000),
        ("proxy_graphite", False),
        ("admin_users", []),
        ("acl_http_header", "X-Forwarded-User"),
        ("allow_config_from_cidr", "127.0.0.1/8"),
        ("base_path", "/"),
        ("statsd_prefix", "nsq.%s"),
        ("graphite_url", "http://g.example/x"),
        ("notification_http_endpoint", "http://n.example/"),
        ("upstream_token", "***"),
        ("log_prefix", "[nsqadmin] "),
    ],
)
async def test_options_are_read(option: str, value: Any) -> None:
    """Texts as they are, all else as JSON; secrets are not told."""
    async with admin(
        lookupd_http_addresses=(free_address(),),
        graphite_url="http://me:secret@g.example/x?key=secret",
        notification_http_endpoint="http://me:secret@n.example/?key=secret",
        upstream_token="secret",
    ) as found:
        assert (200, value) == await found.ask("GET", f"/config/{option}")


async def test_every_option_has_a_value() -> None:
    """All that `--help` names, under their keys; what Go has none for is none."""
    async with admin(lookupd_http_addresses=(free_address(),)) as found:
        for flag in flags_of(NsqadminOptions):
            status, _ = await found.ask("GET", f"/config/{flag.key}")
            assert (400 if flag.key == "verbose" else 200) == status, flag.key
        for name in ("nope", "verbose", "config", "version"):
            assert (400, {"message": "INVALID_OPTION"}) == await found.ask("GET", f"/config/{name}")


async def test_other_nsqlookupds(by_lookupd: Admin, house: House) -> None:
    """They are asked from then on; it is written down."""
    gone = free_address()
    assert (200, [gone]) == await by_lookupd.ask("PUT", f"/config/{LOOKUPDS}", [gone])
    assert (200, [gone]) == await by_lookupd.ask("GET", f"/config/{LOOKUPDS}")
    assert 502 == (await by_lookupd.ask("GET", "/api/nodes"))[0]
    back = [lookupd.http for lookupd in house.lookupds]
    assert 200 == (await by_lookupd.ask("PUT", f"/config/{LOOKUPDS}", back))[0]
    assert await by_lookupd.done("GET", "/api/nodes")
    entry = by_lookupd.audited()[-1]
    assert (f"config_{LOOKUPDS}", {"value": back}) == (entry["action"], entry["arguments"])


async def test_the_log_level() -> None:
    """A bare word; the answer is its number."""
    async with admin(lookupd_http_addresses=(free_address(),)) as found:
        assert (200, 4) == await found.ask("PUT", "/config/log_level", b"ERROR")
        assert logging.ERROR == logging.getLogger().level
        assert (200, 4) == await found.ask("GET", "/config/log_level")


@pytest.mark.parametrize(
    ("option", "body", "status", "message"),
    [
        (LOOKUPDS, b"", 413, "INVALID_VALUE"),
        (LOOKUPDS, b"x" * ((1 << 20) + 1), 413, "INVALID_VALUE"),
        (LOOKUPDS, b"{", 400, "INVALID_VALUE"),
        (LOOKUPDS, b'["nonsense"]', 400, "INVALID_VALUE"),
        (LOOKUPDS, b"[3]", 400, "INVALID_VALUE"),
        (LOOKUPDS, b'"127.0.0.1:1"', 400, "INVALID_VALUE"),
        ("log_level", b"loud", 400, "INVALID_VALUE"),
        ("log_level", b"\xff", 400, "INVALID_VALUE"),
        ("http_address", b"x", 400, "INVALID_OPTION"),
        ("nope", b"x", 400, "INVALID_OPTION"),
    ],
)
async def test_what_cannot_be_set(option: str, body: bytes, status: int, message: str) -> None:
    """NSQ's codes, and nothing is changed."""
    given = (free_address(),)
    async with admin(lookupd_http_addresses=given) as found:
        assert (status, {"message": message}) == await found.ask("PUT", f"/config/{option}", body)
        assert given == found.daemon.services.options.lookupd_http_addresses
        assert given == found.daemon.services.fleet.lookupds


async def test_who_is_elsewhere_may_not() -> None:
    """The network of the connection counts: 403 outside of it, for reading too."""
    async with admin(
        lookupd_http_addresses=(free_address(),), allow_config_from_cidr="10.0.0.0/8"
    ) as found:
        said = (403, {"message": "FORBIDDEN"})
        assert said == await found.ask("GET", "/config/log_level")
        assert said == await found.ask("PUT", "/config/log_level", b"debug")
