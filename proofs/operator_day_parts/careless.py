"""nsqd that is careless. The control of operator_day.py.

- A token that is removed from the file stays valid.
- A topic named `deleted` stays when it is deleted.
- One message in a hundred is delivered again after its FIN.
- A channel counts one message too many.
"""

import sys
from itertools import count

from sparq.broker.channel import Channel
from sparq.broker.session import V2Session
from sparq.broker.topics import Topics
from sparq.daemon.access import tokens
from sparq.nsqd.main import main
from sparq.protocol.commands import Finish
from sparq.protocol.instant import Instant

AGAIN = 100
STAYS = "deleted"

finish, delete, read_text = Channel.finish, Topics.delete, tokens.read_text
lines: dict[str, None] = {}
finished = count(1)
repeated: set[tuple[Channel, int]] = set()


def read_and_keep(path: str) -> str:
    """Return the lines of a token file, and those that it has had before."""
    lines.update(dict.fromkeys(read_text(path).splitlines()))
    return "\n".join(lines)


def delete_most(topics: Topics, name: str, now: Instant) -> None:
    """Delete a topic, unless it has that one name."""
    if name != STAYS:
        delete(topics, name, now)


def finish_most(channel: Channel, session: V2Session, command: Finish, now: Instant) -> None:
    """Finish messages, and let some come back once."""
    finish(channel, session, command, now)
    for index in channel._indexes(command.raw_ids):
        if next(finished) % AGAIN == 0 and (channel, int(index)) not in repeated:
            repeated.add((channel, int(index)))
            channel.requeued.push(int(index), 1)


def one_more(channel: Channel) -> int:
    """Return one message too many."""
    return channel.stream.ordinal - channel.base_ordinal + 1


if __name__ == "__main__":
    setattr(tokens, "read_text", read_and_keep)  # noqa: B010 - a replacement, which types do not allow
    setattr(Topics, "delete", delete_most)  # noqa: B010 - the same
    setattr(Channel, "finish", finish_most)  # noqa: B010 - the same
    setattr(Channel, "message_count", property(one_more))  # noqa: B010 - the same
    sys.exit(main())
