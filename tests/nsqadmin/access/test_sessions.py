"""Sessions of browsers."""

from sparq.nsqadmin.access import sessions
from tests.nsqadmin.access.options import NOW


def test_sessions_end_after_a_while_and_are_bounded() -> None:
    """An id that is not there, ended or old means nothing."""
    found = sessions.Sessions()
    names = [found.start(b"x", NOW) for _ in range(sessions.SESSIONS_MAX + 1)]

    assert found.digest(names[0], NOW) is None
    assert b"x" == found.digest(names[1], NOW + sessions.LIFE_SECONDS - 1)
    assert found.digest(names[1], NOW + sessions.LIFE_SECONDS) is None
    assert found.digest(names[1], NOW) is None
    found.end(names[2])
    assert found.digest(names[2], NOW) is None
    assert len(names) == len(set(names))
