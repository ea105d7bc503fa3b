"""Where the pipeline keeps what: addresses below one data folder, of any Hadoop file system.

    archive                          every click that could be read (`archive`)
    metrics late rejected            what the query `metrics` writes
    spam_analysis evicted            what the query `spam_analysis` writes
    checkpoint/<query>               Spark's: how far a query has come, and its state

The output of the last two lines' queries lies in a folder for each batch (`batch_folders`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses below a data folder: a path or a URI, without a slash at its end."""

    data: str

    @property
    def archive(self) -> str:
        """Clicks."""
        return f"{self.data}/archive"

    @property
    def metrics(self) -> str:
        """Minutes."""
        return f"{self.data}/metrics"

    @property
    def late(self) -> str:
        """Clicks of minutes that had closed, by minute."""
        return f"{self.data}/late"

    @property
    def rejected(self) -> str:
        """Messages that could not be read."""
        return f"{self.data}/rejected"

    @property
    def spam_analysis(self) -> str:
        """Findings."""
        return f"{self.data}/spam_analysis"

    @property
    def evicted(self) -> str:
        """What spam_analysis has dropped for lack of room."""
        return f"{self.data}/evicted"

    def checkpoint_of(self, query: str) -> str:
        """Where Spark keeps how far a query has come, and its state."""
        return f"{self.data}/checkpoint/{query}"
