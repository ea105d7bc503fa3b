"""A message's body as a reader can take it in: JSON laid out, text as it is, bytes as hex. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

LINE_CHARACTERS: Final = 160
HEX_BYTES_MAX: Final = 4096
_ROW = 16


class Body(NamedTuple):
    """A body: what it is (`JSON`, `text`, `bytes`, or why there is none), and its text."""

    kind: str
    text: str


def line(message: Mapping[str, Any]) -> str:
    """The beginning of a body, in one line for a list; "" where bodies are not shown."""
    if "body" not in message:
        return ""
    if message.get("encoding") == "base64":
        return _decoded(message)[: LINE_CHARACTERS // 4].hex(" ")
    return " ".join(str(message["body"])[: 2 * LINE_CHARACTERS].split())[:LINE_CHARACTERS]


def whole(message: Mapping[str, Any]) -> Body:
    """A body, as far as the node has told it."""
    if "body" not in message:
        return Body("not shown", "")
    if message.get("encoding") == "base64":
        return Body("bytes", hexdump(_decoded(message)))
    text = str(message["body"])
    if text[:1] in ("{", "[") and not message.get("cut"):
        try:
            return Body("JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False))
        except (ValueError, RecursionError):
            pass  # then it is a text that begins like JSON
    return Body("text", text)


def hexdump(data: bytes) -> str:
    """Lines of an offset, 16 bytes in hex, and the same as ASCII."""
    rows = [
        f"{at:06x}  {data[at : at + _ROW].hex(' '):<47}  {_ascii(data[at : at + _ROW])}"
        for at in range(0, min(len(data), HEX_BYTES_MAX), _ROW)
    ]
    left = len(data) - HEX_BYTES_MAX
    return "\n".join([*rows, f"and {left:,} bytes more"] if left > 0 else rows)


def _decoded(message: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(str(message["body"]))
    except binascii.Error:
        return b""


def _ascii(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


FILTERS: Final[dict[str, Any]] = {"body_line": line}
