"""Options that can change while nsqd runs: log level, nsqlookupds, certificates, policies, tokens.

SIGHUP applies them from the configuration file; `/config` over HTTP (docs/http.md) changes the
first two.

1. `nsqd.options` always holds the values in force; all other options stay as at the start.
2. Each change is applied as a whole or not at all: invalid certificates leave the old ones in use,
   and the other changes are still applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sparq.daemon import reload as hangup
from sparq.daemon.access import tokens
from sparq.nsqd import policy_document
from sparq.nsqd.policy_document import DocumentError
from sparq.options.declare import replaced
from sparq.program import logging as log_lines
from sparq.program.lifecycle import StartError

if TYPE_CHECKING:
    from sparq.nsqd.lookup_peers import LookupPeers
    from sparq.nsqd.options import NsqdOptions
    from sparq.nsqd.server import Nsqd

logger = logging.getLogger(__name__)


class Reloader:
    """Change options of a running nsqd.

    Attributes:
        load_certificates: reads the certificate files again, for new TLS handshakes; raises
            StartError if they cannot be used. None: nsqd was started without TLS.
    """

    def __init__(self, nsqd: Nsqd, peers: LookupPeers, read: Callable[[], NsqdOptions]) -> None:
        """`read` parses the command line and the configuration file again (flags.parse_again)."""
        self.load_certificates: Callable[[NsqdOptions], None] | None = None
        self._nsqd = nsqd
        self._peers = peers
        self._read = read

    def set_log_level(self, level: int) -> None:
        """Set the lowest level to log, one of Python's (program.logging.LEVELS)."""
        log_lines.set_level(level)
        self._nsqd.options = replaced(self._nsqd.options, {"log.level": level})

    def set_lookupd_addresses(self, addresses: Iterable[str]) -> None:
        """Register with exactly these nsqlookupds."""
        wanted = tuple(addresses)
        self._peers.set_addresses(wanted)
        self._nsqd.options = replaced(self._nsqd.options, {"lookupd.tcp_addresses": wanted})

    def reload(self) -> None:
        """Apply the configuration file as it is now, after SIGHUP."""
        wanted = None if self._nsqd.exiting else hangup.read_again(self._read)
        if wanted is None:
            return
        live = ("log", "lookupds", *self._take_certificates(wanted), *self._take_policies(wanted))
        live += self._take_lookupd_token(wanted)
        self._take_tokens()
        self._nsqd.options = hangup.apply_live_options(self._nsqd.options, wanted, live)
        self._peers.set_addresses(wanted.lookupd.tcp_addresses)

    def _take_tokens(self) -> None:
        """Read the token file again; connected clients are checked against it, too."""
        access, authenticator = self._nsqd.access, self._nsqd.authenticator
        if access is not None and access.reload() and authenticator is not None:
            authenticator.review()

    def _take_lookupd_token(self, wanted: NsqdOptions) -> tuple[str, ...]:
        """Replace the token for nsqlookupds, from the next connection on."""
        try:
            found = tokens.resolve(wanted.lookupd.token, "--lookupd-token")
        except StartError as error:
            logger.error("SIGHUP: keeping the old token for nsqlookupds: %s", error)
            return ()
        self._nsqd.lookupd_token = found
        return ("lookupd token",)

    def _take_policies(self, wanted: NsqdOptions) -> tuple[str, ...]:
        """Apply the policies of the file; return the `live` names of the changed options."""
        try:
            found = policy_document.read_file(wanted.policies)
        except DocumentError as error:
            logger.error("SIGHUP: keeping the old policies: %s", error)
            return ()
        broker = self._nsqd.broker
        if found != broker.policies.configured:
            broker.configure_policies(found)
            logger.info("SIGHUP: policies read from the file: %d", len(found))
        return ("policies",)

    def _take_certificates(self, wanted: NsqdOptions) -> tuple[str, ...]:
        """Load the certificates again; return the `live` names of the options now in force."""
        authenticator = self._nsqd.authenticator
        taken: tuple[str, ...] = ()
        try:
            if self.load_certificates is not None:
                self.load_certificates(wanted)
                taken = ("certificates", "root CA")
            if authenticator is not None:
                authenticator.load(wanted)
                taken = taken or ("root CA",)
        except StartError as error:
            logger.error("SIGHUP: keeping the old certificates: %s", error)
            return ()
        return taken
