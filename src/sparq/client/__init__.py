"""The client: consume from and publish to NSQ, with asyncio.

``Consumer`` and ``Producer`` keep connections to every nsqd that is given or found through
nsqlookupd; both work with Go's nsqd and with sparq's. This room imports ``sparq.protocol`` only.
"""

from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.client.errors import (
    AlreadyRespondedError,
    ClosedError,
    ConnectionLostError,
    PublishError,
    SparqClientError,
    WrongPeerError,
)
from sparq.client.message import Message
from sparq.client.producer import Producer, Receipt
from sparq.protocol.errors import RemoteError

__all__ = [
    "Consumer",
    "Producer",
    "Message",
    "Receipt",
    "Config",
    "RemoteError",
    "SparqClientError",
    "ConnectionLostError",
    "WrongPeerError",
    "PublishError",
    "ClosedError",
    "AlreadyRespondedError",
]
