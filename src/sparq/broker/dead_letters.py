"""The topics of messages that came back too often, and the form of what is in them.

1. The dead-letter topic has the topic's name with `.dead` at its end, cut if it must be. What is in
   such a topic is delivered as often as it takes: there is no dead-letter topic of another one.
2. In the log a letter is an envelope (`protocol.envelope`): its history, and the body. So they are
   kept, and go, together. A consumer is given the body alone, unless it asks for envelopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from sparq.log.block import Block
from sparq.protocol import envelope
from sparq.protocol.layout import FRAME_OVERHEAD
from sparq.protocol.names import EPHEMERAL_SUFFIX, NAME_SIZE_MAX, is_ephemeral

DEAD: Final = ".dead"
_SIZE_BYTES: Final = 4

BURIAL: Final = 1
"""Who has what is on its way to or from a dead-letter topic (see `letters`): no session."""

MARK: Final = "dead_letter"
"""The field that makes an envelope a dead letter's; its value is the version of the fields."""


def is_dead_letter_topic(name: str) -> bool:
    """Whether a topic has dead letters, by its name."""
    return name.removesuffix(EPHEMERAL_SUFFIX).endswith(DEAD)


def dead_letter_topic(name: str) -> str:
    """The name of a topic's dead-letter topic."""
    suffix = DEAD + (EPHEMERAL_SUFFIX if is_ephemeral(name) else "")
    return name.removesuffix(EPHEMERAL_SUFFIX)[: NAME_SIZE_MAX - len(suffix)] + suffix


def unseal(body: bytes) -> tuple[Mapping[str, str], bytes]:
    """A letter's history and its body; ({}, all of it) where this is none."""
    fields, inner = envelope.unseal(body)
    return (fields, inner) if MARK in fields else ({}, body)


def opened(block: Block) -> Block:
    """A block of a dead-letter topic with bodies alone, as consumers are given them."""
    frames = bytes(block.frames)
    if envelope.MAGIC not in frames:
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
