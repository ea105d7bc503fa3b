"""The wire layout of one frame and one message, and its constants.

A frame is ``i32 size | i32 type | data`` with size = 4 + len(data). A message frame::

    offset  size  field (big-endian)
         0     4  size = 30 + len(body)
         4     4  type = 2
         8     8  timestamp_ns, when nsqd received the message, ns since 1970
        16     2  attempts, 1 at the first delivery
        18    16  message id: the hex digits of (node id << 54) | index
        34     -  body

Nothing here needs numpy: programs that only send commands, or only print their help, start without
it. ``frames`` encodes and decodes runs of messages in batches.
"""

import struct
from typing import Final

FRAME_RESPONSE: Final = 0
FRAME_ERROR: Final = 1
FRAME_MESSAGE: Final = 2
FRAME_RANGE: Final = 3
"""An extension of sparq, used only in the reply to READ."""

FRAME_HEADER_SIZE: Final = 8
MESSAGE_HEADER_SIZE: Final = 26
FRAME_OVERHEAD: Final = 34
ATTEMPTS_OFFSET: Final = 16
ID_OFFSET: Final = 18
ID_SIZE: Final = 16
ATTEMPTS_MAX: Final = 65_535

# Together 64 bits: an id is 16 hex digits, as in NSQ.
INDEX_BITS: Final = 54
INDEX_LIMIT: Final = (1 << INDEX_BITS) - 1
"""Indexes are below this: the last one is never assigned, so no message has ``INVALID_ID``."""
NODE_LIMIT: Final = 1 << 10
INVALID_ID: Final = (1 << 64) - 1

Buffer = bytes | bytearray | memoryview

_FRAME: Final = struct.Struct(">ii")


def frame(frame_type: int, data: Buffer) -> bytes:
    """One frame of any type."""
    return _FRAME.pack(4 + len(data), frame_type) + data


def response(data: Buffer) -> bytes:
    """A response frame."""
    return frame(FRAME_RESPONSE, data)


def error(text: bytes) -> bytes:
    """An error frame; `text` is the result of ``RemoteError.frame_text``."""
    return frame(FRAME_ERROR, text)


OK: Final = response(b"OK")
CLOSE_WAIT: Final = response(b"CLOSE_WAIT")
HEARTBEAT: Final = response(b"_heartbeat_")
