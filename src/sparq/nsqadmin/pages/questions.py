"""Questions that forms answer before they act: what would happen, to how many, and who gets it.

1. These actions affect messages that no button can bring back, or consumers that the user may not
   think of: a copy reaches every channel of its topic, a seek may skip waiting messages.
2. The question is a form with the same fields and the field `sure`; until it is sent, nothing is
   done.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sparq.daemon.http import HttpError
from sparq.nsqadmin.actions import ActionRequest
from sparq.nsqadmin.messages.asking import Refused
from sparq.nsqadmin.messages.times import seek_preview
from sparq.nsqadmin.services import Services
from sparq.nsqadmin.watch.words import count, names

SURE: Final = "sure"
CHANNELS_SHOWN: Final = 20


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
    if order.action == "seek_channel":
        return await _seek(services, order)
    ids = order.arguments.get("ids") or {}
    number = sum(len(some) for some in ids.values())
    if order.action == "copy_message":
        return await _copy(services, order, number)
    if order.action == "finish_message":
        of = f"{count(number, 'message')} in {order.topic}/{order.channel}"
        again = "Its consumers do not get them again, unless the channel is moved back."
        return Question([f"Finish {of}?", again, "Other channels keep theirs."], "Finish", True)
    if order.action == "cancel_message":
        of = f"{count(number, 'deferred message')} of {order.topic}/{order.channel}"
        return Question([f"Drop {of} before they are due?"], "Cancel them", True)
    return None


async def _copy(services: Services, order: ActionRequest, number: int) -> Question:
    topic = str(order.arguments["to"])
    asked = f"Publish {count(number, 'message')} again, to {topic}?"
    snapshot = await services.watch.current()
    row = snapshot.topics.find(topic)
    channels = [key[1] for key in snapshot.channels.keys if key[0] == topic]
    if row is None:
        who = "The topic does not exist: it is created, and its first channel gets them."
    elif not channels:
        who = "The topic has no channel yet: its first one gets them."
    elif len(channels) == 1:
        who = f"Its only channel gets them: {channels[0]}."
    else:
        each = f"Each of its {len(channels):,} channels gets them"
        who = f"{each}, also those that have had them before: {names(channels, CHANNELS_SHOWN)}."
    return Question([asked, who], "Copy")


async def _seek(services: Services, order: ActionRequest) -> Question:
    to, nodes = str(order.arguments["to"]), order.arguments["nodes"]
    try:
        found = await seek_preview(services.fleet, order.topic, order.channel, to, nodes)
    except Refused as refused:
        raise HttpError(refused.status, refused.code) from None
    where = f" at {nodes[0]}" if nodes else ""
    sentences = [
        f"Move {order.topic}/{order.channel} to {to}{where}?",
        f"{count(found.again, 'message')} would be delivered again.",
        skipped_text(found.skipped),
    ]
    return Question([text for text in sentences if text], "Move", is_danger=found.skipped > 0)


def skipped_text(skipped: int) -> str:
    """Describe the unfinished messages that a seek passes over; "" if there are none."""
    what = count(skipped, "unfinished message")
    return f"{what} would be skipped: consumers would not get them." if skipped else ""
