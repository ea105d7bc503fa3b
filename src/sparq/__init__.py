"""sparq: NSQ in Python, which picks up where NSQ leaves off.

Scripts and notebooks start with ``sparq.connect``; programs that run an event loop use
``sparq.client``. Importing this package loads nothing else: other modules load on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparq.client.blocking.session import Session
    from sparq.client.config import Config

__all__ = ["connect"]

__version__ = "0.1.0"
"""As in pyproject.toml. Reading it from the installed package took 43 ms of each start."""


def connect(
    nsqd_tcp_addresses: str | Iterable[str] = (),
    *,
    lookupd_http_addresses: str | Iterable[str] = (),
    config: Config | None = None,
    **options: Any,
) -> Session:
    """Return a session, which makes producers and consumers for programs without an event loop.

    ::

        with sparq.connect("127.0.0.1:4150") as session:
            session.producer().publish("clicks", b"...")

    Args:
        nsqd_tcp_addresses: nsqds, each as ``host:port`` or the path of a unix socket; a list, or
            one string with commas.
        lookupd_http_addresses: nsqlookupds to find nsqds with, each as ``host:port`` or URL.
        config: base options.
        **options: options of ``sparq.client.Config``; they override those in ``config``.

    Raises:
        ValueError: an address or an option is not valid, or no address is given.
        TypeError: an option does not exist or has the wrong type.
        RuntimeError: a library such as gevent has replaced Python's threads.
    """
    session: type[Session] = import_module("sparq.client.blocking.session").Session
    return session(
        nsqd_tcp_addresses, lookupd_http_addresses=lookupd_http_addresses, config=config, **options
    )
