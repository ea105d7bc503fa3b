"""A daemon's limit of open files is divided among logs, HTTP and V2 clients."""

from sparq.daemon.files import OWN, PART_MIN, SPARE, UNLIMITED, shares


def test_open_files_are_divided_among_their_uses() -> None:
    """Logs and HTTP get an eighth each, at least PART_MIN; at least one client can connect."""
    assert (2_500, 2_500, 14_968) == shares(20_000)
    assert (PART_MIN, PART_MIN, 16) == shares(64)
    assert 1 == shares(8).connections
    assert sum(shares(20_000)) + OWN + SPARE == 20_000
    assert shares(UNLIMITED) == shares(-1)
