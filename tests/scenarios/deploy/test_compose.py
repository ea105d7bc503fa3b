"""deploy/compose.yml: its keys are those of the specification, and its commands fit together.

No container engine has run it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqd.options import NsqdOptions
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.flags import parse
from tests.scenarios.deploy import compose
from tests.scenarios.deploy.compose import Service
from tests.support.options import value
from tests.support.servers import free_port, spawn_nsqd

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
PROGRAMS: dict[str, Any] = {
    **{"nsqd": NsqdOptions, "nsqlookupd": NsqlookupdOptions, "nsqadmin": NsqadminOptions}
}
CHART = {
    "nsqlookupd": ("--broadcast-address=nsq-nsqlookupd-0",),
    "nsqd": ("--broadcast-address=b", "--lookupd-tcp-address=a:4160", "-data-path=/data"),
    "nsqadmin": ("--base-path=/", "--lookupd-http-address=a:4161"),
}
"""What NSQ's Helm chart passes to each program."""


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


def test_the_daemons_accept_their_commands_and_find_each_other(
    services: dict[str, Service],
) -> None:
    """Each command line is accepted; addresses are names of services, with ports that they have.

    A health check asks the daemon's own HTTP port.
    """
    options = {name: read(one) for name, one in services.items()}
    listening = {
        f"{name}:{value(told, key).rpartition(':')[2]}"
        for name, told in options.items()
        for key in ("tcp_address", "http_address")
        if "nsqadmin" not in name or key == "http_address"
    }
    for name, told in options.items():
        asked = {
            "nsqd": lambda o: o.lookupd.tcp_addresses,
            "nsqadmin": lambda o: o.lookupd_http_addresses,
        }
        used = asked.get(services[name]["command"][0], lambda _: ())(told)
        assert set(used) <= listening, name
        assert services[name]["healthcheck"]["test"] == [
            *("CMD", "healthcheck", value(told, "http_address").rpartition(":")[2])
        ]
        assert len(used) == 2 or "lookupd" in name


def read(service: Service) -> Any:
    """The options that a service's daemon parses from its command line."""
    program, *words = service["command"]
    return parse(PROGRAMS[program], program, words)


def test_the_pages_commands_are_those_of_the_file(services: dict[str, Service]) -> None:
    """docs/operating.md builds the services' image, starts the file, and runs programs in it."""
    section = PAGE[PAGE.index("## In containers") : PAGE.index("### In place of NSQ")]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)
    build, up, _, *inside = [shlex.split(line) for block in blocks for line in block.splitlines()]
    file = ["docker", "compose", "--file", "deploy/compose.yml"]
    (image,) = {one["image"] for one in services.values()}

    assert ["--file", "deploy/Dockerfile", "--target", "nsqd", "--tag", image, "."] == build[2:]
    assert [*file, "up", "--detach", "--wait"] == up
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for words in inside:
        assert [*file, "exec", "nsqadmin"] == words[:6]
        assert words[6] in scripts["scripts"]
        assert words[-1].endswith("=nsqlookupd-1:4161")


def test_health_checks_report_the_cause(tmp_path: Path) -> None:
    """A health check reports a port without a listener, and what the daemon answers."""
    with spawn_nsqd(tmp_path) as nsqd:
        for port, status, said in (
            (free_port(), 1, "[Errno 111]"),
            (nsqd.http_port, 0, "HTTP/1.0 200 OK: OK\n"),
        ):
            command = [sys.executable, "-IS", str(HEALTHCHECK), str(port)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (status, True) == (ran.returncode, said in ran.stdout)


@pytest.mark.parametrize(("program", "words"), CHART.items())
def test_the_commands_of_nsqs_chart_are_accepted(program: str, words: tuple[str, ...]) -> None:
    """What NSQ's Helm chart passes to its image is accepted by our programs."""
    assert parse(PROGRAMS[program], program, list(words))
