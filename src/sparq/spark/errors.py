"""The errors that make a query fail, and the retries and warnings that may come instead.

Their texts are written for the query's author. Wrong options raise `options.OptionError`, refusals
by nsqd `RemoteError`, and missing TLS or AUTH the client's `TlsError` or `AuthRequiredError`.
"""

import time
from logging import getLogger
from typing import Final

from sparq.protocol.errors import RemoteError

PAUSE_FIRST_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 1.0

_LOG = getLogger("sparq.spark")


class SparkNsqError(Exception):
    """Base class of the data source's own errors."""


class UnreachableError(SparkNsqError):
    """An nsqd, or every nsqlookupd, stayed unreachable for longer than nsqdTimeoutMs."""


class DataLossError(SparkNsqError):
    """Unread messages are lost (only with failOnDataLoss)."""


class SupersededError(SparkNsqError):
    """Another query reads this channel now."""


class RowError(SparkNsqError):
    """A row that cannot become a message."""


def may_pass(refusal: RemoteError) -> bool:
    """Whether a refusal may be temporary, given that nsqd accepted the same before.

    E_AUTH_FAILED means that no authd has confirmed the secret. The authds may just be unreachable,
    so a secret that was accepted once is tried again.
    """
    return refusal.code == "E_AUTH_FAILED"


def report_loss(what: str, *, fails: bool) -> None:
    """Report lost messages. Raises DataLossError: `fails` is set (failOnDataLoss)."""
    if fails:
        raise DataLossError(
            f"{what}. To continue without them, set the option failOnDataLoss to false"
        )
    _LOG.warning("%s. The query continues without them", what)


class RetryDeadline:
    """Retries with growing pauses, up to the time limit of the option nsqdTimeoutMs."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_seconds = timeout_ms / 1000
        self._failing_since: float | None = None
        self._pause = PAUSE_FIRST_SECONDS

    def reset(self) -> None:
        """Start again after a success: the next failure begins a new time limit."""
        self._failing_since, self._pause = None, PAUSE_FIRST_SECONDS

    def wait(self, error: BaseException | str) -> None:
        """Pause after a failure, before the next attempt.

        Raises:
            UnreachableError: attempts have failed for longer than the time limit.
        """
        now = time.monotonic()
        # Counted from the first failure: the time of a long read that succeeds does not count.
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._timeout_seconds - now
        if left <= 0:
            given_up = UnreachableError(
                f"{self._what} has been unreachable for {self._timeout_seconds:g} s "
                f"(option nsqdTimeoutMs): {error}"
            )
            raise given_up from (error if isinstance(error, BaseException) else None)
        time.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, PAUSE_MAX_SECONDS)
