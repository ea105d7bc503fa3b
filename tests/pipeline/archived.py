"""Shared by the tests of both archive formats: a query id, and the ids of clicks."""

QUERY = "11111111-aaaa"


def ids(frame):
    """The messages' ids, sorted."""
    return sorted(row.id for row in frame.select("id").collect())


def expected(batches):
    """The sorted ids of all readable clicks in these batches."""
    return sorted(name for batch in batches for name in ids(batch))
