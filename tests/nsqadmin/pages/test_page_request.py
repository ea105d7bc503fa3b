"""PageRequest: links, numbers and rights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparq.daemon.http import HttpError
from sparq.nsqadmin.access import Identity, Role
from sparq.nsqadmin.pages.rendering import PageRequest, query_text


def page_request(path: str = "/topics", roles: Role = Role.READ, **query: str) -> PageRequest:
    """A request to an nsqadmin below `/admin`."""
    services: Any = SimpleNamespace(url=lambda text: f"/admin{text}")
    nothing: Any = None
    return PageRequest(services, Identity("ann", roles, "token"), path, {}, query, nothing)


def test_links_keep_the_state_of_the_page() -> None:
    """Links have the base path and the parameters, changed as given, without empty ones."""
    look = page_request("/topics/a b", sort="-depth", filter="x&y")

    assert "/admin/topics/a%20b?sort=-depth&filter=x%26y" == look.here()
    assert "/admin/topics/a%20b?filter=x%26y&offset=50" == look.here(sort="", offset=50)
    assert "/admin/nodes/[::1]:4151" == page_request("/nodes/[::1]:4151").here()
    assert "/admin/lookup?topic=t" == look.link("/lookup", topic="t", channel=None)
    assert "" == query_text({"a": "", "b": None})
    assert "?n=0" == query_text({"n": 0})


def test_numbers_are_read_within_bounds() -> None:
    """Numbers out of bounds, or not in ASCII digits, get 400 with the bounds."""
    assert 50 == page_request().number("limit", 50, 1, 1000)
    assert 7 == page_request(limit="7").number("limit", 50, 1, 1000)
    for text in ("0", "1001", "-1", "x", "٣", "9" * 20):
        with pytest.raises(HttpError, match="limit must be a number from 1 to 1,000") as error:
            page_request(limit=text).number("limit", 50, 1, 1000)
        assert 400 == error.value.status


def test_rights_decide_which_buttons_are_shown() -> None:
    """`rights` has the buttons that the role permits."""
    rights = page_request(roles=Role.OPERATE).rights
    assert ["may_operate"] == [name for name, is_given in rights.items() if is_given]
    assert not page_request(roles=Role.OPERATE | Role.BODIES).rights["may_copy"]
    assert page_request(roles=Role.OPERATE | Role.BODIES | Role.PUBLISH).rights["may_copy"]
    assert page_request(roles=Role.BODIES).rights["may_read"]
