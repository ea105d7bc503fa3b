"""Dead letters as consumers receive them: only the body, unless they ask for envelopes."""

from __future__ import annotations

from typing import Final

import numpy as np

from sparq.log.block import Block
from sparq.protocol.dead_letters import unseal
from sparq.protocol.envelope import MAGIC
from sparq.protocol.layout import FRAME_OVERHEAD

BURIAL: Final = 1
"""Owner of messages on their way to or from a dead-letter topic (see `letters`): no session."""

_SIZE_BYTES: Final = 4


def opened(block: Block) -> Block:
    """Return a block of a dead-letter topic with the bodies taken out of their envelopes."""
    frames = bytes(block.frames)
    if MAGIC not in frames:
        return block
    parts: list[bytes] = []
    start = 0
    for end in block.ends.tolist():
        frame = frames[start:end]
        fields, body = unseal(frame[FRAME_OVERHEAD:])
        if fields:
            size = FRAME_OVERHEAD - _SIZE_BYTES + len(body)
            frame = size.to_bytes(_SIZE_BYTES, "big") + frame[_SIZE_BYTES:FRAME_OVERHEAD] + body
        parts.append(frame)
        start = end
    ends = np.cumsum([len(part) for part in parts], dtype=np.uint32)
    return Block(block.first, block.count, ends, b"".join(parts), block.ordinal)
