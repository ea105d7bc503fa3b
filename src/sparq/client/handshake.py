"""How a connection to nsqd begins: IDENTIFY, TLS, compression, AUTH. Bytes in, bytes out.

```
IDENTIFY ──▶ JSON ──▶ [TLS handshake ──▶ OK] ──▶ [compression ──▶ OK] ──▶ [AUTH ──▶ JSON] ──▶ done
 in clear             inside TLS                 inside both
```
1. Nothing is sent ahead of its answer. What stands behind an answer in the same bytes belongs to
   the next layer: nothing that came in clear is taken for what came by TLS.
2. TLS that was asked for and is not granted is an error; compression is done without.
3. A secret is sent to an nsqd that asks for AUTH, to no other, and after the upgrades.
4. A size is checked before anything is kept for it: an answer has `ANSWER_BYTES_MAX` at most.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any, Final

from sparq.client.address import Address
from sparq.client.errors import AuthRequiredError, TlsError, WrongPeerError
from sparq.client.layer_options import LayerOptions
from sparq.client.layers import LayerError, Layers, Tls
from sparq.client.refusals import RefusedError
from sparq.client.wrong_peer import HEAD_BYTES, not_nsqd
from sparq.protocol import commands
from sparq.protocol.compression import Compression, Deflate, Snappy
from sparq.protocol.errors import ERRORS
from sparq.protocol.layout import FRAME_ERROR, FRAME_RESPONSE
from sparq.protocol.receiver import FrameError, Receiver

ANSWER_BYTES_MAX: Final = 64 << 10
DEFLATE_LEVEL_MAX: Final = 9
HEARTBEAT: Final = b"_heartbeat_"

Steps = Generator[None, None, None]
"""Waits, at each ``yield``, until more has arrived."""


def remote_error(text: bytes) -> RefusedError:
    """The error that an error frame tells; a code that is not known counts as fatal."""
    code, _, rest = text.decode("utf-8", "replace").partition(" ")
    kind = ERRORS.get(code)
    return RefusedError(code, rest, fatal=kind is None or kind.fatal)


class Handshake:
    """The beginning of one connection.

    Attributes:
        done: the connection is ready for commands.
        stage: what is going on, for error texts.
        facts: what nsqd answered to IDENTIFY; ``{}`` from one that does not negotiate.
        authorization: what nsqd answered to AUTH; ``{}`` without AUTH.
        layers: through what everything goes from now on.
    """

    def __init__(
        self,
        address: Address,
        options: LayerOptions,
        identity: Mapping[str, Any],
        frame_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self.done = False
        self.stage = "IDENTIFY"
        self.facts: dict[str, Any] = {}
        self.authorization: dict[str, Any] = {}
        self.layers = Layers()
        self._address = address
        self._options = options
        self._identity = {**identity, **options.asked()}
        self._receiver = Receiver(min(frame_bytes_max, ANSWER_BYTES_MAX))
        self._arrived = b""
        self._head = b""
        self._out: list[bytes] = []
        self._steps = self._conversation()
        next(self._steps)

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the socket; ``output`` may have something to say to them.

        Raises:
            RemoteError: nsqd refuses.
            TlsError, AuthRequiredError, WrongPeerError: see there.
        """
        if len(self._head) < HEAD_BYTES:
            self._head += data[:HEAD_BYTES]
        if self.layers:
            self.layers.feed(data)
        else:
            self._arrived += data
        try:
            next(self._steps, None)
        except FrameError as error:
            what = not_nsqd(self._address.port, self._head) or error
            raise WrongPeerError(f"nsqd {self._address}: {what}") from None
        except LayerError as error:
            raise WrongPeerError(f"nsqd {self._address}: {self.stage}: {error}") from None

    def output(self) -> bytes:
        """What is to be sent now, also after an error; empty when there is nothing."""
        out, self._out = self._out, []
        return b"".join(out) + self.layers.output()

    def take_rest(self) -> bytes:
        """Plain bytes that came behind the last answer; what the layers still hold is not here."""
        rest, self._arrived = self._receiver.take_rest() + self._arrived, b""
        return rest

    # The conversation

    def _conversation(self) -> Steps:
        self._send(commands.MAGIC_V2 + commands.identify(json.dumps(self._identity).encode()))
        self.facts = _facts((yield from self._answer()))
        if self._options.tls_v1:
            yield from self._start_tls()
        compression = self._agreed_compression()
        if compression is not None:
            self.stage = "snappy" if isinstance(compression, Snappy) else "deflate"
            compression.feed(self.take_rest())
            self.layers.compression = compression
            yield from self._ok()
        if self.facts.get("auth_required"):
            yield from self._authorize()
        self.done = True

    def _start_tls(self) -> Steps:
        self.stage = "TLS"
        address = self._address
        if not self.facts.get("tls_v1"):
            raise TlsError(f"nsqd {address} does not offer TLS, which the option tls_v1 asks for")
        self.layers.tls = tls = self._new_tls()
        tls.feed(self.take_rest())
        try:
            while not tls.shake_hands():
                yield
            # An nsqd that does not trust us says so only now, when it speaks TLS 1.3.
            yield from self._ok()
        except LayerError as error:
            raise TlsError(
                f"TLS with nsqd {address} failed: {error} "
                "(see the options tls_root_ca_file, tls_cert, tls_min_version)"
            ) from None

    def _new_tls(self) -> Tls:
        host = None if self._address.is_path else self._address.host
        try:
            context = self._options.tls_context(check_host=host is not None)
        except ValueError as error:  # a file is gone that was there when the options were made
            raise TlsError(f"TLS with nsqd {self._address} is not possible: {error}") from None
        return Tls(context, host)

    def _agreed_compression(self) -> Compression | None:
        """What was asked for and is granted."""
        if self._options.snappy and self.facts.get("snappy"):
            return Snappy()
        if self._options.deflate and self.facts.get("deflate"):
            level = self.facts.get("deflate_level")
            known = isinstance(level, int) and 1 <= level <= DEFLATE_LEVEL_MAX
            return Deflate(level if known and level else self._options.deflate_level)
        return None

    def _authorize(self) -> Steps:
        self.stage = "AUTH"
        secret = self._options.auth_secret
        if not secret:
            raise AuthRequiredError(
                f"nsqd {self._address} asks for AUTH: the option auth_secret is needed"
            )
        self._send(commands.auth(secret.encode()))
        self.authorization = _facts((yield from self._answer()))

    # Frames

    def _send(self, command: bytes) -> None:
        self._out.append(self.layers.seal((command,)) if self.layers else command)

    def _ok(self) -> Steps:
        answer = yield from self._answer()
        if answer != b"OK":
            raise WrongPeerError(
                f"nsqd {self._address} answered {answer[:80]!r} where OK was due ({self.stage})"
            )

    def _answer(self) -> Generator[None, None, bytes]:
        """The next response; a heartbeat before it is answered, as AUTH may take its time."""
        while True:
            for kind, data in self._receiver.frames():
                if kind == FRAME_ERROR:
                    raise remote_error(data)
                if kind != FRAME_RESPONSE:
                    raise FrameError(f"a frame of type {kind} where a response was due")
                if data != HEARTBEAT:
                    return data
                self._send(commands.nop())
            yield from self._more()

    def _more(self) -> Steps:
        """Gives the receiver more plain bytes, once there are any."""
        while not (data := self._plain()):
            yield
        self._receiver.feed(data)

    def _plain(self) -> bytes:
        if self.layers:
            return self.layers.read()
        data, self._arrived = self._arrived, b""
        return data


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
