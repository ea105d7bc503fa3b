"""An nsqd on a unix socket, on IPv6 or with TLS; `NsqdServer` assumes a port on 127.0.0.1."""

import contextlib
import http.client
from pathlib import Path

from tests.support.servers import NsqdServer


def tls_flags(cert: Path) -> tuple[str, ...]:
    """The flags that make nsqd offer TLS."""
    return (f"--tls-cert={cert}", f"--tls-key={cert}", "--https-address=127.0.0.1:0")


class NsqdOnAnyAddress(NsqdServer):
    """An nsqd that is pinged at its own HTTP address, not at a port on 127.0.0.1."""

    def answers(self) -> bool:
        """Whether it answers ``/ping``."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/ping")[0] == 200
        return False
