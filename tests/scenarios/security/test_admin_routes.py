"""Every route of nsqadmin: refused requests change nothing, allowed ones do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparq.nsqadmin.access import Right, Role, right_of
from sparq.nsqadmin.server import routes
from tests.nsqadmin.access.cluster import Cluster, cluster
from tests.scenarios.security.walk import body, cases, guarded, target


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """Restore the log levels: requests that are allowed change those of this process."""
    loggers = [logging.getLogger(name) for name in ("", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def served(running: Cluster) -> list[Right]:
    """The rows of the rights table for the server's routes."""
    return [right_of(route.method, route.path) for route in routes(running.admin.services)]


async def test_requests_without_the_right_change_nothing(
    tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Every route refuses every kind of invalid access with 401 or 403, and nothing changes."""
    options, keys = guarded(tmp_path)
    refused = 0
    async with cluster(tmp_path, **options) as running:
        before = running.state()
        for case in cases(keys):
            for right in served(running):
                if not case.is_refused(right):
                    continue
                where = target(right, running.node)
                status = await running.ask(right.method, where, case.headers, body(right))
                assert status in (401, 403), (case.name, right.method, right.path, status)
                refused += 1
            assert before == running.state(), case.name
    assert refused > 200
    record_property("refused", refused)


async def test_with_the_right_it_is_done(tmp_path: Path) -> None:
    """With the right, the same requests succeed: the test above could have failed."""
    options, keys = guarded(tmp_path)
    async with cluster(tmp_path, **options) as running:
        headers = {
            "Authorization": f"Bearer {keys.administrator}",
            "Content-Type": "application/json",
        }
        for right in served(running):
            await running.reset()
            before = running.state()
            where = target(right, running.node)
            status = await running.ask(right.method, where, headers, body(right))
            is_sign_in = right.path == "/signin" and right.writes
            assert (status in (401, 403)) is is_sign_in, (right.method, right.path, status)
            is_nsqs = right.path.startswith(("/api/", "/config/")) and "/v2/" not in right.path
            if right.writes and (is_nsqs or right.path.endswith("/policies")):
                assert 200 == status, (right.method, right.path, status)
                assert before != running.state(), (right.method, right.path)


async def test_reading_needs_no_more_than_its_role(tmp_path: Path) -> None:
    """With NSQ's options everyone may use routes that need only READ; others get 403.

    No reading request changes anything.
    """
    async with cluster(tmp_path, admin_users=("alice",)) as running:
        before = running.state()
        for right in served(running):
            if not right.writes:
                status = await running.ask("GET", target(right, running.node), {})
                assert (status == 403) is (right.role & ~Role.READ != 0), (right.path, status)
        assert before == running.state()
