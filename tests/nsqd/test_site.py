"""nsqd's HTTP site: plain HTTP if TLS is required, and sites without the fast publish path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparq.nsqd import http
from sparq.nsqd.http import FastPublishPath
from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.server import Nsqd
from tests.nsqd.daemon import start, stop
from tests.support.options import changed

TOKEN = "t" * 20
CHECKS: dict[str, dict[str, Any]] = {
    "none": {},
    "token": {"http_token": TOKEN},
    "timeout": {"http_request_timeout": 10**9},
}


def options(required: str) -> NsqdOptions:
    return changed(NsqdOptions(), tls_required=required)


async def test_a_site_without_checks_has_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token or a request timeout needs aiohttp's handlers; publishes work either way."""
    made: list[Path] = []

    class Recorded(FastPublishPath):
        """A fast path whose creation is recorded."""

        def __init__(self, nsqd: Nsqd, protocol: Any) -> None:
            made.append(Path(nsqd.options.data_path))
            super().__init__(nsqd, protocol)

    monkeypatch.setattr(http, "FastPublishPath", Recorded)
    for name, more in CHECKS.items():
        folder = tmp_path / name
        folder.mkdir()
        nsqd = await start(folder, **more)
        head = f"POST /pub?topic=t HTTP/1.1\r\nAuthorization: Bearer {TOKEN}"
        status, _, _ = await nsqd.raw(head, b"Content-Length: 1\r\n\r\nx")

        assert 200 == status
        assert 1 == nsqd.nsqd.broker.topics["t"].depth()
        await stop(nsqd)
    assert [tmp_path / "none"] == made
