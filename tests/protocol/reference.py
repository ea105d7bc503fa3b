"""A simple V2 parser for tests: it reads the whole stream, one command at a time."""

import re
from typing import NoReturn

from sparq.options.limits import IdentifyLimits

Event = tuple[object, ...]
BOTH, CONSUMING = {0, 3, 4}, {3, 4}
STATES = {
    **{"IDENTIFY": {0}, "AUTH": {0}, "SUB": {0}, "ATTACH": {0}, "CLS": {3}},
    **{"RDY": CONSUMING, "FIN": CONSUMING, "REQ": CONSUMING, "TOUCH": CONSUMING},
    **{"PUB": BOTH, "MPUB": BOTH, "DPUB": BOTH, "NOP": BOTH},
    **{"ENDS": BOTH, "READ": BOTH, "COMMIT": BOTH},
}
NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
ID = re.compile(r"[0-9a-f]{16}")


class End(Exception):
    """The stream has ended: with an error's event, or with None."""


def quoted(name: str) -> str:
    """Quote as Go does, as far as these tests need it."""
    plain = name.replace("\\", "\\\\").replace('"', '\\"')
    short = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    short["\v"] = "\\v"

    def one(char: str) -> str:
        code = ord(char)
        if char in short:
            return short[char]
        if 0xDC80 <= code <= 0xDCFF:
            return f"\\x{code - 0xDC00:02x}"
        if code < 0x20 or code == 0x7F:
            return f"\\x{code:02x}"
        return char if char.isprintable() else f"\\u{code:04x}"

    return '"' + "".join(map(one, plain)) + '"'


