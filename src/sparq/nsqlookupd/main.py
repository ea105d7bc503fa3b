"""The program `nsqlookupd`: command line and listening sockets."""

from __future__ import annotations

from collections.abc import Sequence

from sparq.daemon import address, start
from sparq.nsqlookupd.options import NsqlookupdOptions


def listen(options: NsqlookupdOptions) -> list[address.Listener]:
    """Open both listeners, TCP and HTTP.

    Raises:
        ListenError: an address cannot be bound; no listener stays open.
    """
    tcp = address.listen(options.tcp_address)
    try:
        return [tcp, address.listen(options.http_address)]
    except address.ListenError:
        tcp.close()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    return start.main("nsqlookupd", NsqlookupdOptions, listen, "sparq.nsqlookupd.server", arguments)
