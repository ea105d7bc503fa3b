"""A client's end of a V2 connection, from the handshake to frames: bytes in, bytes out.

```
IDENTIFY ──▶ JSON ──▶ [TLS handshake ──▶ OK] ──▶ [compression ──▶ OK] ──▶ [AUTH ──▶ JSON] ──▶ READY
 in clear             inside TLS                 inside both
```
1. Each step waits for the answer to the previous one. Bytes received after an answer belong to the
   next layer, so data received in clear is never taken for data received over TLS.
2. If TLS was requested and is not granted, that is an error; if compression is not granted, the
   connection goes on without it.
3. A secret is sent only to an nsqd that requires AUTH, and only after the upgrades: over TLS, or
   over a unix socket, or in plain text if the options allow that.
4. A size is checked before memory is used for it: an answer has at most `ANSWER_BYTES_MAX` bytes.
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Generator, Mapping
from typing import Any, Final

from sparq.protocol import commands
from sparq.protocol.compression import Compression, Deflate, LayerError, Snappy
from sparq.protocol.layout import FRAME_ERROR, FRAME_RESPONSE
from sparq.protocol.receiver import FrameError, Receiver
from sparq.wire.errors import AuthRequiredError, TlsError, WrongPeerError, remote_error
from sparq.wire.layer_options import LayerOptions
from sparq.wire.layers import Layers, Tls

ANSWER_BYTES_MAX: Final = 64 << 10
DEFLATE_LEVEL_MAX: Final = 9
HEARTBEAT: Final = b"_heartbeat_"


class Stage(enum.StrEnum):
    """The stages of a connection in their order; the values appear in error messages."""

    IDENTIFY = "IDENTIFY"
    TLS = "TLS"
    SNAPPY = "snappy"
    DEFLATE = "deflate"
    AUTH = "AUTH"
    READY = "ready"


class ClientConnection:
    """One connection: its handshake, then its layers and its frames.

    Args:
        address: the nsqd's ``host:port`` or path.
        options: the layers and the secret.
        identity: the client's own fields of IDENTIFY.
        frame_bytes_max: the largest frame accepted once the connection is READY.

    Attributes:
        stage: the present stage.
        is_plain: whether input goes straight to the receiver: READY, without layers.
        facts: nsqd's answer to IDENTIFY; ``{}`` from an nsqd that does not negotiate.
        authorization: nsqd's answer to AUTH (identity, identity_url, permission_count); ``{}``
            from an nsqd that requires no AUTH.
        layers: the layers that all bytes pass through; none at first.
        receiver: takes plain bytes, returns frames.
    """

    def __init__(
        self,
        address: str,
        options: LayerOptions,
        identity: Mapping[str, Any],
        frame_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self.stage = Stage.IDENTIFY
        self.is_plain = False
        self.facts: dict[str, Any] = {}
        self.authorization: dict[str, Any] = {}
        self.layers = Layers()
        # A small limit until READY: the peer may not be an nsqd at all, and its first four bytes,
        # read as a size, must not make us wait for that many bytes.
        self.receiver = Receiver(min(frame_bytes_max, ANSWER_BYTES_MAX))
        self._address = address
        self._options = options
        self._frame_bytes_max = frame_bytes_max
        self._arrived = self._head = b""
        body = json.dumps({**identity, **options.identify_fields()}).encode()
        self._out = [commands.MAGIC_V2 + commands.identify(body)]
        self._handshake = self._steps()
        next(self._handshake)

    def feed(self, data: bytes) -> None:
        """Process bytes from the socket; ``output`` may then return bytes to send.

        Once READY, the bytes go to the layers, or without layers to the receiver. A caller that
        checks ``is_plain`` may give them to the receiver directly.

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
            # In TLS 1.3, an nsqd that rejects our certificate says so only after the handshake.
            raise TlsError(
                f"TLS with nsqd {self._address} failed: {error} "
                "(see the options tls_root_ca_file, tls_cert, tls_min_version)"
            ) from None

    def output(self) -> bytes:
        """Return the handshake's bytes to send now; empty if there are none."""
        out, self._out = self._out, []
        return b"".join(out) + self.layers.output()

    # The handshake

    def _go_on(self) -> None:
        while self.stage is not Stage.READY:
            if self.layers.tls is not None and not self.layers.tls.shake_hands():
                return
            if (answer := self._answer()) is None:
                return
            with contextlib.suppress(StopIteration):
                self._handshake.send(answer)

    def _steps(self) -> Generator[None, bytes, None]:
        """Take nsqd's answers one by one, and begin what is due after each."""
        options = self._options
        facts = self.facts = _facts((yield))
        if options.tls_v1:
            self._begin(Stage.TLS, self._new_tls())
            self._check_ok((yield))
        if options.snappy and facts.get("snappy"):
            self._begin(Stage.SNAPPY, Snappy())
            self._check_ok((yield))
        if options.deflate and facts.get("deflate"):
            # The level that nsqd has granted. It affects only our output: inflating needs no level.
            level = facts.get("deflate_level")
            if not isinstance(level, int) or not 1 <= level <= DEFLATE_LEVEL_MAX:
                level = options.deflate_level
            self._begin(Stage.DEFLATE, Deflate(level))
            self._check_ok((yield))
        if facts.get("auth_required"):
            self.stage = Stage.AUTH
            self._authorize()
            self.authorization = _facts((yield))
        self.stage = Stage.READY
        # nsqd may have sent more in the same chunk as its last answer.
        rest, self.receiver = self._take_rest(), Receiver(self._frame_bytes_max)
        self.receiver.feed(rest)
        self.is_plain = not self.layers

    def _begin(self, stage: Stage, layer: Tls | Compression) -> None:
        self.stage = stage
        self.layers.add(layer, self._take_rest())

    def _check_ok(self, answer: bytes) -> None:
        if answer != b"OK":
            raise WrongPeerError(
                f"nsqd {self._address} answered {answer[:80]!r} instead of OK ({self.stage})"
            )

    def _answer(self) -> bytes | None:
        """Return the next response, or None; AUTH may take long, so heartbeats are answered."""
        while True:
            for kind, data in self.receiver.frames():
                if kind == FRAME_ERROR:
                    raise remote_error(data)
                if kind != FRAME_RESPONSE:
                    raise FrameError(f"got a frame of type {kind} instead of a response")
                if data != HEARTBEAT:
                    return data
                self._send(commands.nop())
            if not (data := self.layers.read() if self.layers else self._arrived):
                return None
            self._arrived = b""
            self.receiver.feed(data)

    def _new_tls(self) -> Tls:
        address = self._address
        if not self.facts.get("tls_v1"):
            raise TlsError(f"nsqd {address} does not offer TLS, which the option tls_v1 requires")
        # A unix socket has no host name to check a certificate against.
        host = None if address.startswith("/") else address.rpartition(":")[0].strip("[]")
        try:
            context = self._options.tls_context(check_host=host is not None)
        except ValueError as error:  # a file was deleted after the options had been checked
            raise TlsError(f"TLS with nsqd {address} is not possible: {error}") from None
        return Tls(context, host)

    def _authorize(self) -> None:
        secret = self._options.auth_secret
        if not secret:
            raise AuthRequiredError(
                f"nsqd {self._address} requires AUTH: set the option auth_secret"
            )
        is_local = self._address.startswith("/")
        if not (self.layers.tls or is_local or self._options.auth_without_tls):
            raise AuthRequiredError(
                f"nsqd {self._address} requires AUTH, and without TLS the secret is not sent: set "
                "the option tls_v1, or auth_without_tls to send it in plain text"
            )
        self._send(commands.auth(secret.encode()))

    def _send(self, command: bytes) -> None:
        self._out.append(self.layers.seal((command,)))

    def _take_rest(self) -> bytes:
        """Return the input after the last answer, without bytes that the layers still hold."""
        rest, self._arrived = self.receiver.take_rest() + self._arrived, b""
        return rest


