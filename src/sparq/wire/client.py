"""A client's end of a V2 connection, up to its frames: bytes in, bytes out.

```
IDENTIFY ──▶ JSON ──▶ [TLS handshake ──▶ OK] ──▶ [compression ──▶ OK] ──▶ [AUTH ──▶ JSON] ──▶ READY
 in clear             inside TLS                 inside both
```
1. Nothing is sent ahead of its answer. What stands behind an answer in the same bytes belongs to
   the next layer: nothing that came in clear is taken for what came by TLS.
2. TLS that was asked for and is not granted is an error; compression is done without.
3. A secret is sent to an nsqd that asks for AUTH, to no other, and after the upgrades.
4. A size is checked before anything is kept for it: an answer has `ANSWER_BYTES_MAX` at most.
"""

from __future__ import annotations

import enum
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final, Protocol

from sparq.protocol import commands
from sparq.protocol.compression import Compression, Deflate, Snappy
from sparq.protocol.layout import FRAME_ERROR, FRAME_RESPONSE
from sparq.protocol.receiver import FrameError, Receiver
from sparq.wire.errors import AuthRequiredError, LayerError, TlsError, WrongPeerError, remote_error
from sparq.wire.layers import Layers, Tls

ANSWER_BYTES_MAX: Final = 64 << 10
DEFLATE_LEVEL_MAX: Final = 9
HEARTBEAT: Final = b"_heartbeat_"


class Stage(enum.StrEnum):
    """What a connection is at, in words for an error."""

    IDENTIFY = "IDENTIFY"
    TLS = "TLS"
    SNAPPY = "snappy"
    DEFLATE = "deflate"
    AUTH = "AUTH"
    READY = "ready"


FOLLOWS: Final[Mapping[Stage, tuple[Stage, ...]]] = {
    Stage.IDENTIFY: (Stage.TLS, Stage.SNAPPY, Stage.DEFLATE, Stage.AUTH, Stage.READY),
    Stage.TLS: (Stage.SNAPPY, Stage.DEFLATE, Stage.AUTH, Stage.READY),
    Stage.SNAPPY: (Stage.AUTH, Stage.READY),
    Stage.DEFLATE: (Stage.AUTH, Stage.READY),
    Stage.AUTH: (Stage.READY,),
}
"""What may come behind a stage; the first of them that is due does."""


class Options(Protocol):
    """What a client asks for; see `sparq.client.layer_options`."""

    @property
    def tls_v1(self) -> bool:
        """Speak TLS."""

    @property
    def snappy(self) -> bool:
        """Compress by snappy, where it is granted."""

    @property
    def deflate(self) -> bool:
        """Compress by deflate, where it is granted."""

    @property
    def deflate_level(self) -> int:
        """How much so."""

    @property
    def auth_secret(self) -> str:
        """What to answer with where AUTH is asked for; "" without one."""

    def asked(self) -> dict[str, Any]:
        """What IDENTIFY asks for."""

    def tls_context(self, *, check_host: bool) -> ssl.SSLContext:
        """How TLS is spoken. Raises ValueError: a file cannot be used."""


