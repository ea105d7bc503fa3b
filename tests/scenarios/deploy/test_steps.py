"""The slim image: the steps of deploy/Dockerfile run, and its programs run as its user.

No container engine is used: see `building`.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.scenarios.deploy import dockerfile
from tests.scenarios.deploy.building import Container, Stages
from tests.scenarios.interop.environments import INSTALL_SECONDS_MAX, Missing
from tests.support.waiting import wait_for

TARGET = "nsqd"
AS_NSQ = "nsq"
"""The target that takes the place of NSQ's own image: as `nsqd`, but it runs as root."""
POD_IP = "127.0.0.1"
CHART = {
    "nsqlookupd": (f"--broadcast-address={POD_IP}",),
    "nsqd": (
        *(f"--broadcast-address={POD_IP}", f"--lookupd-tcp-address={POD_IP}:4160"),
        "-data-path=/data",
    ),
    "nsqadmin": ("--base-path=/", f"--lookupd-http-address={POD_IP}:4161"),
}
"""What NSQ's Helm chart passes to each program, with one address for the names of its pods."""
PROBES = {"nsqlookupd": ":4161/ping", "nsqd": ":4151/ping", "nsqadmin": ":4171/"}
"""The paths of the chart's probes, readiness and liveness alike."""
DAEMONS = {
    "nsqd": ("nsqd", "--data-path=/var/lib/nsqd"),
    "nsqlookupd": ("nsqlookupd",),
    "nsqadmin": ("nsqadmin", "--nsqd-http-address=127.0.0.1:4151"),
}
SIZE_MAX = 150 << 20
"""The maximum size in bytes that the image adds to its base."""
READY_SECONDS = 60
STOP_SECONDS = 10

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS_MAX)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """The slim image, built."""
    try:
        with Stages(AS_NSQ, tmp_path_factory.mktemp("image")) as built:
            yield built
    except Missing as missing:
        pytest.skip(f"needs {missing}")


@pytest.fixture
def volume(tmp_path: Path, stages: Stages) -> Path:
    """A volume that belongs to the image's user, as an engine creates it."""
    folder = tmp_path / "volume"
    folder.mkdir(mode=0o700)
    os.chown(folder, int(stages.user(TARGET)), int(stages.user(TARGET)))
    return folder


def test_the_image_is_slim(stages: Stages) -> None:
    """The image adds less than 150 MiB to its base."""
    home = stages.seen(TARGET) / "opt" / "sparq"
    sizes = [path.lstat().st_size for path in home.rglob("*") if not path.is_dir()]

    assert sum(sizes) < SIZE_MAX


def test_the_images_user_can_write_only_two_folders(stages: Stages) -> None:
    """The user alone can use its two folders.

    Its programs belong to root, who alone may change them.
    """
    root, user = stages.seen(TARGET), int(stages.user(TARGET))
    for name in ("nsqd", "nsqadmin"):
        facts = (root / "var" / "lib" / name).stat()
        assert (user, user, 0o700) == (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode))
    programs = (root / "opt" / "sparq" / "bin" / "nsqd").stat()

    assert (0, 0) == (programs.st_uid, programs.st_mode & 0o022)
    assert f"sparq:x:{user}:{user}:" in (root / "etc" / "passwd").read_text()


def is_healthy(container: Container) -> bool:
    """Whether the image's HEALTHCHECK succeeds."""
    assert container.process.poll() is None, container.log_text
    (words,) = dockerfile.stages()[TARGET].of("HEALTHCHECK")
    command = re.findall(r'"([^"]+)"', words.partition("CMD ")[2])
    return container.exec(*command).returncode == 0


@pytest.mark.parametrize("name", DAEMONS)
def test_a_daemon_runs_and_stops_in_its_container(
    name: str, stages: Stages, volume: Path, tmp_path: Path
) -> None:
    """A daemon is healthy as first process without root or capabilities; STOPSIGNAL ends it."""
    (word,) = dockerfile.stages()[TARGET].of("STOPSIGNAL")
    command, log = DAEMONS[name], tmp_path / "log"
    with stages.container(TARGET, log, *command, nsqd=volume) as container:
        wait_for(lambda: is_healthy(container), READY_SECONDS, lambda: container.log_text)
        facts = Path(f"/proc/{container.first}/status").read_text()

        assert "NSpid:\t" in facts
        assert "1" == re.findall(r"^NSpid:.*\t(\d+)$", facts, re.M)[0]
        assert [stages.user(TARGET)] * 4 == re.findall(r"^Uid:\t(.*)$", facts, re.M)[0].split()
        assert {"0"} == set(re.findall(r"^Cap(?:Prm|Eff|Bnd):\t0*(\d)$", facts, re.M))
        assert 0 == container.stop(getattr(signal, word), STOP_SECONDS), container.log_text


def test_the_commands_of_nsqs_chart_run(stages: Stages, tmp_path: Path) -> None:
    """The chart's commands run with a volume that belongs to root, and its probes are answered."""
    volume = tmp_path / "data"
    volume.mkdir(mode=0o755)
    with ExitStack() as stack:
        for name, words in CHART.items():
            volumes = {"data": volume} if name == "nsqd" else {}
            log, command = tmp_path / name, (f"/{name}", *words)
            container = stack.enter_context(stages.container(AS_NSQ, log, *command, **volumes))
            probe = f"import urllib.request as r; r.urlopen('http://{POD_IP}{PROBES[name]}')"
            wait_for(
                lambda of=container, code=probe: of.exec("python", "-c", code).returncode == 0,
                READY_SECONDS,
                lambda of=container: of.log_text,
            )
        words = ("--topic=t", f"--nsqd-tcp-address={POD_IP}:4150")
        sent = container.exec("/to_nsq", *words, given="hello\n")
        found = ("--topic=t", "--channel=c", "-n=1", f"--lookupd-http-address={POD_IP}:4161")
        got = container.exec("/nsq_tail", *found)

    assert (0, 0, "hello\n") == (sent.returncode, got.returncode, got.stdout), got.stderr
    assert any(volume.iterdir())
