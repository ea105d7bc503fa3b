"""Dead letters: topics that hold what was given up, and the way back to where it came from.

A dead letter has the body of the message that it was and nothing else; its topic is told by its
name, as `orders.dead` comes from `orders`. What was sent back before is known from the audit log.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sparq.nsqadmin.messages.asking import Refused
from sparq.nsqadmin.messages.peek import Show, log_page
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.pages.messages import LIMIT, LIST_BODY_BYTES, TOPICS_MAX, warnings

NAMED: Final = re.compile(
    r"(?P<from>.+?)[._-](?:dead|dlq|dead[._-]?letters?|failed)(?:#ephemeral)?", re.IGNORECASE
)
AUDIT_ENTRIES: Final = 200


def origin(topic: str) -> str:
    """The topic whose dead letters another one holds, by its name; "": it does not look so."""
    found = NAMED.fullmatch(topic)
    return found["from"] if found else ""


async def dead_letters(look: Look) -> View:
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
            facts |= await _letters(look, topic)
        except Refused as refused:
            facts["trouble"] = refused.code
    return View("dead_letters.html", "Dead letters", facts, is_live=False)


async def _letters(look: Look, topic: str) -> dict[str, Any]:
    after = look.query.get("after", "")
    show = Show(LIMIT, bodies=look.rights["may_read"], body_bytes=LIST_BODY_BYTES)
    place = look.query.get("from", "")
    page = await log_page(look.desk.fleet, topic, place=place, after=after, show=show)
    return {
        "page": page,
        "sent": await _sent(look, topic),
        "next": look.here(after=page.next) if page.next and len(page.messages) == LIMIT else "",
        "first": look.here(after="") if after else "",
        "warnings": warnings(page.answers),
    }


async def _sent(look: Look, topic: str) -> dict[str, str]:
    """When messages of a topic were sent on before, by `node/id`."""
    filters = {"action": "copy_message", "topic": topic}
    found = await look.desk.audit.page(limit=AUDIT_ENTRIES, filters=filters)
    sent: dict[str, str] = {}
    for entry in found.entries:
        arguments = entry.get("arguments")
        ids = arguments.get("ids") if isinstance(arguments, dict) else None
        for node, some in ids.items() if isinstance(ids, dict) else ():
            for one in some if isinstance(some, list) else ():
                sent.setdefault(f"{node}/{one}", str(entry.get("time", "")))
    return sent
