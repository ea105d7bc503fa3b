"""Access control with some options, and typical requests."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from sparq.daemon.access.audit import AuditLog
from sparq.daemon.access.rules import ADMINS_WORDS, Caller
from sparq.nsqadmin.access import AdminAccess
from sparq.nsqadmin.options import NsqadminOptions

NOW = 1_800_000_000.0
OUTSIDE = "192.0.2.7"


def access_with(options: NsqadminOptions) -> AdminAccess:
    """Access control with these options, at the time `NOW`."""
    return AdminAccess(options, AuditLog(), lambda: NOW)


def asks(
    method: str = "GET",
    path: str = "/",
    peer: str = "127.0.0.1",
    **headers: str | tuple[str, ...],
) -> web.Request:
    """A request from this address; a header with several values is sent several times."""
    sent: CIMultiDict[str] = CIMultiDict()
    for name, texts in {"host": "localhost", **headers}.items():
        for text in (texts,) if isinstance(texts, str) else texts:
            sent.add(name.replace("_", "-"), text)
    transport = Mock()
    transport.get_extra_info.return_value = (peer, 9) if peer else ""
    return make_mocked_request(method, path, sent, transport=transport)


def asks_for_user(user: str, **given: Any) -> web.Request:
    """A request that a proxy on this machine sends for a user."""
    return asks(**{"x_forwarded_user": user, **given})


def decide(options: NsqadminOptions, request: web.Request) -> Caller:
    """Identify a request under these options."""
    return access_with(options).decide(request)


def roles_of(caller: Caller) -> list[str]:
    """The names of a caller's roles."""
    return [word for word, role in ADMINS_WORDS.items() if caller.may(role)]
