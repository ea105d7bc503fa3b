"""HTTP for Prometheus: `GET /metrics` on an address of choice.

It answers with the metrics of the queries and of this process. It has no authentication, so it
listens on loopback unless it is given another address.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import start_http_server
from prometheus_client.registry import Collector

from sparq.daemon.address import join, split
from sparq.daemon.exposition import process_registry
from sparq.program.mistakes import Mistake

DEFAULT_ADDRESS: Final = "127.0.0.1:4180"


class MetricsAddressError(Mistake):
    """Nothing can listen on the address; the text names the option, the address and the reason."""


class MetricsServer:
    """Serves figures until it is closed.

    Args:
        figures: what to show.
        address: `host:port`; port 0 takes any free one.
        option: what the address is called by who gives it, for errors.
    Raises:
        MetricsAddressError: it is not an address, or nothing can listen there.
    """

    def __init__(
        self, figures: Collector, address: str = DEFAULT_ADDRESS, option: str = "--metrics-address"
    ) -> None:
        place = split(address)
        if place is None or not place[0]:
            raise MetricsAddressError(
                f"{option}: expected host:port, such as {DEFAULT_ADDRESS}, not {address!r}"
            )
        registry = process_registry()
        registry.register(figures)
        try:
            self._server, self._thread = start_http_server(place[1], place[0], registry)
        except OSError as error:
            reason = error.strerror or str(error)
            raise MetricsAddressError(f"{option}: cannot listen on {address}: {reason}") from error
        self.address = join(place[0], self._server.server_port)

    @property
    def url(self) -> str:
        """Where the figures are."""
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
