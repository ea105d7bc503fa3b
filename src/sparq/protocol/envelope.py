"""The envelope: header fields in front of a message's body.

NSQ's messages have no headers. A producer that opts in (`telemetry`) puts fields before the body::

    offset  size  field
    0       6     0x00 "sparq"
    6       1     version, 1
    7       2     size of the fields, n, big-endian
    9       n     fields: a JSON object with string values, UTF-8
    9 + n         body

1. Every consumer of the topic receives the envelope; a consumer that does not open it sees it as
   part of the body.
2. Data that is not a valid envelope, up to the last byte of its fields, is a plain body and is
   returned unchanged.
3. Fields larger than ``FIELDS_BYTES_MAX`` are dropped and the body is sent alone: the message
   matters more than its fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

# It begins with NUL: text and JSON contain none, so they are never taken for an envelope.
MAGIC: Final = b"\0sparq\x01"
HEAD_BYTES: Final = len(MAGIC) + 2
FIELDS_BYTES_MAX: Final = 8 << 10
ENVELOPE_BYTES_MAX: Final = HEAD_BYTES + FIELDS_BYTES_MAX


def seal(fields: Mapping[str, str], body: bytes) -> bytes:
    """Put the body and its fields in an envelope.

    The body is returned as it is if it is empty, if there are no fields, or if they are too large.
    """
    text = json.dumps(dict(fields), separators=(",", ":")).encode()
    # An empty body stays empty, so that nsqd refuses it as in NSQ.
    if not body or not fields or len(text) > FIELDS_BYTES_MAX:
        return body
    return b"".join((MAGIC, len(text).to_bytes(2, "big"), text, body))


def unseal(data: bytes) -> tuple[dict[str, str], bytes]:
    """The fields and the body; ``{}`` and `data` itself if it is not an envelope."""
    if not data.startswith(MAGIC) or len(data) < HEAD_BYTES:
        return {}, data
    end = HEAD_BYTES + int.from_bytes(data[len(MAGIC) : HEAD_BYTES], "big")
    if not HEAD_BYTES < end <= min(len(data), ENVELOPE_BYTES_MAX):
        return {}, data
    try:
        fields = json.loads(data[HEAD_BYTES:end])
    except (ValueError, RecursionError):
        return {}, data
    if not isinstance(fields, dict) or not all(isinstance(each, str) for each in fields.values()):
        return {}, data
    return fields, data[end:]
