"""The errors that make a query fail; their texts are written for the query's author.

```
SparkNsqError
├── UnreachableError      a needed nsqd stayed unreachable for longer than nsqdTimeoutMs
├── DataLossError         unread messages are lost (only with failOnDataLoss)
├── SupersededError       another query has taken over the channel
└── RowError              a row cannot become a message
```

Wrong options raise `options.OptionError`, refusals by nsqd `RemoteError`, and missing TLS or AUTH
the client's `TlsError` or `AuthRequiredError`.
"""

from sparq.protocol.errors import RemoteError


class SparkNsqError(Exception):
    """Base class of the data source's own errors."""


class UnreachableError(SparkNsqError):
    """An nsqd, or every nsqlookupd, stayed unreachable."""


class DataLossError(SparkNsqError):
    """Unread messages are lost."""


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
