"""What can be changed while nsqd runs: log level, nsqlookupds, TLS certificates, policies.

SIGHUP changes them from the configuration file, `/config` over HTTP (docs/http.md) the first two.

1. `nsqd.options` always has what is in force; all else there stays as it was at the start.
2. Each change is whole or not at all: bad certificates leave the old ones, and the rest goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sparq.daemon import reload as hangup
from sparq.daemon import token
from sparq.nsqd import policy_document
from sparq.nsqd.policy_document import DocumentError
from sparq.program import logging as log_lines
from sparq.program.flags import replaced
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from sparq.nsqd.lookup_peers import LookupPeers
    from sparq.nsqd.options import Options
    from sparq.nsqd.server import Nsqd

logger = logging.getLogger(__name__)


class Reloader:
    """Changes a running nsqd.

    Attributes:
        load_certificates: has new TLS handshakes use the files that the options name, as they are
            now; raises StartError if they cannot be used. None: nsqd was started without TLS.
    """

    def __init__(self, nsqd: Nsqd, peers: LookupPeers, read: Callable[[], Options]) -> None:
        """`read` makes the options anew from the command line and its file (flags.parse_again)."""
        self.load_certificates: Callable[[Options], None] | None = None
        self._nsqd = nsqd
        self._peers = peers
        self._read = read

    def set_log_level(self, level: int) -> None:
        """Log from this level (one of Python's, program.logging.LEVELS) upwards."""
        log_lines.set_level(level)
        self._nsqd.options = replaced(self._nsqd.options, {"log.level": level})

    def set_lookupd_addresses(self, addresses: Iterable[str]) -> None:
        """Be registered with these nsqlookupds and no others."""
        wanted = tuple(addresses)
        self._peers.set_addresses(wanted)
        self._nsqd.options = replaced(self._nsqd.options, {"lookupd.tcp_addresses": wanted})

    def reload(self) -> None:
        """SIGHUP: make true what the configuration file says now."""
        wanted = None if self._nsqd.exiting else hangup.read_again(self._read)
        if wanted is None:
            return
        live = ("log", "lookupds", *self._take_certificates(wanted), *self._take_policies(wanted))
        live += self._take_lookupd_token(wanted)
        self._take_tokens()
        self._nsqd.options = hangup.take(self._nsqd.options, wanted, live)
        self._peers.set_addresses(wanted.lookupd.tcp_addresses)

    def _take_tokens(self) -> None:
        """Have the tokens of the file count, for clients that are connected, too."""
        access, authenticator = self._nsqd.access, self._nsqd.clients.authenticator
        if access is not None and access.reload() and authenticator is not None:
            authenticator.review()

    def _take_lookupd_token(self, wanted: Options) -> tuple[str, ...]:
        """Show nsqlookupds another token from the next connection on."""
        try:
            found = token.resolve(wanted.lookupd.token, "--lookupd-token")
        except StartError as error:
            logger.error("SIGHUP: the token for nsqlookupds stays as it is: %s", error)
            return ()
        self._nsqd.lookupd_token = found
        return ("lookupd token",)

    def _take_policies(self, wanted: Options) -> tuple[str, ...]:
        """Have the file's policies hold; which options count from now on."""
        try:
            found = policy_document.read_file(wanted.policies)
        except DocumentError as error:
            logger.error("SIGHUP: the policies stay as they are: %s", error)
            return ()
        broker = self._nsqd.broker
        if found != broker.policies.configured:
            broker.configure_policies(found)
            logger.info("SIGHUP: policies of the file: %d", len(found))
        return ("policies",)

    def _take_certificates(self, wanted: Options) -> tuple[str, ...]:
        """Which options of certificates count from now on, as their `live` says."""
        authenticator = self._nsqd.clients.authenticator
        taken: tuple[str, ...] = ()
        try:
            if self.load_certificates is not None:
                self.load_certificates(wanted)
                taken = ("certificates", "root CA")
            if authenticator is not None:
                authenticator.load(wanted)
                taken = taken or ("root CA",)
        except StartError as error:
            logger.error("SIGHUP: the certificates stay as they are: %s", error)
            return ()
        return taken
