"""Bytes in, commands out: the server's side of a V2 connection.

1. `feed` takes received bytes; `next` returns one command at a time, and None when it needs more.
   The session sets `state` between two commands, since a SUB decides which line may come next.
2. Checks have NSQ's order and NSQ's error texts. The first error ends the parser: every error that
   it raises is fatal for the connection.
3. Splitting the bytes into chunks differently changes the length of runs, but not the commands.
4. A chunk is parsed in place; bodies refer to it. Only an unfinished rest is copied, once, and is
   parsed again when enough bytes have arrived: time is linear.
5. The parser holds at most one unfinished command: a line and a body within the limits.
"""

import struct
from collections.abc import Callable
from typing import Final, NoReturn

from sparq.options.limits import IdentifyLimits
from sparq.protocol import commands as c
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices, parse_raw_id
from sparq.protocol.identify import STRICT_BODY_BYTES
from sparq.protocol.layout import ID_SIZE
from sparq.protocol.names import is_valid_name, quote
from sparq.protocol.runs import FIN_WIDTH, MultiPublishBody, finish_run, publish_run

KNOWN_MAX: Final = 64
"""Maximum lines of PUB and MPUB cached per connection."""
KNOWN_SIZE_MAX: Final = 80
"""Longest cached line in bytes: MPUB, a space, a name and the newline take at most 70."""

_SIZE: Final = struct.Struct(">i")
_U64: Final = 1 << 64
_I64_MAX: Final = (1 << 63) - 1
_DIGITS: Final = frozenset(b"0123456789")


class LineTooLong(Exception):
    """No newline within `max_line_size` bytes; NSQ closes the connection without an error frame."""


