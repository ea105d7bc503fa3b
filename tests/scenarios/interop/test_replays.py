"""Programs in other languages talk to the daemons as those languages' NSQ clients do.

Each `clients/replay.*` is a program of this repository that uses only its language's own library.
It asks nsqlookupd for the topic and compares a header case-sensitively, searches the text of
IDENTIFY's answer for members without blanks, as some clients do instead of parsing, then
publishes, subscribes, receives, finishes and closes.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.own_topic import own_topic
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import wait_for

CLIENTS = Path(__file__).parent / "clients"
PROGRAMS = {"rb": "ruby", "php": "php", "pl": "perl", "exs": "elixir", "c": "gcc"}
RUN_SECONDS_MAX = 60


def run(*command: str | Path) -> None:
    """Run to the end; what the program complained of is the failure."""
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout


@pytest.mark.parametrize("suffix", PROGRAMS)
def test_a_client_in_another_language_publishes_and_consumes(
    suffix: str, shared_daemons: SharedDaemons, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It finds Go's header name and compact JSON, and its message is delivered and finished."""
    program = PROGRAMS[suffix]
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    command: tuple[str | Path, ...] = (program, CLIENTS / f"replay.{suffix}")
    if program == "gcc":
        run(*command, "-o", tmp_path / "replay")
        command = (tmp_path / "replay",)
    nsqd = shared_daemons.nsqds[0]
    topic = shared_daemons.make(own_topic(request))
    ports = [one.rpartition(":")[2] for one in (nsqd.tcp, shared_daemons.lookupd.http)]

    run(*command, *ports, topic)

    wait_for(lambda: nsqd.channel(topic, "c")["client_count"] == 0)
    channel = nsqd.channel(topic, "c")
    assert (1, 0, 0) == tuple(channel[key] for key in ("message_count", "depth", "in_flight_count"))
