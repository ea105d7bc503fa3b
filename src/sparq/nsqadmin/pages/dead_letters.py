"""Dead letters: topics that hold what was given up, and the way back to where it came from.

A topic of dead letters is known by its name, as `orders.dead` comes from `orders`. What became of
each letter is what the API tells of it, too (`messages.dead_letters`).
"""

from __future__ import annotations

from typing import Any

from sparq.nsqadmin.desk import Desk
from sparq.nsqadmin.messages.asking import Refused
from sparq.nsqadmin.messages.dead_letters import DeadLetters, copies_in, origin
from sparq.nsqadmin.messages.peek import Show
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.pages.messages import LIMIT, LIST_BODY_BYTES, TOPICS_MAX, trouble, warnings


class DeadLetterPage:
    """The view of one nsqadmin: it keeps hashes of the letters that were sent back."""

    def __init__(self, desk: Desk) -> None:
        self._letters = DeadLetters(desk.fleet, copies_in(desk.audit))

    async def view(self, look: Look) -> View:
        """The topics of dead letters, and the messages of one."""
        topic = look.query.get("topic", "")
        picture = look.picture
        rows = [picture.topic(key[0]) for key in picture.topics.keys if origin(key[0])]
        facts: dict[str, Any] = {
            "rows": [(row, origin(row.topic)) for row in rows if row is not None],
            "topic": topic,
            "channel": "",
            "to": origin(topic),
            "topics": [key[0] for key in picture.topics.keys[:TOPICS_MAX]],
            "page": None,
            "trouble": "",
            **look.rights,
        }
        if topic:
            try:
                facts |= await self._found(look, topic)
            except Refused as refused:
                facts["trouble"] = trouble(refused)
        return View("dead_letters.html", "Dead letters", facts, is_live=False)

    async def _found(self, look: Look, topic: str) -> dict[str, Any]:
        after, place = look.query.get("after", ""), look.query.get("from", "")
        show = Show(LIMIT, bodies=look.rights["may_read"], body_bytes=LIST_BODY_BYTES)
        found = await self._letters.letters(topic, place=place, after=after, show=show)
        page = found.page
        return {
            "page": page,
            "marks": found.marks,
            "next": look.here(after=page.next) if page.next and len(page.messages) == LIMIT else "",
            "first": look.here(after="") if after else "",
            "warnings": warnings(page.answers),
        }
