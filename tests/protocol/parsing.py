"""The parser's commands for a connection's bytes, as plain tuples."""

import struct

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands as c
from sparq.protocol.errors import RemoteError
from sparq.protocol.parser import CommandParser, LineTooLong

LIMITS = IdentifyLimits(
    max_msg_size=40, max_body_size=3000, max_rdy_count=25, max_req_timeout_ms=500
)


Event = tuple[object, ...]
INIT, SUBSCRIBED, CLOSING = c.STATE_INIT, c.STATE_SUBSCRIBED, c.STATE_CLOSING


def i32(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def flat(command: c.Command) -> list[Event]:
    """A command as events that do not depend on the lengths of runs."""
    match command:
        case c.PublishRun(topic, bodies):
            return [("PUB", topic, bytes(body)) for body in bodies]
        case c.MultiPublish(topic, bodies):
            return [("MPUB", topic, *map(bytes, bodies))]
        case c.DeferredPublish(topic, bodies, defer_ms):
            return [("DPUB", topic, defer_ms, *map(bytes, bodies))]
        case c.Finish():
            raw_ids = [int(raw) for raw in command.raw_ids]
            return [("FIN", raw, command.id_text(at)) for at, raw in enumerate(raw_ids)]
    return [(type(command).__name__, *(getattr(command, n) for n in command.__slots__))]


def drained(parser: CommandParser, events: list[Event]) -> None:
    """Add all available commands; change the state after SUB and CLS as a session does."""
    while (command := parser.next()) is not None:
        if isinstance(command, c.Subscribe):
            parser.state = SUBSCRIBED
        if isinstance(command, c.Close):
            parser.state = CLOSING
        events += flat(command)


def events_of(pieces: list[bytes], state: int = INIT) -> list[Event]:
    """The commands of a connection that sends these pieces and ends, and its error, if any."""
    parser = CommandParser(LIMITS)
    parser.state = state
    events: list[Event] = []
    try:
        for piece in pieces:
            parser.feed(piece)
            drained(parser, events)
        parser.eof()
    except RemoteError as error:
        assert error.fatal
        events.append(("error", error.frame_text()))
    except LineTooLong:
        events.append(("too long",))
    return events
