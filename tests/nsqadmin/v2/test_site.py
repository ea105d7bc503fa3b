"""The routes of the API and its OpenAPI document."""

from __future__ import annotations

import json

import pytest

from sparq.nsqadmin.access.roles import ACTION_ROLES, RIGHTS
from sparq.nsqadmin.v2 import site
from sparq.nsqadmin.v2.schemas import SCHEMAS, of_type
from tests.nsqadmin.v2.conftest import Api


def shape(method: str, path: str) -> str:
    """A route without the names of its parameters."""
    parts = ["*" if part[:1] in (":", "{") else part for part in path.split("/")]
    return f"{method.upper()} {'/'.join(parts)}"


async def test_the_document_has_exactly_the_servers_routes(api: Api) -> None:
    """Every route is documented, has a right, and nothing else is documented."""
    served = {shape(route.method, route.path) for route in site.routes(api.admin.services)}
    documented = {
        shape(method, path) for path, methods in api.document["paths"].items() for method in methods
    }
    rights = {shape(r.method, r.path) for r in RIGHTS if r.path.startswith("/api/v2/")}

    assert served == documented == rights
    assert "3.1.0" == api.document["openapi"]
    names = [o["operationId"] for path in api.document["paths"].values() for o in path.values()]
    assert len(names) == len(set(names))
    text = json.dumps(api.document)
    for name in SCHEMAS:
        assert name in text
    with pytest.raises(TypeError, match="no schema"):
        of_type(complex)


def test_the_document_names_each_action() -> None:
    """A script finds the words for `action` in the document, which no other page lists."""
    action = SCHEMAS["Action"]
    assert set(ACTION_ROLES) == set(action["properties"]["action"]["enum"])
    # Actions on a node or a client have no topic.
    assert ["action"] == action["required"]
