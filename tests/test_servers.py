"""The servers of the tests: one that does not end tells where it is."""

import sys
from pathlib import Path

import pytest

from tests import servers
from tests.servers import Server

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def deaf_to_signals():
    print("deaf", flush=True)
    while True:
        time.sleep(1)
deaf_to_signals()
"""


class Deaf(Server):
    """A program that takes no notice of SIGTERM."""

    def program(self) -> tuple[str, ...]:
        """Its flags are of no use to it."""
        return sys.executable, "-c", DEAF

    def _answers(self) -> bool:
        return "deaf" in self.log_text


def test_a_server_that_does_not_end_tells_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stacks of its threads stand in the failure, and it is gone."""
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.2)
    deaf = Deaf("sparq.nsqd", tmp_path, ())
    deaf.start()
    process = deaf.process

    with pytest.raises(AssertionError, match=r"(?s)did not end on SIGTERM.*deaf_to_signals"):
        deaf.terminate()

    assert process is not None
    assert process.poll() is not None