def _facts(answer: bytes) -> dict[str, Any]:
    """Parse an answer: a JSON object, or OK from an nsqd that does not negotiate."""
    if answer == b"OK":
        return {}
    try:
        facts = json.loads(answer)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise WrongPeerError(f"answered {answer[:80]!r} instead of a JSON object")
    return facts


# Recognize a peer that is not an nsqd's TCP port, by its first bytes. NSQ's daemons have several
# ports, which are easily confused. By default they are 4150 and 4151 (nsqd: TCP, HTTP), 4160 and
# 4161 (nsqlookupd: TCP, HTTP) and 4171 (nsqadmin).

HTTP: Final = b"HTTP/"
TLS_ALERT: Final = b"\x15\x03"
LOOKUPD_REFUSAL: Final = b"\x00\x00\x00\x0eE_BAD_PROTOCOL"
"""nsqlookupd's answer to a wrong protocol; its answers have a size but no frame type."""

HEAD_BYTES: Final = len(LOOKUPD_REFUSAL)
"""Number of first bytes that are enough to recognize a peer."""

_HTTP_PORTS: Final = {
    "4151": "this is nsqd's HTTP port, use its TCP port (4150 by default)",
    "4161": "this is nsqlookupd's HTTP port, use it as lookupd-http-address",
    "4171": "this is nsqadmin's port, use nsqd's TCP port (4150 by default)",
}
_ANY_HTTP_PORT: Final = (
    "use nsqd's TCP port (4150 by default), or lookupd-http-address for an nsqlookupd"
)


def not_nsqd(address: str, head: bytes) -> str:
    """Describe a peer by its first bytes, as the end of a sentence; "": not recognized."""
    if head.startswith(HTTP):
        port = address.rpartition(":")[2]
        return f"it speaks HTTP: {_HTTP_PORTS.get(port, _ANY_HTTP_PORT)}"
    if head.startswith(LOOKUPD_REFUSAL):
        return (
            "it is nsqlookupd's TCP port, which is for nsqds:"
            " use its HTTP port (4161 by default) as lookupd-http-address"
        )
    if head.startswith(TLS_ALERT):
        return "it expects TLS from the first byte, unlike an nsqd's TCP port"
    return ""
