"""What a query fails with, in words for its author.

```
SparkNsqError
├── UnreachableError      an nsqd that is needed stayed out of reach for longer than nsqdTimeoutMs
├── DataLossError         messages that were to be read are gone (only with failOnDataLoss)
├── SupersededError       another query has taken the channel over
└── RowError              a row that cannot become a message
```

Options that are wrong are `options.OptionError`; what nsqd refuses is `RemoteError`; TLS or AUTH
that cannot be had is the client's `TlsError` or `AuthRequiredError`.
"""

from sparq.protocol.errors import RemoteError


class SparkNsqError(Exception):
    """Base of the data source's own errors."""


class UnreachableError(SparkNsqError):
    """An nsqd, or every nsqlookupd, stayed out of reach."""


class DataLossError(SparkNsqError):
    """Messages that were to be read are gone."""


class SupersededError(SparkNsqError):
    """Another query reads this channel now."""


class RowError(SparkNsqError):
    """A row that cannot become a message."""


def may_pass(refusal: RemoteError) -> bool:
    """Whether nsqd may think otherwise soon, if it thought so before.

    E_AUTH_FAILED says that no authd has vouched for the secret. They may just be out of reach; a
    secret that was good once is not given up for that.
    """
    return refusal.code == "E_AUTH_FAILED"
