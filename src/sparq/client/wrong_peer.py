"""What a peer speaks that was thought to be an nsqd, told from the first bytes it sends.

Each daemon of NSQ has several ports, and one is easily taken for another. By default they are
4150 and 4151 (nsqd: TCP, HTTP), 4160 and 4161 (nsqlookupd: TCP, HTTP) and 4171 (nsqadmin).
"""

from __future__ import annotations

from typing import Final

HTTP: Final = b"HTTP/"
TLS_ALERT: Final = b"\x15\x03"
LOOKUPD_REFUSAL: Final = b"\x00\x00\x00\x0eE_BAD_PROTOCOL"
"""nsqlookupd's answers have a size and no type."""

HEAD_BYTES: Final = len(LOOKUPD_REFUSAL)
"""So many bytes are enough to tell."""

_HTTP_PORTS: Final = {
    4151: "this is nsqd's HTTP port, give its TCP port (4150 by default)",
    4161: "this is nsqlookupd's HTTP port, give it as such (lookupd-http-address)",
    4171: "this is nsqadmin's port, give nsqd's TCP port (4150 by default)",
}
_ANY_HTTP_PORT: Final = "give nsqd's TCP port here (4150 by default), or an nsqlookupd as such"


def not_nsqd(port: int, head: bytes) -> str:
    """What begins with these bytes, as the end of a sentence; "" when that is not known."""
    if head.startswith(HTTP):
        return f"it speaks HTTP: {_HTTP_PORTS.get(port, _ANY_HTTP_PORT)}"
    if head.startswith(LOOKUPD_REFUSAL):
        return (
            "it is nsqlookupd's TCP port, which is for nsqds:"
            " give nsqlookupd's HTTP port as such (4161 by default)"
        )
    if head.startswith(TLS_ALERT):
        return "it speaks TLS from the first byte on, which no TCP port of an nsqd does"
    return ""


def not_http(text: str) -> str:
    """What has answered a question over HTTP with bytes of which an error quotes the first."""
    if "E_BAD_PROTOCOL" in text:
        return (
            "it speaks NSQ's TCP protocol: give the HTTP port (by default nsqd's is 4151,"
            " nsqlookupd's 4161)"
        )
    return "an answer that is not HTTP: is this the port for HTTP?"
