"""What sparq uses of the package `deltalake`, which the extra `sparq[delta]` brings.

All other modules import these names from here. So a machine without the package, or with one that
is too old, is told so in one sentence, be it the driver's or an executor's.

Versions before NEEDED drop the application transaction of a commit that adds files, silently: a
batch that Spark repeats would then be in the table twice.
"""

from __future__ import annotations

import re

try:
    import deltalake
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.fs import DeltaStorageHandler
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as missing:
    raise ImportError(
        "a Delta table needs the package deltalake: pip install 'sparq[delta]'"
    ) from missing

__all__ = [
    "AddAction",
    "CommitFailedError",
    "CommitProperties",
    "DeltaStorageHandler",
    "DeltaTable",
    "RemoveAction",
    "Schema",
    "Transaction",
    "check_version",
]

NEEDED = (1, 6, 6)


def check_version(found: str) -> None:
    """Refuse a version that loses a batch's transaction.

    Raises:
        ImportError: it is older than NEEDED.
    """
    parts = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    if parts < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise ImportError(
            f"deltalake {found} is too old, a Delta table needs {needed}:"
            " pip install --upgrade 'sparq[delta]'"
        )


check_version(deltalake.__version__)
