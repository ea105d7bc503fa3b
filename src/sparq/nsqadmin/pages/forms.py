"""Forms: actions that users request on pages, performed by `actions`, with a notice as the answer.

1. htmx posts a form to the page that it is on; the answer is a notice for `#result`. A refusal is
   shown in the same place, and the answer has its HTTP status.
2. Some actions affect messages that no button can bring back, or consumers that the user may not
   think of: a copy reaches every channel of its topic, a seek may skip waiting messages. Their form
   is answered with a question, a form with the same fields and the field `sure`; until it is sent,
   nothing is done.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs

from aiohttp import web

from sparq.cluster import policies
from sparq.cluster.actions import STAYS_AWAY, Report
from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin import actions, words
from sparq.nsqadmin.actions import (
    OF_CHANNEL,
    OF_MESSAGES,
    OF_NODE,
    OF_POLICIES,
    OF_TOPIC,
    TOMBSTONE,
    ActionRequest,
    error_of,
)
from sparq.nsqadmin.messages import seek_preview
from sparq.nsqadmin.pages.rendering import Renderer
from sparq.nsqadmin.services import Services

REQUEST_BYTES_MAX: Final = 1 << 20
"""Maximum size of a form: its encoding takes up to three bytes for one byte of a document."""

FRESH_SECONDS: Final = 2.0
SHOWN_MAX: Final = 20

OFFERED: Final[dict[str, tuple[str, ...]]] = {
    "/topics/:topic": (*OF_TOPIC, TOMBSTONE),
    "/topics/:topic/:channel": OF_CHANNEL,
    "/connection": ("close_client",),
    "/nodes/:node": (TOMBSTONE, "drain_node", "undrain_node"),
    "/lookup": ("create_topic", "create_channel", "delete_topic"),
    "/messages": OF_MESSAGES,
    "/dead-letters": OF_MESSAGES,
    "/replay": ("seek_channel",),
    "/publish": ("publish_message",),
}
"""The actions of each page. A form without an action requests the only one of its page; the action
`create` creates a channel, or without one a topic.
"""

ASKED_FIRST: Final = ("seek_channel", "copy_message", "finish_message", "cancel_message")
"""The actions that are done only when the form says `sure`; `question.html` has their questions."""

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

FormHandler: TypeAlias = Callable[[Renderer, Call], Awaitable[web.Response]]


class Fields(NamedTuple):
    """The fields of a form, in its order: the first value of each, "" if missing; and all values.

    The first values are without blanks around them.
    """

    one: Mapping[str, str]
    every: Mapping[str, list[str]]


async def fields_of(call: Call) -> Fields:
    """Read a form's fields, as htmx sends them, or the same as a JSON object.

    Raises:
        HttpError: 413 BODY_TOO_BIG; 400 if a JSON body is not an object.
    """
    body = await call.body(REQUEST_BYTES_MAX, "BODY_TOO_BIG")
    if call.request.content_type == "application/json":
        try:
            given = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise HttpError(400, "INVALID_BODY")
        lists = {name: each if isinstance(each, list) else [each] for name, each in given.items()}
        every = {name: [str(one) for one in each] for name, each in lists.items()}
    else:
        every = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    one = {name: each[0].strip() for name, each in every.items() if each}
    return Fields(defaultdict(str, one), every)


def order_of(
    parameters: Mapping[str, str], fields: Fields, offered: Sequence[str]
) -> ActionRequest:
    """The action that a form requests; parameters of the path take precedence over its fields.

    Raises:
        HttpError: 400 if the page does not offer the action, or the selected messages are wrong.
    """
    one = fields.one
    topic, channel, node = (
        parameters.get(name) or one[name] for name in ("topic", "channel", "node")
    )
    action = one["action"] or (offered[0] if len(offered) == 1 else "")
    if action == "create":
        action = "create_channel" if channel else "create_topic"
    if action not in offered:
        raise HttpError(400, "INVALID_ACTION")
    messages = fields.every.get("message", []) if action in OF_MESSAGES else None
    if messages == []:
        raise HttpError(400, "Nothing was done: no message is selected.")
    is_seek = action == "seek_channel"
    try:
        return ActionRequest(
            action,
            topic,
            channel,
            node="" if is_seek else node,
            typed=one["typed"],
            messages=messages,
            to=one["to"],
            nodes=[node] if is_seek and node else None,
            client=one["client"],
            # Blanks and line ends of the body are kept.
            body="".join(fields.every.get("body", ())[:1]),
            exit=one["exit"] == "true",
        )
    except ValueError as error:
        raise HttpError(400, str(error)) from None


async def act(path: str, renderer: Renderer, call: Call) -> web.Response:
    """Answer a form of the page at `path`: perform its action, or ask first (rule 2)."""
    fields = await fields_of(call)
    order = order_of(call.parameters, fields, OFFERED[path])
    if order.action in ASKED_FIRST and not fields.one["sure"]:
        return await question(renderer, call, fields, order)
    return await perform(renderer, call, order)


async def perform(renderer: Renderer, call: Call, order: ActionRequest) -> web.Response:
    """Perform an action; the answer is a notice of what was done."""
    services = renderer.services
    report = await actions.perform(services, call.request, order)
    left_out = _left_out(services, order, report)
    name = await _object_of(order, report)
    await services.watch.refresh(FRESH_SECONDS)
    return outcome_notice(
        renderer, f"{PAST[order.action.partition('_')[0]]}: {name}", report, left_out
    )


async def dismiss(renderer: Renderer, call: Call) -> web.Response:
    """Dismiss a node that is gone."""
    address, watch = call.parameters["node"], renderer.services.watch
    if not watch.dismiss(address):
        raise HttpError(404, "NODE_NOT_FOUND: only a node that is gone can be dismissed")
    await watch.refresh(FRESH_SECONDS)
    return notice(renderer, "good", f"Dismissed: {address}. It is shown again if it answers.")


async def question(
    renderer: Renderer, call: Call, fields: Fields, order: ActionRequest
) -> web.Response:
    """Ask whether an action should be done, and say what it would do.

    Raises:
        HttpError: the action could not be done anyway; its code says why.
    """
    services, to = renderer.services, order.to or ""
    facts: dict[str, Any] = {}
    if order.action == "seek_channel":
        nodes = order.nodes or ()
        facts["preview"] = await seek_preview(services.fleet, order.topic, order.channel, to, nodes)
    elif order.action == "copy_message":
        snapshot = await services.watch.current()
        facts["is_new"] = snapshot.topics.find(to) is None
        facts["receivers"] = [key[1] for key in snapshot.channels.keys if key[0] == to]
    sent = [(name, one) for name, each in fields.every.items() for one in each]
    facts |= {"order": order, "post": call.request.path_qs, "fields": [*sent, ("sure", "1")]}
    return renderer.fragment("question.html", **facts)


def _left_out(services: Services, order: ActionRequest, report: Report) -> list[str]:
    """Nodes with the topic, or policies, that were not asked: nsqlookupds do not list them."""
    snapshot, of_policies = services.watch.snapshot, order.action in OF_POLICIES
    there: list[str] = []
    if snapshot is None:
        return there
    if of_policies and snapshot.lookupds:
        there = [node.address for node in snapshot.nodes]
    elif order.action in (*OF_TOPIC, *OF_CHANNEL, "seek_channel"):
        there = [
            seen.node.address
            for seen in snapshot.observed
            if seen.stats is not None and order.topic in seen.stats.names.places
        ]
    had = ":" if of_policies else " had it, but"
    asked = {one.address for one in report.outcomes} | set(report.warnings)
    return [
        f"{address}{had} nsqlookupd does not list it: not changed"
        for address in there
        if address not in asked
    ]


async def _object_of(order: ActionRequest, report: Report) -> str:
    """The object of an action; for messages their number, for policies the changed settings."""
    name = "/".join(filter(None, (order.topic, order.channel)))
    if order.action in OF_NODE:
        return order.client or order.node
    if order.action == "publish_message":
        return f"1 message to {name}"
    if order.action in OF_POLICIES:
        number = await policies.count(order.document) if order.body else 0
        what = words.count(number, "policy", "policies") if number else "all run-time policies"
        changed = words.count(policies.changed(report), "setting")
        return f"{what}; {changed} of topics and channels changed"
    if order.action in OF_MESSAGES:
        count = words.count(
            sum(len(answer.get("done") or ()) for answer in _answers(report)), "message"
        )
        return f"{count} of {name}" + (f" to {order.to}" if order.action == "copy_message" else "")
    if order.action == "seek_channel":
        again = sum(int(answer.get("again") or 0) for answer in _answers(report))
        are = "is" if again == 1 else "are"
        return f"{name} to {order.to}; {words.count(again, 'message')} {are} redelivered"
    return name


def _answers(report: Report) -> list[dict[str, Any]]:
    return [one.answer for one in report.done if isinstance(one.answer, dict)]


def outcome_notice(
    renderer: Renderer, what: str, report: Report, left_out: Sequence[str]
) -> web.Response:
    """A notice of what was done at which node, and what failed; `left_out`: nodes not asked."""
    refused = [
        f"{one['id']}: {one['why']}"
        for answer in _answers(report)
        for one in answer.get("refused") or ()
        if isinstance(one, dict) and "id" in one and "why" in one
    ]
    done = list(dict.fromkeys(one.address for one in report.done))
    failed = [*failures(report), *left_out]
    if not done:
        return notice(renderer, "bad", "Nothing was done.", failed)
    listed = ", ".join(done)
    if len(done) > 4:
        listed = f"{', '.join(done[:3])} and {len(done) - 3} more"
    what = f"{what} on {listed}"
    if any(one.step == STAYS_AWAY for one in report.errors):
        sentence = f"{what}, but it is back. Stop the clients that use it, then repeat it."
        return notice(renderer, "bad", sentence, failed)
    if failed:
        hint = "Repeat it when these nodes answer; what was done stays done."
        sentence = f"{what}, but not everywhere. {hint}"
        return notice(renderer, "warn", sentence, failed + refused)
    return notice(renderer, "warn" if refused else "good", f"{what}.", refused)


def failures(report: Report) -> list[str]:
    """Each daemon at which a step or the lookup failed, with the reason; why the action ended."""
    steps = [f"{one.address}: {error_of(one)}" for one in report.errors]
    lookups = [f"{address}: {why}" for address, why in report.warnings.items()]
    return [*steps, *lookups, *filter(None, [report.failed])]


def refusal(renderer: Renderer, error: HttpError) -> web.Response:
    """A notice that explains why nothing was done."""
    _, sentence, hint = words.in_words(error.status, error.code)
    return notice(renderer, "bad", f"{sentence} {hint}", status=error.status)


def notice(
    renderer: Renderer, level: str, sentence: str, lines: Sequence[str] = (), *, status: int = 200
) -> web.Response:
    """A sentence for `#result`, with a line for each detail."""
    facts = {"level": level, "sentence": sentence.strip()}
    shown, more = lines[:SHOWN_MAX], len(lines[SHOWN_MAX:])
    response = renderer.fragment("result.html", status, **facts, lines=shown, more=more)
    if status == 200:
        response.headers["HX-Trigger"] = "sparq:acted"  # lists without live updates reload
    return response
