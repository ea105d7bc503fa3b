"""deploy/compose.yml: its keys are those of the specification, and its commands form a cluster.

No container engine has run it. Here each service is a process with the file's command, in a
separate network that knows only the services' names; a volume is a folder.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sparq.program.supervised import SupervisedProcess
from tests.scenarios.deploy import compose
from tests.scenarios.deploy.compose import Service
from tests.scenarios.deploy.namespace import Namespace
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
HEALTHCHECK = ROOT / "deploy" / "healthcheck.py"
KEYS = {
    *("image", "pull_policy", "restart", "stop_signal", "stop_grace_period", "read_only", "tmpfs"),
    *("cap_drop", "security_opt", "logging", "command", "ports", "volumes", "depends_on"),
    "healthcheck",
}
"""Keys of services in the Compose Specification, without `network_mode`: no host networks."""
HEALTH_KEYS = {"test", "interval", "timeout", "retries", "start_period"}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
SECONDS_MAX = 60
SETUP = """
ip link set lo up
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/nsqd /var/lib/nsqadmin
mount --bind "$1" /etc/hosts
"""


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    """The services, without any variable set."""
    pytest.importorskip("yaml", reason="needs PyYAML")
    return compose.services()


def test_every_key_of_the_file_is_known(services: dict[str, Service]) -> None:
    """Every key is known, since engines refuse others; volumes and dependencies exist."""
    whole = compose.document()

    assert {"name", "services", "volumes"} == {key for key in whole if not key.startswith("x-")}
    used = [volume for one in services.values() for volume in one.get("volumes", ())]
    assert sorted(whole["volumes"]) == sorted(volume.split(":")[0] for volume in used)
    for name, one in services.items():
        assert set(one) <= KEYS, name
        assert set(one["healthcheck"]) == HEALTH_KEYS, name
        for needed, condition in one.get("depends_on", {}).items():
            assert needed in services
            assert {"condition": "service_healthy"} == condition


def test_services_have_least_privileges(services: dict[str, Service]) -> None:
    """Services have the slim image, a read-only file system, no capabilities, and local ports."""
    for name, one in services.items():
        assert f"sparq-nsqd:{VERSION}" == one["image"], name
        assert (True, ["ALL"], ["no-new-privileges:true"]) == (
            one["read_only"],
            one["cap_drop"],
            one["security_opt"],
        )
        assert all(entry.startswith("127.0.0.1:") for entry in one["ports"]), name
        assert "SIGTERM" == one["stop_signal"]
        places = [volume.split(":")[1] for volume in one.get("volumes", ())]
        kept = [word.partition("=")[2] for word in one["command"] if "--data-path=" in word]
        assert places == kept or one["command"][0] != "nsqd", name
        assert ("30s" if one["command"][0] == "nsqd" else "10s") == one["stop_grace_period"]


class Engine:
    """Runs the services; each starts when those it depends on are healthy."""

    def __init__(self, services: dict[str, Service], folder: Path, network: Namespace) -> None:
        self.services = services
        self._folder = folder
        self._network = network
        self.running: dict[str, SupervisedProcess] = {}

    def up(self) -> None:
        """Start all services, as `docker compose up --wait` does."""
        for name in compose.in_start_order(self.services):
            self._start(name)
            wait_for(partial(self.is_healthy, name), SECONDS_MAX, partial(self.log, name))

    def _start(self, name: str) -> None:
        program, *words = self.services[name]["command"]
        mounts = [f"{self._volume(entry)}" for entry in self.services[name].get("volumes", ())]
        script = "".join(f"mount --bind {one}; " for one in mounts) + 'exec "$@"'
        command = ("unshare", "-m", "sh", "-ec", script, "sh")
        run = (sys.executable, "-m", f"sparq.{program}", *words)
        self.running[name] = SupervisedProcess(
            name,
            [*self._network.prefix, *command, *run],
            self._folder / f"{name}.log",
            folder=self._folder,
        )
        self.running[name].start()

    def _volume(self, entry: str) -> str:
        """The arguments of `mount --bind` for a volume."""
        volume, place = entry.split(":")
        (self._folder / volume).mkdir(exist_ok=True)
        return f"'{self._folder / volume}' '{place}'"

    def log(self, name: str) -> str:
        """The log of a service."""
        return (self._folder / f"{name}.log").read_text()

    def exec(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the services' network."""
        return subprocess.run(
            [*self._network.prefix, *command],
            cwd=self._folder,
            input=given,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    def is_healthy(self, name: str) -> bool:
        """Whether its health check succeeds."""
        assert not self.running[name].has_ended(), self.log(name)
        kind, program, *words = self.services[name]["healthcheck"]["test"]
        assert ("CMD", "healthcheck") == (kind, program)
        return self.exec(sys.executable, "-IS", str(HEALTHCHECK), *words).returncode == 0

    def close(self) -> None:
        """Kill the remaining services."""
        for process in self.running.values():
            process.kill()


@pytest.fixture(scope="module")
def engine(
    services: dict[str, Service], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """All services, running."""
    folder = tmp_path_factory.mktemp("compose")
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost " + " ".join(services) + "\n")
    with Namespace("nm", SETUP, str(hosts)) as network:
        running = Engine(services, folder, network)
        try:
            running.up()
            yield running
        finally:
            running.close()


def program(name: str) -> str:
    """The console script of the image, as this environment has it."""
    return str(Path(sys.executable).with_name(name))


def test_the_pages_compose_commands_work(services: dict[str, Service], engine: Engine) -> None:
    """The commands of docs/operating.md build the services' image, start them, and work in them."""
    section = PAGE[PAGE.index("## In containers") : PAGE.index("## Change")]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)
    build, up, *lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    file = ["docker", "compose", "--file", "deploy/compose.yml"]
    (image,) = {one["image"] for one in services.values()}

    assert ["--file", "deploy/Dockerfile", "--target", "nsqd", "--tag", image, "."] == build[2:]
    assert [*file, "up", "--detach", "--wait"] == up
    said = []
    for words in lines:
        if words[:2] == ["docker", "build"]:  # another target, which test_image.py builds
            assert words[:4] == [*build[:2], "--file", "deploy/Dockerfile"]
            continue
        inside = words[0] == "docker"
        assert not inside or [*file, "exec", "nsqadmin"] == words[:6]
        ran = engine.exec(program(words[6]), *words[7:]) if inside else engine.exec(*words)
        assert 0 == ran.returncode, ran.stderr
        said.append(ran.stdout)
    assert ["OK", "hello\n"] == said[:2]
    assert "greetings" in said[2]


def test_health_checks_report_the_cause(engine: Engine) -> None:
    """A health check reports a port without a listener.

    Without a port it finds the running daemon.
    """
    bad = engine.exec(sys.executable, "-IS", str(HEALTHCHECK), "4999")
    good = engine.exec(sys.executable, "-IS", str(HEALTHCHECK))

    assert (1, True) == (bad.returncode, bad.stdout.startswith("port 4999: [Errno 111]"))
    assert (0, "HTTP/1.0 200 OK: OK\n") == (good.returncode, good.stdout)
