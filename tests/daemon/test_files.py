"""A daemon's open files are divided among logs, HTTP and V2 clients."""

from sparq.daemon.files import OWN, PART_MIN, SPARE, UNLIMITED, shares


def test_files_are_shared_out() -> None:
    """An eighth for logs, one for HTTP, never less than the least; a client always has room."""
    assert (2_500, 2_500, 14_968) == shares(20_000)
    assert (PART_MIN, PART_MIN, 16) == shares(64)
    assert 1 == shares(8).connections
    assert sum(shares(20_000)) + OWN + SPARE == 20_000
    assert shares(UNLIMITED) == shares(-1)
