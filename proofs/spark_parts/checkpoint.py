"""Progress of the queries, read from Spark's checkpoints: planned and completed batches.

checkpoint/<query>/offsets/12    batch 12 is planned: what it reads is written down
checkpoint/<query>/commits/12    batch 12 is done
"""

from __future__ import annotations

from pathlib import Path

QUERIES = ("archive", "metrics", "spam_analysis")


class Checkpoints:
    """The checkpoints of all queries.

    Args:
        root: the folder that holds a checkpoint for each query.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def newest(self, query: str, folder: str) -> int:
        """Return the newest batch of a query in `offsets` or `commits`; -1 before the first."""
        names = (path.name for path in (self._root / query / folder).glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def done(self) -> list[int]:
        """Return how many batches each query has completed."""
        return [self.newest(query, "commits") + 1 for query in QUERIES]

    def under_way(self) -> list[tuple[str, int]]:
        """Return (query, batch) of the batches that are planned and not done."""
        # `offsets` is read before `commits`: a batch that is not done by then is in progress.
        found = [(q, self.newest(q, "offsets"), self.newest(q, "commits")) for q in QUERIES]
        return [(query, planned) for query, planned, done in found if planned > done]

    def settled(self) -> list[str]:
        """Return the queries with at least one planned batch and none in progress."""
        busy = [query for query, _ in self.under_way()]
        return [q for q in QUERIES if q not in busy and self.newest(q, "offsets") > -1]

    def forget(self, query: str) -> int:
        """Delete the last file of `commits`; return its batch, which Spark will run again."""
        batch = self.newest(query, "commits")
        folder = self._root / query / "commits"
        for path in (folder / str(batch), folder / f".{batch}.crc"):
            path.unlink(missing_ok=True)
        return batch
