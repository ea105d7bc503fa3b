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
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from aiohttp import web

from sparq.cluster import policies
from sparq.cluster.actions import STAYS_AWAY, Report
from sparq.daemon.http import Call, Handler, HttpError
from sparq.nsqadmin import words
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
from sparq.nsqadmin.messages import by_node, seek_preview
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
    "/lookup": ("create", "delete_topic"),
    "/messages": OF_MESSAGES,
    "/dead-letters": OF_MESSAGES,
    "/replay": ("seek_channel",),
    "/publish": ("publish_message",),
}
"""The actions of each page. A form without an action requests the only one of its page."""

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
    action = one["action"] or (offered[0] if len(offered) == 1 else "")
    if action not in offered:
        raise HttpError(400, "INVALID_ACTION")
    topic, channel, node = (
        parameters.get(name) or one[name] for name in ("topic", "channel", "node")
    )
    if action == "create":
        action = "create_channel" if channel else "create_topic"
    arguments: dict[str, Any] = {}
    document = b""
    if action in OF_MESSAGES:
        try:
            arguments["ids"] = by_node(fields.every.get("message", ()))
        except ValueError as error:
            raise HttpError(400, str(error)) from None
        if not arguments["ids"]:
            raise HttpError(400, "Nothing was done: no message is selected.")
        arguments |= {"to": one["to"]} if action == "copy_message" else {}
    elif action == "seek_channel":
        arguments = {"to": one["to"], "nodes": [node] if node else []}
    elif action == "drain_node":
        arguments = {"exit": one["exit"] == "true"}
    elif action == "close_client":
        arguments = {"client": one["client"]}
    elif action == "publish_message":
        # Blanks and line ends of the body are kept.
        document = "".join(fields.every.get("body", ())[:1]).encode()
        arguments = {"bytes": len(document)}
    is_at_node = action in (TOMBSTONE, "publish_message", *OF_NODE)
    about = (topic, channel, node if is_at_node else "", arguments)
    return ActionRequest(action, *about, one["typed"], document)


Handle = Callable[[Renderer, Call], Awaitable[web.Response]]


def handler(renderer: Renderer, handle: Handle) -> Handler:
    """Return the handler of a form's route: a refusal is shown as a notice."""

    async def answer(call: Call) -> web.Response:
        try:
            return await handle(renderer, call)
        except HttpError as error:
            return refusal(renderer, error)

    return answer


async def act(path: str, renderer: Renderer, call: Call) -> web.Response:
    """Answer a form of the page at `path`: perform its action, or ask first (rule 2)."""
    fields = await fields_of(call)
    order = order_of(call.parameters, fields, OFFERED[path])
    return await perform(renderer, call, fields, order)


async def perform(
    renderer: Renderer, call: Call, fields: Fields, order: ActionRequest
) -> web.Response:
    """Perform the action that a form requests, or ask first."""
    services = renderer.services
    question = None if fields.one["sure"] else await question_of(services, order)
    if question is not None:
        sent = [(name, one) for name, each in fields.every.items() for one in each]
        facts = {"post": call.request.path_qs, "fields": [*sent, ("sure", "1")]}
        return renderer.fragment("question.html", **question._asdict(), **facts)
    report = await services.actions.perform(call.request, order)
    left = _left_out(services, order, report)
    await services.watch.refresh(FRESH_SECONDS)
    return outcome_notice(renderer, order, report, left)


async def dismiss(renderer: Renderer, call: Call) -> web.Response:
    """Dismiss a node that is gone."""
    address, watch = call.parameters["node"], renderer.services.watch
    if not watch.dismiss(address):
        raise HttpError(404, "NODE_NOT_FOUND: only a node that is gone can be dismissed")
    await watch.refresh(FRESH_SECONDS)
    return notice(renderer, "good", f"Dismissed: {address}. It is shown again if it answers.")


class Question(NamedTuple):
    """A question.

    Attributes:
        sentences: what would happen.
        verb: the label of the button that does it.
        is_danger: whether messages may be lost to a consumer.
    """

    sentences: list[str]
    verb: str
    is_danger: bool = False


