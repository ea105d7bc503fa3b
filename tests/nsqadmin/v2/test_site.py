"""The routes of the API and its OpenAPI document."""

from __future__ import annotations

from typing import Any

from sparq.nsqadmin.actions import ROLES
from sparq.nsqadmin.v2.routes import ENDPOINTS
from tests.nsqadmin.v2.conftest import Api


def shape(method: str, path: str) -> str:
    """A route without the names of its parameters."""
    parts = ["*" if part[:1] in (":", "{") else part for part in path.split("/")]
    return f"{method.upper()} {'/'.join(parts)}"


async def test_the_document_has_exactly_the_servers_routes(api: Api) -> None:
    """Every route is documented, and nothing else is documented."""
    served = {shape(one.method, f"/api/v2{one.path}") for one in ENDPOINTS}
    documented = {
        shape(method, path) for path, methods in api.document["paths"].items() for method in methods
    }

    assert served == documented
    assert "3.1.0" == api.document["openapi"]
    names = [o["operationId"] for path in api.document["paths"].values() for o in path.values()]
    assert len(names) == len(set(names))


def references(schema: Any) -> set[str]:
    """The names that a schema refers to."""
    if isinstance(schema, dict):
        own = {schema["$ref"].rpartition("/")[2]} if "$ref" in schema else set()
        return own.union(*map(references, schema.values()))
    return set().union(*map(references, schema)) if isinstance(schema, list) else set()


async def test_the_document_names_each_action(api: Api) -> None:
    """A script finds the words for `action` in the document; each `$ref` has a schema."""
    schemas = api.document["components"]["schemas"]
    assert references(api.document) == schemas.keys()
    assert {"Channel", "Topic", "Node", "Report", "Left", "Drain", "Mark"} <= schemas.keys()
    assert not schemas["Channel"]["additionalProperties"]
    assert "reader" in schemas["Channel"]["required"]
    action = schemas["Action"]
    assert set(ROLES) == set(action["properties"]["action"]["enum"])
    # Actions on a node or a client have no topic.
    assert ["action"] == action["required"]
