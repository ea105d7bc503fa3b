"""The envelope: fields that travel with a message, in front of its body.

NSQ's messages have no headers. Who asks for it (`telemetry`) puts some in front of the body::

    offset  size  what
    0       6     0x00 "sparq"
    6       1     the version, 1
    7       2     the size of the fields, n, big-endian
    9       n     the fields: a JSON object whose values are texts, UTF-8
    9 + n         the body

1. Every consumer of the topic gets the envelope; one that does not open it has it in its body.
2. What is no envelope, to the last byte of its fields, is a body, and stays as it is.
3. Fields beyond ``FIELDS_BYTES_MAX`` are left out: a message is worth more than its fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

MAGIC: Final = b"\0sparq\x01"
HEAD_BYTES: Final = len(MAGIC) + 2
FIELDS_BYTES_MAX: Final = 8 << 10
ENVELOPE_BYTES_MAX: Final = HEAD_BYTES + FIELDS_BYTES_MAX


def seal(fields: Mapping[str, str], body: bytes) -> bytes:
    """The body in an envelope; as it is where it is empty, or the fields are none or too many."""
    text = json.dumps(dict(fields), separators=(",", ":")).encode()
    if not body or not fields or len(text) > FIELDS_BYTES_MAX:
        return body
    return b"".join((MAGIC, len(text).to_bytes(2, "big"), text, body))


def unseal(data: bytes) -> tuple[dict[str, str], bytes]:
    """The fields and the body; ``{}`` and all of it where this is no envelope."""
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
