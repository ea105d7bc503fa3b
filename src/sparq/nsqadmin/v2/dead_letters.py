"""Dead letters over the API: listed with what became of them, sent back in batches.

Sending back is the action `copy_message`, `BATCH` messages at a time, so that each entry of the
audit log names all of its messages. Letters that were sent back stay where they are, marked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.daemon.http import Call, HttpError
from sparq.nsqadmin.actions import Order
from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.messages.dead_letters import DeadLetters, copies_in, origin, sent_in
from sparq.nsqadmin.messages.one import by_node
from sparq.nsqadmin.messages.peek import Show, log_page
from sparq.nsqadmin.v2.looking import AFTER, SHOWN, TOPIC, Looking, page_document, refusing
from sparq.nsqadmin.v2.schemas import plain
from sparq.nsqadmin.v2.table import Arguments, Endpoint, Parameter, text_in, texts_in

BATCH: Final = 50
ALL_MAX: Final = 10_000
OUTCOMES: Final = ("done", "partly", "failed")


@dataclass(frozen=True, slots=True)
class DeadLetterRoutes:
    """The handlers."""

    desk: Desk
    letters: DeadLetters = field(init=False)

    def __post_init__(self) -> None:
        """The list of letters reads the audit log."""
        letters = DeadLetters(self.desk.fleet, copies_in(self.desk.audit))
        object.__setattr__(self, "letters", letters)

    def endpoints(self) -> list[Endpoint]:
        """The routes."""
        place = Parameter("from", "a place; without it the oldest letter")
        words = "letters of a topic, with when they were sent back, and which came back"
        back = "publish letters once more to a topic: those named, or all not sent back yet"
        asked = (TOPIC, place, *SHOWN, AFTER)
        path = "/dead-letters"
        return [
            Endpoint("GET", path, words, "LetterPage", self.page, asked),
            Endpoint("POST", path, back, "SentBack", self.send, body="SendBack"),
        ]

    async def page(self, call: Call, asked: Arguments) -> Any:
        """`GET /dead-letters`."""
        show = Looking(self.desk).show(call, asked)
        found = await refusing(
            self.letters.letters(
                asked["topic"], place=asked["from"], after=asked["after"], show=show
            )
        )
        return {"origin": found.origin, "marks": plain(found.marks), **page_document(found.page)}

    async def send(self, call: Call, asked: Arguments) -> Any:
        """`POST /dead-letters`."""
        body = asked["body"]
        topic = text_in(body, "topic")
        to = text_in(body, "to") or origin(topic)
        if not to:
            raise HttpError(400, "INVALID_BODY: name the topic to send to")
        told: dict[str, Any] = {"to": to, "sent": 0, "refused": {}, "errors": {}, "more": False}
        async for batch in self._batches(topic, body):
            order = Order("copy_message", topic, arguments={"ids": batch, "to": to})
            report = await self.desk.actions.perform(call.request, order)
            for one in report.outcomes:
                answer = one.answer if isinstance(one.answer, dict) else {}
                told["sent"] += len(answer.get("done") or ())
                for each in answer.get("refused") or ():
                    told["refused"][f"{one.address}/{each.get('id')}"] = str(each.get("why"))
                if one.error:
                    told["errors"][one.address] = one.error
            told["errors"] |= report.warnings
        is_all = body.get("all") is True
        told["more"] = is_all and told["sent"] >= ALL_MAX
        return told

    async def _batches(
        self, topic: str, body: dict[str, Any]
    ) -> AsyncIterator[dict[str, list[str]]]:
        """Ids by node, `BATCH` messages at a time."""
        if body.get("all") is not True:
            named = texts_in(body, "messages")
            if not named:
                raise HttpError(400, "INVALID_BODY: name messages, or all")
            for at in range(0, len(named), BATCH):
                try:
                    yield by_node(named[at : at + BATCH])
                except ValueError as error:
                    raise HttpError(400, f"INVALID_BODY: {error}") from None
            return
        sent = sent_in(await copies_in(self.desk.audit)(topic))
        async for keys in self._unsent(topic, sent):
            yield by_node(keys)

    async def _unsent(self, topic: str, sent: Mapping[str, str]) -> AsyncIterator[list[str]]:
        """Letters that were there at the beginning and were not sent back, in batches."""
        show, after, left = Show(BATCH, bodies=False), "", ALL_MAX
        ends: dict[str, int] = {}
        while left > 0:
            page = await refusing(log_page(self.desk.fleet, topic, after=after, show=show))
            for node, reach in page.reach.items():
                ends.setdefault(node, int(reach["end_index"]))
            there = [m for m in page.messages if int(m["index"]) < ends.get(m["node"], 0)]
            keys = [f"{m['node']}/{m['id']}" for m in there]
            unsent = [key for key in keys if key not in sent][:left]
            left -= len(unsent)
            if unsent:
                yield unsent
            if not there or page.next is None:
                return
            after = page.next
