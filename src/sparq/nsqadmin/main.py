"""The program `nsqadmin`: its command line and its listening socket."""

from __future__ import annotations

from collections.abc import Sequence

from sparq.daemon import address, start
from sparq.nsqadmin.options import NsqadminOptions, check


def listen(options: NsqadminOptions) -> address.Listener:
    """Check the options and open the listener. Raises StartError if either fails."""
    check(options)
    return address.listen(options.http_address)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    return start.main("nsqadmin", NsqadminOptions, listen, "sparq.nsqadmin.server", arguments)