class CommandParser:
    """Parses the commands of one connection.

    Attributes:
        state: the connection's state, one of ``commands.STATE_...``; set by the session.
        heartbeats: whether the connection has heartbeats; without them NSQ refuses SUB.
        needs_tls: only IDENTIFY is allowed until the connection uses TLS.
        is_waiting: `next` returns None until more bytes are fed.
    """

    def __init__(self, limits: IdentifyLimits) -> None:
        self.state = c.STATE_INIT
        self.heartbeats = True
        self.needs_tls = False
        self._limits = limits
        self._line_size_max = limits.max_line_size
        self._data = b""
        self._at = 0
        # The unfinished rest while `is_waiting`, until it has `_need` bytes (0: a newline).
        self._tail = bytearray()
        self._need = 0
        self.is_waiting = True
        self._multi_topic = ""
        self._body: MultiPublishBody | None = None
        # Valid lines of PUB and MPUB with their handlers: most producers use few topics. They skip
        # the checks of `_command`, since both commands are allowed in every state, and `needs_tls`
        # never becomes true again.
        self._known: dict[bytes, tuple[_Publisher, str]] = {}
        self._dead = False

    # Bytes

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection."""
        tail = self._tail
        if self._body is not None:  # an MPUB is parsed in the tail itself
            self._feed_body(data, self._body.declared_size)
            return
        if not self.is_waiting:  # more commands can still be taken from `_data`
            data = self._data[self._at :] + data
        elif tail:
            is_short = len(tail) + len(data) < (self._need or self._line_size_max)
            if is_short and (self._need or b"\n" not in data):
                tail += data
                return
            data = b"".join((tail, data))
            self._tail = bytearray()
        self._data, self._at, self.is_waiting = data, 0, False

    def _feed_body(self, data: bytes, declared_size: int) -> None:
        """Append the bytes that the MPUB still needs by its declared size; copy none after it."""
        tail = self._tail
        if self._data:  # more commands can still be taken from `_data`
            data = self._data[self._at :] + data
        lacking = declared_size - len(tail)
        if 0 < lacking < len(data):
            tail += memoryview(data)[:lacking]
            self._data, self._at = data, lacking
        else:
            tail += data
            self._data, self._at = b"", 0
        self.is_waiting = len(tail) < self._need and not self._data

    def _wait(self, start: int, need: int) -> None:
        """Keep the bytes from `start` on until `need` of them are there (0: a whole line)."""
        if start < len(self._data):
            self._tail += memoryview(self._data)[start:]
        self._data, self._need, self.is_waiting = b"", need, True

    def eof(self) -> None:
        """Handle the end of the stream: an incomplete body raises RemoteError, a line does not."""
        if self._dead or not self.is_waiting:
            return
        tail = self._tail
        if self._body is not None:
            self._die(self._body.cut_short(tail))
        if self._multi_topic:
            self._die(_cut_short("MPUB", 0))
        line, newline, body = bytes(tail).partition(b"\n")
        if newline:
            self._die(_cut_short(line.split(b" ")[0].strip().decode(), len(body)))

    def take_rest(self) -> bytes:
        """Return the bytes after the last command, which another layer will read, and drop them."""
        rest = bytes(self._tail) + self._data[self._at :]
        self._data, self._at, self._tail = b"", 0, bytearray()
        self._need, self.is_waiting = 0, True
        return rest

    def _die(self, error: Exception) -> NoReturn:
        self._dead = True
        self._data, self._tail, self._body = b"", bytearray(), None
        raise error

    @property
    def is_unfinished(self) -> bool:
        """Whether a command has begun and its rest has not arrived yet."""
        return self.is_waiting and (bool(self._tail) or bool(self._multi_topic))

    # Commands

    def next(self) -> c.Command | None:
        """The next command; None if more bytes are needed.

        Raises:
            RemoteError: the command is not allowed; the connection must be closed.
            LineTooLong: the line is too long; the connection must be closed without an error frame.
        """
        if self.is_waiting or self._dead:
            return None
        try:
            if self._multi_topic:
                return self._next_multi_publish(self._multi_topic)
            data, at = self._data, self._at
            if data.startswith(b"FIN ", at) and self.state != c.STATE_INIT:
                finish = finish_run(data, at)
                if finish is not None:
                    self._at = at + len(finish.raw_ids) * FIN_WIDTH
                    if self._at == len(data):  # nothing follows: `next` can return at once
                        self._data, self._need, self.is_waiting = b"", 0, True
                    return finish
            end = data.find(b"\n", at, at + self._line_size_max)
            if end < 0:
                if len(data) - at >= self._line_size_max:
                    raise LineTooLong
                self._wait(at, 0)
                return None
            self._at = end + 1
            line = data[at : end + 1]
            known = self._known.get(line)
            if known is not None:
                return known[0](self, known[1], line, at)
            return self._command(line, at)
        except (RemoteError, LineTooLong) as error:
            self._die(error)

    def _command(self, line: bytes, at: int) -> c.Command | None:
        """Parse the command whose line is `line`, at position `at`."""
        words = line[: -2 if line.endswith(b"\r\n") else -1].split(b" ")
        name = _text(words[0])
        if self.needs_tls and name != "IDENTIFY":
            _invalid(f"cannot {name} in current state (TLS required)")
        kind = c.COMMANDS.get(words[0])
        if kind is None:
            _invalid(f"invalid command {name}")
        if self.state not in kind.states:
            _invalid(f"cannot {name} in current state")
        if name == "SUB" and not self.heartbeats:
            _invalid("cannot SUB with heartbeats disabled")
        if len(words) <= kind.parameters:  # more are ignored, as in NSQ
            noun = "params" if name in ("FIN", "REQ", "TOUCH") else "parameters"
            _invalid(f"{name} insufficient number of {noun}")
        if kind.has_body:
            return self._command_with_body(name, words, at)
        return self._consumer_command(name, words)

    def _command_with_body(self, name: str, words: list[bytes], at: int) -> c.Command | None:
        match name:
            case "PUB":
                return self._remember(CommandParser._publish, _topic(words), at)
            case "MPUB":
                # NSQ's error text repeats the code here.
                topic = _topic(words, "E_BAD_TOPIC MPUB")
                return self._remember(CommandParser._begin_multi_publish, topic, at)
            case "DPUB":
                return self._deferred_publish(words, at)
            case "AUTH":
                if len(words) != 1:
                    _invalid("AUTH invalid number of parameters")
                secret = self._sized("AUTH", at)
                return None if secret is None else c.Authenticate(secret)
        body = self._sized("IDENTIFY", at)
        return None if body is None else c.Identify(body)

    def _consumer_command(self, name: str, words: list[bytes]) -> c.Command:
        match name:
            case "RDY":
                return self._ready(words)
            case "FIN":
                text = _message_id(words)
                return c.Finish([parse_raw_id(text)], text)
            case "REQ":
                return self._requeue(words)
            case "TOUCH":
                text = _message_id(words)
                return c.Touch(text, parse_raw_id(text))
            case "SUB":
                return c.Subscribe(_topic(words), _channel(words))
            case "CLS":
                return c.Close()
            case "NOP":
                return c.Nop()
        return _range_command(name, words)

    # Publishing

    def _remember(self, publish: "_Publisher", topic: str, line_at: int) -> c.Command | None:
        line = self._data[line_at : self._at]
        if len(self._known) < KNOWN_MAX and len(line) <= KNOWN_SIZE_MAX:
            self._known[line] = publish, topic
        return publish(self, topic, line, line_at)

    def _publish(self, topic: str, line: bytes, line_at: int) -> c.Command | None:
        """Parse a run of PUBs to one topic; the first line has been parsed already."""
        data, start, size_max = self._data, self._at + 4, self._limits.max_msg_size
        size = len(data) - start
        if 0 < size <= size_max and _SIZE.unpack_from(data, self._at)[0] == size:
            # The only one, and whole: the usual case of a producer that waits for each OK.
            self._data, self._need, self.is_waiting = b"", 0, True
            return c.PublishRun(topic, BodySlices(data, [start], [size]))
        bodies = publish_run(data, line_at, line, size_max)
        if bodies is None:
            # The first PUB is incomplete or invalid: `_message` waits for it or raises its error.
            bodies = self._message("PUB", line_at)
        else:
            self._at = int(bodies.starts[-1] + bodies.sizes[-1])
            if self._at == len(data):  # nothing follows: `next` can return at once
                self._data, self._need, self.is_waiting = b"", 0, True
        return None if bodies is None else c.PublishRun(topic, bodies)

    def _deferred_publish(self, words: list[bytes], line_at: int) -> c.Command | None:
        topic = _topic(words)
        defer_ms = _decimal(words[2])
        if defer_ms is None:
            _invalid(f"DPUB could not parse timeout {_text(words[2])}")
        longest_ms = self._limits.max_req_timeout_ms
        if defer_ms > longest_ms:
            _invalid(f"DPUB timeout {defer_ms} out of range 0-{longest_ms}")
        body = self._message("DPUB", line_at)
        return None if body is None else c.DeferredPublish(topic, body, defer_ms)

    def _begin_multi_publish(self, topic: str, line: bytes, line_at: int) -> c.Command:
        self._multi_topic = topic
        return c.TopicNeeded(topic)

    def _next_multi_publish(self, topic: str) -> c.Command | None:
        """Parse the body of an MPUB; the part of one that is cut by a chunk is in the tail."""
        body = self._body
        if body is not None:
            return self._next_part(topic, body)
        data, size_max = self._data, self._limits.max_body_size
        if len(data) < self._at + 4:
            self._wait(self._at, 4)
            return None
        size = _read_size("MPUB", data, self._at, size_max)
        self._at += 4
        body = MultiPublishBody(size, self._limits.max_msg_size, size_max)
        bodies = body.parse(data, self._at)
        if bodies is None:
            self._wait(self._at, body.need)
            self._body = body
            return None
        self._at, self._multi_topic = self._at + body.end, ""
        return c.MultiPublish(topic, bodies)

    def _next_part(self, topic: str, body: MultiPublishBody) -> c.Command | None:
        tail = self._tail
        while (bodies := body.parse(tail, 0)) is None:
            if not self._data:
                self._need, self.is_waiting = body.need, True
                return None
            # The declared size was too small, which NSQ ignores.
            tail += memoryview(self._data)[self._at :]
            self._data, self._at = b"", 0
        if body.end < len(tail):
            rest = tail[body.end :]
            del tail[body.end :]
            self._data, self._at = b"".join((rest, memoryview(self._data)[self._at :])), 0
        self._tail, self._body, self._multi_topic = bytearray(), None, ""
        return c.MultiPublish(topic, bodies)

    # Bodies

    def _message(self, command: str, line_at: int) -> BodySlices | None:
        """The message after a line; None if it is incomplete."""
        size = self._take_body(command, line_at, self._limits.max_msg_size)
        return None if size is None else BodySlices(self._data, [self._at - size], [size])

    def _sized(self, command: str, line_at: int) -> bytes | None:
        """The body after a line; None if it is incomplete."""
        size_max = self._limits.max_body_size
        if self._limits.strict_identify:
            size_max = min(size_max, STRICT_BODY_BYTES)
        size = self._take_body(command, line_at, size_max)
        return None if size is None else self._data[self._at - size : self._at]

    def _take_body(self, command: str, line_at: int, size_max: int) -> int | None:
        """Skip the body after the line and return its size; None if it is incomplete."""
        size_at = self._at
        if len(self._data) < size_at + 4:
            self._wait(line_at, size_at + 4 - line_at)
            return None
        size = _read_size(command, self._data, size_at, size_max)
        end = size_at + 4 + size
        if len(self._data) < end:
            self._wait(line_at, end - line_at)
            return None
        self._at = end
        return size

    # Consuming

    def _ready(self, words: list[bytes]) -> c.Command:
        if self.state == c.STATE_CLOSING:
            return c.Nop()
        count = _decimal(words[1]) if len(words) > 1 else 1
        if count is None:
            _invalid(f"RDY could not parse count {_text(words[1])}")
        if count > self._limits.max_rdy_count:
            # NSQ converts to int64 and shows the result, so a huge count is shown as negative.
            signed = count - _U64 if count > _I64_MAX else count
            _invalid(f"RDY count {signed} out of range 0-{self._limits.max_rdy_count}")
        return c.Ready(count)

    def _requeue(self, words: list[bytes]) -> c.Command:
        text = _message_id(words)
        timeout_ms = _decimal(words[2])
        if timeout_ms is None:
            _invalid(f"REQ could not parse timeout {_text(words[2])}")
        if timeout_ms > _I64_MAX:  # negative as NSQ's int64
            timeout_ms = 0
        held = min(timeout_ms, self._limits.max_req_timeout_ms)
        return c.Requeue(text, parse_raw_id(text), held)


_Publisher = Callable[[CommandParser, str, bytes, int], c.Command | None]


def _range_command(name: str, words: list[bytes]) -> c.Command:
    """Parse a command of range reading."""
    topic = _topic(words)
    if name == "ENDS":
        kind = _text(words[2]) if len(words) > 2 else ""
        if kind not in c.ENDS_NUMBERS:
            _invalid(f"ENDS could not parse kind {kind}")
        numbers = c.ENDS_NUMBERS[kind]
        if kind and len(words) < 3 + len(numbers):
            _invalid("ENDS insufficient number of parameters")
        return c.ReadEnds(topic, kind, *_numbers(words, 3, *numbers))
    if name == "READ":
        first, end, max_bytes = _numbers(words, 3, "first", "end", "max bytes")
        return c.Read(topic, _text(words[2]), first, end, max_bytes)
    if name == "COMMIT":
        return c.CommitRange(topic, _channel(words), *_numbers(words, 3, "epoch", "index"))
    return c.Attach(topic, _channel(words))


# Parameters


def _invalid(text: str) -> NoReturn:
    raise RemoteError("E_INVALID", text)


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _topic(words: list[bytes], prefix: str = "") -> str:
    if not is_valid_name(words[1]):
        prefix = prefix or _text(words[0])
        raise RemoteError("E_BAD_TOPIC", f"{prefix} topic name {quote(words[1])} is not valid")
    return words[1].decode()


def _channel(words: list[bytes]) -> str:
    if not is_valid_name(words[2]):
        text = f"{_text(words[0])} channel name {quote(words[2])} is not valid"
        raise RemoteError("E_BAD_CHANNEL", text)
    return words[2].decode()


def _message_id(words: list[bytes]) -> bytes:
    # NSQ checks only the length. An id that is not hexadecimal is just not in flight.
    if len(words[1]) != ID_SIZE:
        _invalid("invalid message ID")
    return words[1]


def _decimal(word: bytes) -> int | None:
    """Parse a number as NSQ does: empty is 0, and large numbers wrap at 64 bits.

    10**64 is a multiple of 2**64, so only the last 64 digits count.
    """
    return int(word[-64:] or b"0") % _U64 if _DIGITS.issuperset(word) else None


def _numbers(words: list[bytes], at: int, *names: str) -> list[int]:
    """Parse the numbers of a range-reading command, from word `at` on: digits, at most an int64."""
    for name, word in zip(names, words[at:], strict=False):
        is_number = word and len(word) <= 19 and _DIGITS.issuperset(word)
        if not is_number or int(word) > _I64_MAX:
            _invalid(f"{_text(words[0])} could not parse {name} {_text(word)}")
    return [int(word) for word in words[at : at + len(names)]]


# Bodies

_BODY_WORDS: Final = {
    **dict.fromkeys(("PUB", "DPUB"), ("E_BAD_MESSAGE", "message body", "message")),
    **dict.fromkeys(("MPUB", "IDENTIFY", "AUTH"), ("E_BAD_BODY", "body", "body")),
}
"""The code of an error about a command's body, and NSQ's two names for the body."""


def _read_size(command: str, data: bytes, at: int, size_max: int) -> int:
    (size,) = _SIZE.unpack_from(data, at)
    code, noun, short_noun = _BODY_WORDS[command]
    if size <= 0:
        raise RemoteError(code, f"{command} invalid {noun} size {size}")
    if size > size_max:
        raise RemoteError(code, f"{command} {short_noun} too big {size} > {size_max}")
    return int(size)


def _cut_short(command: str, size: int) -> RemoteError:
    """The error if the stream ends `size` bytes after the line of a command with a body."""
    code, noun, _ = _BODY_WORDS[command]
    return RemoteError(code, f"{command} failed to read {noun}{' size' if size < 4 else ''}")
