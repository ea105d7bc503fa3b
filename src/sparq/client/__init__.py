"""The client: consume from and publish to NSQ, with asyncio.

``Consumer`` and ``Producer`` stay connected to every nsqd that is given or found through
nsqlookupd; both work with Go's nsqd and with sparq's. This package imports only ``sparq.wire`` and
``sparq.protocol``.

Classes that need an event loop and aiohttp are loaded on first use. Spark starts many short-lived
Python processes that need only the plain sockets in this package; loading the rest would cost each
of them a third of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sparq.client.config import Config
from sparq.client.errors import (
    AlreadyRespondedError,
    AuthRequiredError,
    ClosedError,
    ConnectionLostError,
    ProducerFullError,
    PublishError,
    SparqClientError,
    TlsError,
    WrongPeerError,
)
from sparq.protocol.errors import RemoteError
from sparq.wire.errors import RefusedError

if TYPE_CHECKING:
    from sparq.client.blocking.consumer import BlockingBatch, BlockingConsumer
    from sparq.client.blocking.producer import BlockingProducer
    from sparq.client.blocking.session import Session
    from sparq.client.consumer import Consumer
    from sparq.client.message import Message
    from sparq.client.producer import Producer, Receipt
    from sparq.client.subscription import Batch, Counters

__all__ = [
    "Consumer",
    "Producer",
    "Message",
    "Batch",
    "Counters",
    "Receipt",
    "Config",
    "Session",
    "BlockingConsumer",
    "BlockingProducer",
    "BlockingBatch",
    "RemoteError",
    "RefusedError",
    "SparqClientError",
    "ConnectionLostError",
    "WrongPeerError",
    "TlsError",
    "AuthRequiredError",
    "PublishError",
    "ProducerFullError",
    "ClosedError",
    "AlreadyRespondedError",
]

_ON_DEMAND: Final = {
    "Batch": "sparq.client.subscription",
    "BlockingBatch": "sparq.client.blocking.consumer",
    "BlockingConsumer": "sparq.client.blocking.consumer",
    "BlockingProducer": "sparq.client.blocking.producer",
    "Consumer": "sparq.client.consumer",
    "Counters": "sparq.client.subscription",
    "Message": "sparq.client.message",
    "Producer": "sparq.client.producer",
    "Receipt": "sparq.client.producer",
    "Session": "sparq.client.blocking.session",
}


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name of this module

    def __getattr__(name: str) -> Any:
        """Load a class that needs an event loop on first use."""
        if name not in _ON_DEMAND:
            raise AttributeError(f"module {__name__} has no attribute {name}")
        value = globals()[name] = getattr(import_module(_ON_DEMAND[name]), name)
        return value