class ClientConnection:
    """One connection: its handshake, then its layers and its frames.

    Args:
        address: the nsqd's ``host:port`` or path.
        options: the layers and the secret.
        identity: what IDENTIFY tells.
        frame_bytes_max: the largest frame to take once it is ready.

    Attributes:
        stage: what it is at.
        is_plain: what arrives is the receiver's as it is: READY, without layers.
        facts: what nsqd answered to IDENTIFY; ``{}`` from one that does not negotiate.
        authorization: what it answered to AUTH (identity, identity_url, permission_count); ``{}``
            from one that asks for none.
        layers: through what everything goes; none at first.
        receiver: takes plain bytes, gives frames.
    """

    def __init__(
        self,
        address: str,
        options: Options,
        identity: Mapping[str, Any],
        frame_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self.stage = Stage.IDENTIFY
        self.is_plain = False
        self.facts: dict[str, Any] = {}
        self.authorization: dict[str, Any] = {}
        self.layers = Layers()
        self.receiver = Receiver(min(frame_bytes_max, ANSWER_BYTES_MAX))
        self._address = address
        self._options = options
        self._frame_bytes_max = frame_bytes_max
        self._arrived = self._head = b""
        self._is_shaking_hands = False
        body = json.dumps({**identity, **options.asked()}).encode()
        self._out = [commands.MAGIC_V2 + commands.identify(body)]

    def feed(self, data: bytes) -> None:
        """Take what came from the socket; ``output`` may have an answer to it.

        Once it is READY that is for the layers to read, or without any for the receiver, to which
        a shell that looks at ``is_plain`` gives it straight away.

        Raises:
            RemoteError: nsqd refuses the handshake.
            TlsError, AuthRequiredError, WrongPeerError: see there.
        """
        if self.is_plain:
            self.receiver.feed(data)
            return
        if self.layers:
            self.layers.feed(data)
        else:
            self._arrived += data
        if len(self._head) < HEAD_BYTES:
            self._head += data[:HEAD_BYTES]
        try:
            self._go_on()
        except FrameError as error:
            what = not_nsqd(self._address, self._head) or error
            raise WrongPeerError(f"nsqd {self._address}: {what}") from None
        except LayerError as error:
            if self.stage is not Stage.TLS:
                text = f"nsqd {self._address}: {self.stage}: {error}"
                raise WrongPeerError(text) from None
            # An nsqd that does not trust us says so only behind the handshake, in TLS 1.3.
            raise TlsError(
                f"TLS with nsqd {self._address} failed: {error} "
                "(see the options tls_root_ca_file, tls_cert, tls_min_version)"
            ) from None

    def output(self) -> bytes:
        """What is to be sent now, unasked; empty when there is nothing."""
        out, self._out = self._out, []
        return b"".join(out) + self.layers.output()

    # The handshake

    def _go_on(self) -> None:
        while self.stage is not Stage.READY:
            if self._is_shaking_hands:
                tls = self.layers.tls
                if tls is None or not tls.shake_hands():
                    return
                self._is_shaking_hands = False
            answer = self._answer()
            if answer is None:
                return
            self._understand(answer)
            self._advance()

    def _answer(self) -> bytes | None:
        """The next response, once it is there; AUTH may take its time, with heartbeats before."""
        while True:
            for kind, data in self.receiver.frames():
                if kind == FRAME_ERROR:
                    raise remote_error(data)
                if kind != FRAME_RESPONSE:
                    raise FrameError(f"a frame of type {kind} where a response was due")
                if data != HEARTBEAT:
                    return data
                self._send(commands.nop())
            if not (data := self.layers.read() if self.layers else self._arrived):
                return None
            self._arrived = b""
            self.receiver.feed(data)

    def _understand(self, answer: bytes) -> None:
        if self.stage is Stage.IDENTIFY:
            self.facts = _facts(answer)
        elif self.stage is Stage.AUTH:
            self.authorization = _facts(answer)
        elif answer != b"OK":
            raise WrongPeerError(
                f"nsqd {self._address} answered {answer[:80]!r} where OK was due ({self.stage})"
            )

    def _advance(self) -> None:
        """Begin the next stage that is due."""
        options, facts = self._options, self.facts
        due = {
            Stage.TLS: options.tls_v1,
            Stage.SNAPPY: options.snappy and facts.get("snappy"),
            Stage.DEFLATE: options.deflate and facts.get("deflate"),
            Stage.AUTH: facts.get("auth_required"),
            Stage.READY: True,
        }
        self.stage = next(stage for stage in FOLLOWS[self.stage] if due[stage])
        if self.stage is Stage.TLS:
            self.layers.add_tls(self._new_tls(), self._take_rest())
            self._is_shaking_hands = True
        elif self.stage is Stage.AUTH:
            self._authorize()
        elif self.stage is Stage.READY:
            rest, self.receiver = self._take_rest(), Receiver(self._frame_bytes_max)
            self.receiver.feed(rest)
            self.is_plain = not self.layers
        else:
            self.layers.add_compression(self._new_compression(), self._take_rest())

    def _new_tls(self) -> Tls:
        address = self._address
        if not self.facts.get("tls_v1"):
            raise TlsError(f"nsqd {address} does not offer TLS, which the option tls_v1 asks for")
        # A unix socket has no name that a certificate could have.
        host = None if address.startswith("/") else address.rpartition(":")[0].strip("[]")
        try:
            context = self._options.tls_context(check_host=host is not None)
        except ValueError as error:  # a file is gone that was there when the options were made
            raise TlsError(f"TLS with nsqd {address} is not possible: {error}") from None
        return Tls(context, host)

    def _new_compression(self) -> Compression:
        if self.stage is Stage.SNAPPY:
            return Snappy()
        level = self.facts.get("deflate_level")
        known = isinstance(level, int) and 1 <= level <= DEFLATE_LEVEL_MAX
        return Deflate(level if known and level else self._options.deflate_level)

    def _authorize(self) -> None:
        secret = self._options.auth_secret
        if not secret:
            raise AuthRequiredError(
                f"nsqd {self._address} asks for AUTH: the option auth_secret is needed"
            )
        self._send(commands.auth(secret.encode()))

    def _send(self, command: bytes) -> None:
        self._out.append(self.layers.seal((command,)))

    def _take_rest(self) -> bytes:
        """What came behind the last answer; what the layers still hold is not here."""
        rest, self._arrived = self.receiver.take_rest() + self._arrived, b""
        return rest


def _facts(answer: bytes) -> dict[str, Any]:
    """An answer that is a JSON object, or OK from an nsqd that does not negotiate."""
    if answer == b"OK":
        return {}
    try:
        facts = json.loads(answer)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise WrongPeerError(f"{answer[:80]!r} is no JSON object, which was due")
    return facts


# What is no nsqd, told from its first bytes. Each daemon of NSQ has several ports, and one is
# easily taken for another. By default they are 4150 and 4151 (nsqd: TCP, HTTP), 4160 and 4161
# (nsqlookupd: TCP, HTTP) and 4171 (nsqadmin).

HTTP: Final = b"HTTP/"
TLS_ALERT: Final = b"\x15\x03"
LOOKUPD_REFUSAL: Final = b"\x00\x00\x00\x0eE_BAD_PROTOCOL"
"""nsqlookupd's answers have a size and no type."""

HEAD_BYTES: Final = len(LOOKUPD_REFUSAL)
"""So many bytes are enough to tell."""

_HTTP_PORTS: Final = {
    "4151": "this is nsqd's HTTP port, give its TCP port (4150 by default)",
    "4161": "this is nsqlookupd's HTTP port, give it as such (lookupd-http-address)",
    "4171": "this is nsqadmin's port, give nsqd's TCP port (4150 by default)",
}
_ANY_HTTP_PORT: Final = "give nsqd's TCP port here (4150 by default), or an nsqlookupd as such"


def not_nsqd(address: str, head: bytes) -> str:
    """What begins with these bytes, as the end of a sentence; "" when that is not known."""
    if head.startswith(HTTP):
        port = address.rpartition(":")[2]
        return f"it speaks HTTP: {_HTTP_PORTS.get(port, _ANY_HTTP_PORT)}"
    if head.startswith(LOOKUPD_REFUSAL):
        return (
            "it is nsqlookupd's TCP port, which is for nsqds:"
            " give nsqlookupd's HTTP port as such (4161 by default)"
        )
    if head.startswith(TLS_ALERT):
        return "it speaks TLS from the first byte on, which no TCP port of an nsqd does"
    return ""