async def question_of(services: Services, order: ActionRequest) -> Question | None:
    """The question before an action; None if the action needs none.

    Raises:
        HttpError: the action could not be done anyway; its code says why.
    """
    what, told = f"{order.topic}/{order.channel}", order.arguments
    number = sum(len(some) for some in told.get("ids", {}).values())
    if order.action == "seek_channel":
        to, nodes = told["to"], told["nodes"]
        found = await seek_preview(services.fleet, order.topic, order.channel, to, nodes)
        where = f" at {nodes[0]}" if nodes else ""
        again = f"{words.count(found.again, 'message')} would be delivered again."
        skipped = [skipped_text(found.skipped)] if found.skipped else []
        return Question([f"Move {what} to {to}{where}?", again, *skipped], "Move", bool(skipped))
    if order.action == "copy_message":
        asked = f"Publish {words.count(number, 'message')} again, to {told['to']}?"
        return Question([asked, await _who_gets_it(services, told["to"])], "Copy")
    if order.action == "finish_message":
        again = "Its consumers do not get them again, unless the channel is moved back."
        asked = f"Finish {words.count(number, 'message')} in {what}?"
        return Question([asked, again, "Other channels keep theirs."], "Finish", True)
    if order.action == "cancel_message":
        asked = f"Drop {words.count(number, 'deferred message')} of {what} before they are due?"
        return Question([asked], "Cancel them", True)
    return None


async def _who_gets_it(services: Services, topic: str) -> str:
    """Which channels get a message that is published to a topic."""
    snapshot = await services.watch.current()
    channels = [key[1] for key in snapshot.channels.keys if key[0] == topic]
    if snapshot.topics.find(topic) is None:
        return "The topic does not exist: it is created, and its first channel gets them."
    if not channels:
        return "The topic has no channel yet: its first one gets them."
    if len(channels) == 1:
        return f"Its only channel gets them: {channels[0]}."
    each, listed = f"Each of its {len(channels):,} channels", words.names(channels, SHOWN_MAX)
    return f"{each} gets them, also those that have had them before: {listed}."


def skipped_text(skipped: int) -> str:
    """Describe the unfinished messages that a seek passes over; "" if there are none."""
    what = words.count(skipped, "unfinished message")
    return f"{what} would be skipped: consumers would not get them." if skipped else ""


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


def outcome_notice(
    renderer: Renderer, order: ActionRequest, report: Report, left_out: Sequence[str] = ()
) -> web.Response:
    """A notice of what was done at which node, and what failed; `left_out`: nodes not asked."""
    answers = [one.answer for one in report.done if isinstance(one.answer, dict)]
    refused = [
        f"{one['id']}: {one['why']}"
        for answer in answers
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
    past = PAST[order.action.partition("_")[0]]
    what = f"{past}: {_name(order, report, answers)} on {listed}"
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


def _name(order: ActionRequest, report: Report, answers: list[dict[str, Any]]) -> str:
    """The object of an action; for messages their number, for policies the changed settings."""
    told, name = order.arguments, "/".join(filter(None, (order.topic, order.channel)))
    if order.action in OF_POLICIES:
        changed = words.count(policies.changed(report), "setting")
        number = told["policies"] or 0
        what = words.count(number, "policy", "policies") if number else "all run-time policies"
        return f"{what}; {changed} of topics and channels changed"
    if order.action in OF_NODE:
        return str(told.get("client", order.node))
    if order.action == "publish_message":
        return f"1 message to {name}"
    if order.action in OF_MESSAGES:
        count = sum(len(answer.get("done") or ()) for answer in answers)
        to = f" to {told['to']}" if "to" in told else ""
        return f"{words.count(count, 'message')} of {name}{to}"
    if order.action == "seek_channel":
        again = sum(int(answer.get("again") or 0) for answer in answers)
        are = "is" if again == 1 else "are"
        return f"{name} to {told['to']}; {words.count(again, 'message')} {are} redelivered"
    return name


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
