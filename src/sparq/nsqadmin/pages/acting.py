"""Forms: actions that users request on pages, performed by `actions`, with a notice as the answer.

htmx posts a form to the page that it is on; the answer is a notice for `#result`. A refusal is
shown in the same place, and the answer has its HTTP status. Some actions are answered with a
question first (`questions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import parse_qs

from aiohttp import web

from sparq.cluster.actions import STAYS_AWAY, Report
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin import policies
from sparq.nsqadmin.actions import OF_NODE, OF_POLICIES, ActionRequest, error_of
from sparq.nsqadmin.messages.peek import by_node
from sparq.nsqadmin.pages.questions import SURE, Question, question_of
from sparq.nsqadmin.pages.rendering import Renderer
from sparq.nsqadmin.pages.words import in_words
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch import words

REQUEST_BYTES_MAX: Final = 256 << 10
FRESH_SECONDS: Final = 2.0
SHOWN_MAX: Final = 20

PAST: Final = {
    "create": "Created",
    "pause": "Paused",
    "unpause": "Unpaused",
    "empty": "Emptied",
    "delete": "Deleted",
    "tombstone": "Tombstoned",
    "seek": "Moved",
    "requeue": "Requeued",
    "finish": "Finished",
    "cancel": "Cancelled",
    "copy": "Copied",
    "close": "Closed",
    "publish": "Published",
    "redrive": "Redriven",
    "set": "Set",
    "drop": "Dropped",
    "drain": "Draining",
    "undrain": "Taking publishes again",
}
"""Word for a performed action, by the verb that the action's name begins with."""

TOMBSTONE: Final = "tombstone_topic_producer"
DRAINS: Final = ("drain_node", "undrain_node")
OF_TOPIC: Final = tuple(f"{verb}_topic" for verb in ("pause", "unpause", "empty", "delete"))
OF_CHANNEL: Final = tuple(f"{verb}_channel" for verb in ("pause", "unpause", "empty", "delete"))
OF_MESSAGES: Final = tuple(
    f"{verb}_message" for verb in ("requeue", "finish", "cancel", "copy", "redrive")
)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a form: values by name, in the order of the form."""

    values: Mapping[str, list[str]]

    def one(self, name: str) -> str:
        """The first value of a field; "" if it is missing."""
        return self.values.get(name, [""])[0].strip()

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self.values.get(name, [])

    def action(self, *offered: str) -> str:
        """The requested action.

        Raises:
            HttpError: 400 if the form does not offer it.
        """
        action = self.one("action")
        if action not in offered:
            raise HttpError(400, "INVALID_ACTION")
        return action


def fields_of(body: bytes, content_type: str) -> Fields:
    """Parse a form's fields, as htmx sends them, or the same as a JSON object.

    Raises:
        HttpError: 400 if a JSON body is not an object.
    """
    if content_type != "application/json":
        return Fields(parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True))
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise HttpError(400, "INVALID_BODY")
    lists = {name: each if isinstance(each, list) else [each] for name, each in given.items()}
    return Fields({name: [str(one) for one in each] for name, each in lists.items()})


Form: TypeAlias = Callable[[Mapping[str, str], Fields], ActionRequest]
"""Turns the parameters of the path and the fields of the form into the requested action."""


def on_topic(path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """Actions on a topic's page."""
    action = fields.action(*OF_TOPIC, TOMBSTONE)
    node = fields.one("node") if action == TOMBSTONE else ""
    return ActionRequest(action, topic=path["topic"], node=node, typed=fields.one("typed"))


