"""Malformed commands of NSQ's protocol V1, and the exact error before the connection ends.

The errors are those of docs/protocol.md, "V1: nsqd and nsqlookupd". A row has the bytes sent after
the magic bytes, and the text of the last answer.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from sparq.nsqlookupd.tcp import IDENTIFY_BYTES_MAX

PEER = {"broadcast_address": "a", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}


def identify(fields: Any) -> bytes:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


HELLO = identify(PEER)

MISTAKES: list[tuple[bytes, bytes]] = [
    (b"\n", b"E_INVALID invalid command "),
    (b"NOP\n", b"E_INVALID invalid command NOP"),
    (b"ping\n", b"E_INVALID invalid command ping"),
    (b"\xff\xfe x\n", b"E_INVALID invalid command \xff\xfe"),
    (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
    (b"UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
    (HELLO + HELLO, b"E_INVALID cannot IDENTIFY again"),
    (HELLO + b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
    (HELLO + b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
    (HELLO + b"REGISTER  c\n", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
    (HELLO + b"REGISTER a*\n", b"E_BAD_TOPIC REGISTER topic name 'a*' is not valid"),
    (HELLO + b"REGISTER \xff\n", b"E_BAD_TOPIC REGISTER topic name '\xff' is not valid"),
    (HELLO + b"UNREGISTER t c*\n", b"E_BAD_CHANNEL UNREGISTER channel name 'c*' is not valid"),
    (
        HELLO + b"REGISTER t " + b"c" * 65 + b"\n",
        b"E_BAD_CHANNEL REGISTER channel name '" + b"c" * 65 + b"' is not valid",
    ),
    (b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY failed to read body"),
    (b"IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY failed to read body"),
    (identify(b""), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(b"\xff"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(b"[" * IDENTIFY_BYTES_MAX), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify([]), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(PEER | {"tcp_port": "1"}), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(PEER | {"tcp_port": True}), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(PEER | {"tcp_port": 1 << 63}), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(PEER | {"hostname": 1}), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(PEER | {"tcp_port": 0}), b"E_BAD_BODY IDENTIFY missing fields"),
    (identify(PEER | {"version": ""}), b"E_BAD_BODY IDENTIFY missing fields"),
    (identify(PEER | {"broadcast_address": None}), b"E_BAD_BODY IDENTIFY missing fields"),
    (identify({}), b"E_BAD_BODY IDENTIFY missing fields"),
    (identify(None), b"E_BAD_BODY IDENTIFY missing fields"),
]
