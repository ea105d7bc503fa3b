"""What the tests of both forms of the archive share: a query's id, and the clicks expected."""

QUERY = "11111111-aaaa"


def ids(frame):
    """The messages' ids, in order."""
    return sorted(row.id for row in frame.select("id").collect())


def expected(batches):
    """The ids of all readable clicks."""
    return sorted(name for batch in batches for name in ids(batch))