def on_channel(path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """Actions on a channel's page."""
    action, typed = fields.action(*OF_CHANNEL), fields.one("typed")
    return ActionRequest(action, topic=path["topic"], channel=path["channel"], typed=typed)


def on_node(path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """Actions on a node's page."""
    action = fields.action(TOMBSTONE, *DRAINS)
    if action in DRAINS:
        arguments = {"exit": fields.one("exit") == "true"} if action == DRAINS[0] else {}
        return ActionRequest(action, "", node=path["node"], arguments=arguments)
    topic, typed = fields.one("topic"), fields.one("typed")
    return ActionRequest(action, topic=topic, node=path["node"], typed=typed)


def on_connection(_path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """The action on a connection's page: closing it."""
    topic, channel, node = (fields.one(name) for name in ("topic", "channel", "node"))
    arguments = {"client": fields.one("client")}
    return ActionRequest(fields.action("close_client"), topic, channel, node, arguments)


def on_lookup(_path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """Actions on the page of nsqlookupds."""
    action = fields.action("create", "delete_topic")
    topic, channel = fields.one("topic"), fields.one("channel")
    if action == "create":
        return ActionRequest(
            "create_channel" if channel else "create_topic", topic=topic, channel=channel
        )
    return ActionRequest(action, topic=topic, typed=fields.one("typed"))


def on_messages(_path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """Actions on the selected messages of a list."""
    action = fields.action(*OF_MESSAGES)
    try:
        arguments: dict[str, object] = {"ids": by_node(fields.all("message"))}
    except ValueError as error:
        raise HttpError(400, str(error)) from None
    if not arguments["ids"]:
        raise HttpError(400, "Nothing was done: no message is selected.")
    if action == "copy_message":
        arguments["to"] = fields.one("to")
    topic, channel = fields.one("topic"), fields.one("channel")
    return ActionRequest(action, topic=topic, channel=channel, arguments=arguments)


def on_publish(_path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """A message from a topic's page; blanks and line ends of its body are kept."""
    body = "".join(fields.all("body")[:1]).encode()
    topic, node = fields.one("topic"), fields.one("node")
    size = {"bytes": len(body)}
    return ActionRequest("publish_message", topic, node=node, arguments=size, document=body)


def on_replay(_path: Mapping[str, str], fields: Fields) -> ActionRequest:
    """The action on a replay page: a seek."""
    node = fields.one("node")
    arguments = {"to": fields.one("to"), "nodes": [node] if node else []}
    topic, channel = fields.one("topic"), fields.one("channel")
    return ActionRequest("seek_channel", topic=topic, channel=channel, arguments=arguments)


def handler(
    services: Services, renderer: Renderer, form: Form
) -> Callable[[Call], Awaitable[web.Response]]:
    """Return the handler of a form."""

    async def handle(call: Call) -> web.Response:
        try:
            body = await call.body(REQUEST_BYTES_MAX, "BODY_TOO_BIG")
            fields = fields_of(body, call.request.content_type)
            order = form(call.parameters, fields)
            question = None if fields.one(SURE) else await question_of(services, order)
            if question is not None:
                return _asked(renderer, call, fields, question)
            return await performed(services, renderer, call, order)
        except HttpError as error:
            return refusal(renderer, error)

    return handle


def dismissal(services: Services, renderer: Renderer) -> Callable[[Call], Awaitable[web.Response]]:
    """Return the handler that dismisses a node that is gone."""

    async def handle(call: Call) -> web.Response:
        address = call.parameters["node"]
        if not services.watch.dismiss(address):
            why = "NODE_NOT_FOUND: only a node that is gone can be dismissed"
            return refusal(renderer, HttpError(404, why))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_SECONDS):
                await services.watch.fresh()
        return notice(renderer, "good", f"Dismissed: {address}. It is shown again if it answers.")

    return handle


def _asked(renderer: Renderer, call: Call, fields: Fields, question: Question) -> web.Response:
    """A notice with a question: a form that sends the same fields again, and `SURE`."""
    sent = [(name, one) for name, each in fields.values.items() for one in each]
    facts = {**question._asdict(), "post": call.request.path_qs, "fields": [*sent, (SURE, "1")]}
    text = renderer.fragment("question.html", **facts)
    headers = {"Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"}
    return web.Response(text=text, headers=headers)


async def performed(
    services: Services, renderer: Renderer, call: Call, order: ActionRequest
) -> web.Response:
    """Perform an order; the answer is a notice of what was done at which node.

    Raises:
        HttpError: nothing was done; the codes are those of `Actions.perform`.
    """
    report = await services.actions.perform(call.request, order)
    gone = _not_asked(services, order, report)
    # The page's lists must show the result when the notice appears; a node that hangs must not
    # delay the notice for longer.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FRESH_SECONDS):
            await services.watch.fresh()
    return outcome_notice(renderer, order, report, gone)


def refusal(renderer: Renderer, error: HttpError) -> web.Response:
    """A notice that explains why nothing was done."""
    _, sentence, hint = in_words(error.status, error.code)
    return notice(renderer, "bad", f"{sentence} {hint}", status=error.status)


def _not_asked(services: Services, order: ActionRequest, report: Report) -> list[str]:
    """Nodes with the topic, or policies, that were not asked: nsqlookupds do not list them."""
    snapshot = services.watch.snapshot
    wanted = (*OF_TOPIC, *OF_CHANNEL, "seek_channel", *OF_POLICIES)
    if snapshot is None or order.action not in wanted:
        return []
    asked = {one.address for one in report.outcomes} | set(report.warnings)
    if order.action in OF_POLICIES:
        listed = snapshot.nodes if snapshot.lookupds else ()
        left = [node.address for node in listed if node.address not in asked]
        return [f"{address}: nsqlookupd does not list it: not changed" for address in left]
    nodes = (node.address for node, _ in snapshot.topic_nodes(order.topic))
    left = [address for address in nodes if address not in asked]
    return [f"{address} had it, but nsqlookupd does not list it: not changed" for address in left]


def outcome_notice(
    renderer: Renderer, order: ActionRequest, report: Report, gone: Sequence[str] = ()
) -> web.Response:
    """A notice of what was done at which node, and what failed; `gone`: nodes not asked."""
    refused = _refused(report)
    done = list(dict.fromkeys(one.address for one in report.done))
    failed = [f"{one.address}: {error_of(one)}" for one in report.errors]
    failed += [f"{address}: {why}" for address, why in report.warnings.items()]
    failed += [*gone, *([report.failed] if report.failed else [])]
    what = f"{PAST[order.action.partition('_')[0]]}: {_name(order, report)}"
    where = f" on {_listed(done)}" if done else ""
    if not done:
        return notice(renderer, "bad", "Nothing was done.", lines=failed)
    if any(one.step == STAYS_AWAY for one in report.errors):
        sentence = f"{what}{where}, but it is back. Stop the clients that use it, then repeat it."
        return notice(renderer, "bad", sentence, lines=failed)
    if failed:
        hint = "Repeat it when these nodes answer; what was done stays done."
        sentence = f"{what}{where}, but not everywhere. {hint}"
        return notice(renderer, "warn", sentence, lines=failed + refused)
    return notice(renderer, "warn" if refused else "good", f"{what}{where}.", lines=refused)


def _name(order: ActionRequest, report: Report) -> str:
    """The object of an action; for messages their number, for policies the changed settings."""
    if order.action in OF_POLICIES:
        changed = words.count(policies.changed(report), "setting")
        number = order.arguments["policies"] or 0
        what = words.count(number, "policy", "policies") if number else "all run-time policies"
        return f"{what}; {changed} of topics and channels changed"
    if order.action in OF_NODE:
        return str(order.arguments.get("client", order.node))
    name = order.topic + (f"/{order.channel}" if order.channel else "")
    if order.action == "publish_message":
        return f"1 message to {name}"
    answers = [one.answer for one in report.done if isinstance(one.answer, dict)]
    if order.action in OF_MESSAGES:
        count = sum(len(answer.get("done") or ()) for answer in answers)
        to = f" to {order.arguments['to']}" if "to" in order.arguments else ""
        return f"{words.count(count, 'message')} of {name}{to}"
    if order.action == "seek_channel":
        again = sum(int(answer.get("again") or 0) for answer in answers)
        are = "is" if again == 1 else "are"
        redelivered = words.count(again, "message")
        return f"{name} to {order.arguments['to']}; {redelivered} {are} redelivered"
    return name


def notice(
    renderer: Renderer, level: str, sentence: str, *, lines: Sequence[str] = (), status: int = 200
) -> web.Response:
    """A sentence for `#result`, with a line for each detail."""
    facts = {"level": level, "sentence": sentence.strip()}
    shown, more = lines[:SHOWN_MAX], len(lines[SHOWN_MAX:])
    text = renderer.fragment("result.html", **facts, lines=shown, more=more)
    headers = {"Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"}
    if status == 200:
        headers["HX-Trigger"] = "sparq:acted"  # lists without live updates reload
    return web.Response(text=text, status=status, headers=headers)


def _refused(report: Report) -> list[str]:
    """Return why nodes refused single messages: a text with id and reason for each."""
    return [
        f"{one['id']}: {one['why']}"
        for outcome in report.done
        if isinstance(outcome.answer, dict)
        for one in outcome.answer.get("refused") or ()
        if isinstance(one, dict) and "id" in one and "why" in one
    ]


def _listed(addresses: list[str]) -> str:
    if len(addresses) <= 4:
        return ", ".join(addresses)
    return f"{', '.join(addresses[:3])} and {len(addresses) - 3} more"
