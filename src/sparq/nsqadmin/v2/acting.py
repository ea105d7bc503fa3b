"""Actions over the API, and the audit log.

What is done, who may, and what must be typed is `nsqadmin.actions`'; here bodies become orders and
reports become answers. An action that failed everywhere is a 502 with its report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from sparq.cluster.actions import Report
from sparq.daemon.http import Call, HttpError, to_json
from sparq.nsqadmin.access import FILTERS
from sparq.nsqadmin.actions import Order
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.messages.asking import Refused, nodes_of
from sparq.nsqadmin.messages.one import by_node
from sparq.nsqadmin.messages.replay import check_place
from sparq.nsqadmin.v2.figures import LIMIT
from sparq.nsqadmin.v2.table import Arguments, Endpoint, Parameter, text_in, texts_in

JSON: Final = "application/json; charset=utf-8"
GO_NODE: Final = "it is no sparq nsqd: it cannot do this"
NO_ROUTE: Final = r"\"NOT_FOUND\""
"""In NSQ's answer to a path that it does not have, as `Outcome.error` quotes it."""

OWN_STEPS: Final = ("message/", "channel/seek")


@dataclass(frozen=True, slots=True)
class Acting:
    """The handlers."""

    desk: Desk

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        before = Parameter("before", "the `next` of the answer before")
        filters = tuple(Parameter(name, f"only entries with this {name}") for name in FILTERS)
        return [
            Endpoint(
                "POST",
                "/actions",
                "do something: pause, empty, delete, requeue messages, ...",
                "Report",
                self.act,
                body="Action",
                errors={503: "the audit log cannot be written"},
            ),
            Endpoint(
                "POST",
                "/seek",
                "move a channel to a place of the log",
                "Report",
                self.seek,
                body="Seek",
                errors={503: "the audit log cannot be written"},
            ),
            Endpoint(
                "POST",
                "/nodes/:node/forget",
                "leave out a node that is gone",
                "Forgotten",
                self.forget,
            ),
            Endpoint(
                "GET",
                "/audit",
                "who did what, newest first",
                "AuditPage",
                self.audit,
                (before, LIMIT, *filters),
            ),
        ]

    async def act(self, call: Call, asked: Arguments) -> Any:
        """`POST /actions`."""
        body = asked["body"]
        arguments: dict[str, Any] = {}
        try:
            if "messages" in body:
                arguments["ids"] = by_node(texts_in(body, "messages"))
        except ValueError as error:
            raise HttpError(400, f"INVALID_BODY: {error}") from None
        if "to" in body:
            arguments["to"] = text_in(body, "to")
        if "nodes" in body:
            arguments["nodes"] = texts_in(body, "nodes")
        names = ("action", "topic", "channel", "node", "typed")
        told = {name: text_in(body, name) for name in names}
        return await self._perform(call, Order(arguments=arguments, **told))

    async def seek(self, call: Call, asked: Arguments) -> Any:
        """`POST /seek`."""
        body = asked["body"]
        topic, channel, to = (text_in(body, name) for name in ("topic", "channel", "to"))
        nodes = texts_in(body, "nodes")
        try:
            chosen, _ = await nodes_of(self.desk.fleet, topic, nodes)
            check_place(to, len(chosen))
        except Refused as refused:
            raise HttpError(refused.status, refused.code) from None
        arguments = {"to": to, **({"nodes": nodes} if nodes else {})}
        return await self._perform(call, Order("seek_channel", topic, channel, arguments=arguments))

    async def _perform(self, call: Call, order: Order) -> Any:
        report = await self.desk.actions.perform(call.request, order)
        told = report_document(report)
        if report.result != "failed":
            return told
        return web.Response(status=502, body=to_json(told), headers={"Content-Type": JSON})

    async def forget(self, _call: Call, asked: Arguments) -> Any:
        """`POST /nodes/:node/forget`."""
        if not self.desk.watch.forget(asked["node"]):
            raise HttpError(404, "NODE_NOT_FOUND: only a node that is gone can be forgotten")
        return {"node": asked["node"]}

    async def audit(self, _call: Call, asked: Arguments) -> Any:
        """`GET /audit`."""
        filters = {name: asked[name] for name in FILTERS if asked[name]}
        page = await self.desk.audit.page(asked["before"], asked["limit"], filters)
        return {
            "entries": page.entries,
            "next": page.next,
            "scanned_bytes": page.scanned_bytes,
        }


def report_document(report: Report) -> dict[str, Any]:
    """A report as JSON has it."""
    return {
        "result": report.result,
        "failed": report.failed,
        "outcomes": [
            {
                "address": one.address,
                "step": one.step,
                "error": _error(one.step, one.error),
                "answer": one.answer,
            }
            for one in report.outcomes
        ],
        "warnings": report.warnings,
    }


def _error(step: str, error: str) -> str:
    """Go's nsqd says that it has no such route: that is told in words."""
    is_gos = step.startswith(OWN_STEPS) and NO_ROUTE in error
    return GO_NODE if is_gos else error
