"""All routes of the API, and the document that describes them."""

from __future__ import annotations

from typing import Any

from sparq.daemon.http import Call, Route
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.v2.acting import Acting
from sparq.nsqadmin.v2.dead_letters import DeadLetterRoutes
from sparq.nsqadmin.v2.export import Export
from sparq.nsqadmin.v2.figures import Figures
from sparq.nsqadmin.v2.looking import Looking
from sparq.nsqadmin.v2.openapi import document
from sparq.nsqadmin.v2.table import Arguments, Endpoint


def endpoints(desk: Desk) -> list[Endpoint]:
    """The table of endpoints."""
    found: list[Endpoint] = []

    async def describe(_call: Call, _asked: Arguments) -> Any:
        return document(found, desk.url("") or "/")

    words = "this document"
    found.append(Endpoint("GET", "/openapi.json", words, {"type": "object"}, describe))
    rooms = Figures(desk), Looking(desk), Acting(desk), DeadLetterRoutes(desk), Export(desk)
    for room in rooms:
        found += room.endpoints()
    return found


def routes(desk: Desk) -> list[Route]:
    """The routes for the server."""
    return [endpoint.route() for endpoint in endpoints(desk)]
