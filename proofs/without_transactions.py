"""The pipeline without the transactions of its commits. The control of spark.py.

A transaction has the query's id and the batch's number. Without it, a batch that is run again after
a restart is not recognised, and what it writes is in the tables twice.
"""

import sys

from sparq.pipeline import command, tables


def without_transactions() -> None:
    """Let all further commits of this process have no transaction."""
    setattr(tables, "CommitProperties", lambda app_transactions: None)  # noqa: B010 - a replacement


if __name__ == "__main__":
    without_transactions()
    sys.exit(command.main())
