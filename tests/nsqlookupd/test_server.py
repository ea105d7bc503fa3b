"""An nsqlookupd object with real sockets: start, reload and stop."""

import pytest

from sparq.daemon.address import ListenError
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd


def options(
    tcp_address: str = "127.0.0.1:0", http_address: str = "127.0.0.1:0"
) -> NsqlookupdOptions:
    return NsqlookupdOptions(tcp_address=tcp_address, http_address=http_address)


async def test_a_failed_start_leaves_nothing_open() -> None:
    """If the HTTP port is in use, the start raises ListenError and closes its TCP port."""
    first = Nsqlookupd(options())
    await first.start()
    where = f"127.0.0.1:{first.tcp_port}"
    with pytest.raises(ListenError):
        await Nsqlookupd(options("127.0.0.1:0", where)).start()
    await first.stop()

    again = Nsqlookupd(options(where))
    await again.start()
    await again.stop()