class Reference:
    """Parses a stream as the protocol specification describes, and lists its events."""

    def __init__(self, limits: IdentifyLimits) -> None:
        self.limits = limits
        self.state = 0
        self.data = b""
        self.at = 0
        self.events: list[Event] = []

    def read(self, data: bytes) -> list[Event]:
        """The events of a connection that sends these bytes and ends."""
        self.data = data
        try:
            while True:
                self.command()
        except End as end:
            if end.args[0] is not None:
                self.events.append(end.args[0])
        return self.events

    def fail(self, text: str) -> NoReturn:
        raise End(("error", text.encode("utf-8", "surrogateescape")))

    def take(self, size: int, lack: str) -> bytes:
        if self.at + size > len(self.data):
            self.fail(lack)
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, lack: str) -> int:
        return int.from_bytes(self.take(4, lack), "big", signed=True)

    def command(self) -> None:
        end = self.data.find(b"\n", self.at)
        if end < 0 or end + 1 - self.at > 16_384:
            raise End(("too long",) if len(self.data) - self.at >= 16_384 else None)
        line = self.data[self.at : end].decode("utf-8", "surrogateescape").removesuffix("\r")
        self.at = end + 1
        words = line.split(" ")
        if words[0] not in STATES:
            self.fail(f"E_INVALID invalid command {words[0]}")
        if self.state not in STATES[words[0]]:
            self.fail(f"E_INVALID cannot {words[0]} in current state")
        getattr(self, f"do_{words[0].lower()}")(words)

    def topic(self, words: list[str], what: str) -> str:
        if len(words[1]) > 64 or not NAME.fullmatch(words[1]):
            self.fail(f"E_BAD_TOPIC {what} topic name {quoted(words[1])} is not valid")
        return words[1]

    def channel(self, words: list[str]) -> str:
        if len(words[2]) > 64 or not NAME.fullmatch(words[2]):
            self.fail(f"E_BAD_CHANNEL {words[0]} channel name {quoted(words[2])} is not valid")
        return words[2]

    def at_least(self, words: list[str], count: int, noun: str = "parameters") -> None:
        if len(words) < count + 1:
            self.fail(f"E_INVALID {words[0]} insufficient number of {noun}")

    def decimal(self, word: str, text: str) -> int:
        value = 0
        for char in word:
            if char not in "0123456789":
                self.fail(f"E_INVALID {text} {word}")
            value = (value * 10 + int(char)) % (1 << 64)
        return value

    # Commands

    def do_identify(self, words: list[str]) -> None:
        self.events.append(("Identify", self.body(words[0])))

    def do_auth(self, words: list[str]) -> None:
        if len(words) != 1:
            self.fail("E_INVALID AUTH invalid number of parameters")
        self.events.append(("Authenticate", self.body("AUTH")))

    def body(self, name: str) -> bytes:
        size = self.number(f"E_BAD_BODY {name} failed to read body size")
        if size > self.limits.max_body_size:
            self.fail(f"E_BAD_BODY {name} body too big {size} > {self.limits.max_body_size}")
        if size <= 0:
            self.fail(f"E_BAD_BODY {name} invalid body size {size}")
        return self.take(size, f"E_BAD_BODY {name} failed to read body")

    def do_sub(self, words: list[str]) -> None:
        self.at_least(words, 2)
        self.events.append(("Subscribe", self.topic(words, "SUB"), self.channel(words)))
        self.state = 3

    def do_rdy(self, words: list[str]) -> None:
        if self.state == 4:
            self.events.append(("Nop",))
            return
        count = self.decimal(words[1], "RDY could not parse count") if len(words) > 1 else 1
        if count > self.limits.max_rdy_count:
            signed = count - (1 << 64) if count >> 63 else count
            self.fail(f"E_INVALID RDY count {signed} out of range 0-{self.limits.max_rdy_count}")
        self.events.append(("Ready", count))

    def id_of(self, words: list[str]) -> tuple[int, bytes]:
        text = words[1].encode("utf-8", "surrogateescape")
        if len(text) != 16:
            self.fail("E_INVALID invalid message ID")
        return int(words[1], 16) if ID.fullmatch(words[1]) else (1 << 64) - 1, text

    def do_fin(self, words: list[str]) -> None:
        self.at_least(words, 1, "params")
        self.events.append(("FIN", *self.id_of(words)))

    def do_req(self, words: list[str]) -> None:
        self.at_least(words, 2, "params")
        raw, text = self.id_of(words)
        ms = self.decimal(words[2], "REQ could not parse timeout")
        held = 0 if ms >> 63 else min(ms, self.limits.max_req_timeout_ms)
        self.events.append(("Requeue", text, raw, held))

    def do_touch(self, words: list[str]) -> None:
        self.at_least(words, 1, "params")
        raw, text = self.id_of(words)
        self.events.append(("Touch", text, raw))

    def do_cls(self, words: list[str]) -> None:
        self.events.append(("Close",))
        self.state = 4

    def do_nop(self, words: list[str]) -> None:
        self.events.append(("Nop",))

    def message(self, name: str) -> bytes:
        size = self.number(f"E_BAD_MESSAGE {name} failed to read message body size")
        if size <= 0:
            self.fail(f"E_BAD_MESSAGE {name} invalid message body size {size}")
        if size > self.limits.max_msg_size:
            self.fail(f"E_BAD_MESSAGE {name} message too big {size} > {self.limits.max_msg_size}")
        return self.take(size, f"E_BAD_MESSAGE {name} failed to read message body")

    def do_pub(self, words: list[str]) -> None:
        self.at_least(words, 1)
        topic = self.topic(words, "PUB")
        self.events.append(("PUB", topic, self.message("PUB")))

    def do_dpub(self, words: list[str]) -> None:
        self.at_least(words, 2)
        topic = self.topic(words, "DPUB")
        ms, most = (
            self.decimal(words[2], "DPUB could not parse timeout"),
            self.limits.max_req_timeout_ms,
        )
        if ms > most:
            self.fail(f"E_INVALID DPUB timeout {ms} out of range 0-{most}")
        self.events.append(("DPUB", topic, ms, self.message("DPUB")))

    def do_mpub(self, words: list[str]) -> None:
        self.at_least(words, 1)
        topic = self.topic(words, "E_BAD_TOPIC MPUB")
        self.events.append(("TopicNeeded", topic))
        most = self.limits.max_body_size
        size = self.number("E_BAD_BODY MPUB failed to read body size")
        if size <= 0:
            self.fail(f"E_BAD_BODY MPUB invalid body size {size}")
        if size > most:
            self.fail(f"E_BAD_BODY MPUB body too big {size} > {most}")
        count = self.number("E_BAD_BODY MPUB failed to read message count")
        if not 0 < count <= (most - 4) // 5:
            self.fail(f"E_BAD_BODY MPUB invalid message count {count}")
        total = 4
        bodies = []
        for position in range(count):
            total += 4
            if total > most:
                self.fail(f"E_BAD_BODY MPUB body too big {total} > {most}")
            size = self.number(f"E_BAD_MESSAGE MPUB failed to read message({position}) body size")
            if size <= 0:
                self.fail(f"E_BAD_MESSAGE MPUB invalid message({position}) body size {size}")
            if size > self.limits.max_msg_size:
                self.fail(f"E_BAD_MESSAGE MPUB message too big {size} > {self.limits.max_msg_size}")
            total += size
            if total > most:
                self.fail(f"E_BAD_BODY MPUB body too big {total} > {most}")
            bodies.append(self.take(size, "E_BAD_MESSAGE MPUB failed to read message body"))
        self.events.append(("MPUB", topic, *bodies))

    # Range reading

    def int64(self, words: list[str], place: int, what: str) -> int:
        word = words[place]
        if not re.fullmatch("[0-9]{1,19}", word) or int(word) >= 1 << 63:
            self.fail(f"E_INVALID {words[0]} could not parse {what} {word}")
        return int(word)

    def do_attach(self, words: list[str]) -> None:
        self.at_least(words, 2)
        self.events.append(("Attach", self.topic(words, "ATTACH"), self.channel(words)))

    def do_ends(self, words: list[str]) -> None:
        self.at_least(words, 1)
        topic = self.topic(words, "ENDS")
        kind = words[2] if len(words) > 2 else ""
        if kind not in ("", "time", "after", "within"):
            self.fail(f"E_INVALID ENDS could not parse kind {kind}")
        value = count = 0
        if kind:
            self.at_least(words, 3 if kind == "time" else 4)
            value = self.int64(words, 3, "time" if kind == "time" else "index")
        if kind in ("after", "within"):
            count = self.int64(words, 4, "count" if kind == "after" else "bytes")
        self.events.append(("ReadEnds", topic, kind, value, count))

    def do_commit(self, words: list[str]) -> None:
        self.at_least(words, 4)
        names = self.topic(words, "COMMIT"), self.channel(words)
        numbers = self.int64(words, 3, "epoch"), self.int64(words, 4, "index")
        self.events.append(("CommitRange", *names, *numbers))

    def do_read(self, words: list[str]) -> None:
        self.at_least(words, 5)
        topic = self.topic(words, "READ")
        numbers = [self.int64(words, 3 + n, what) for n, what in enumerate(("first", "end"))]
        numbers.append(self.int64(words, 5, "max bytes"))
        self.events.append(("Read", topic, words[2], *numbers))
