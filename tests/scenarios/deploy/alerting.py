"""The rules of deploy/prometheus in a real Prometheus, with minutes shortened to seconds.

1. The files are those of deploy/prometheus: prometheus.yml with other targets and addresses, and
   its files of rules. `with_minutes_as_seconds` changes only the length of a minute: each duration
   in minutes (`for: 10m`, `[10m]`, `offset 15m`) becomes that many seconds, and in numbers of
   seconds, which the rules write as `15 * 60`, the 60 becomes 1. Thresholds and expressions stay.
2. It scrapes and evaluates once a second; every wait is for a condition.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.servers import Server, free_port

FOLDER = Path(__file__).parents[3] / "deploy" / "prometheus"
CONFIG = FOLDER / "prometheus.yml"
ALERTS = FOLDER / "nsq.rules.yml"
MIXIN = FOLDER / "nsq_mixin.rules.yml"
NEEDED = "needs prometheus (apt-get install prometheus)"
MINUTES = re.compile(r"(?<![\w.])(\d+)m\b")
SECONDS_OF_MINUTES = re.compile(r"(?<=\* )60\b")
TARGETS = re.compile(r"(- job_name: (\w+)\n    static_configs:\n      - targets: )\[.*\]")


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(NEEDED)
    return found


def promtool(*words: str | Path) -> str:
    """Run promtool, which must succeed; returns its output."""
    command = [program("promtool"), *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def with_minutes_as_seconds(rules: str) -> str:
    """The rules with minutes shortened to seconds."""
    return SECONDS_OF_MINUTES.sub("1", MINUTES.sub(r"\1s", rules))


def names(kind: str, path: Path) -> list[str]:
    """The names of all alerts (`alert`) or recording rules (`record`) in a file."""
    return re.findall(rf"\b{kind}: ([\w:]+)", path.read_text(encoding="utf-8"))


class Prometheus(Server):
    """A Prometheus that scrapes daemons once a second."""

    def __init__(self, folder: Path, targets: Mapping[str, Iterable[Server]]) -> None:
        super().__init__("prometheus", folder, ())
        self.http_port = free_port()
        config = CONFIG.read_text(encoding="utf-8").replace("interval: 15s", "interval: 1s")
        places = {
            job: json.dumps([server.http for server in servers]) for job, servers in targets.items()
        }
        config = TARGETS.sub(lambda found: found[1] + places[found[2]], config)
        (folder / CONFIG.name).write_text(config, encoding="utf-8")
        for rules in (ALERTS, MIXIN):
            text = with_minutes_as_seconds(rules.read_text(encoding="utf-8"))
            (folder / rules.name).write_text(text, encoding="utf-8")

    def program(self) -> tuple[str, ...]:
        """The program of Debian's package."""
        return (program("prometheus"),)

    def address_flags(self) -> tuple[str, ...]:
        """The flags for its address, its configuration and its data."""
        return (
            f"--web.listen-address={self.http}",
            f"--config.file={self.folder / CONFIG.name}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            "--log.level=warn",
        )

    def answers(self) -> bool:
        """Whether it has started up."""
        try:
            return self.request("GET", "/-/ready")[0] == 200
        except OSError:
            return False

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The current samples of an expression."""
        answer = self.get_json(f"/api/v1/query?query={quote(expression)}")
        return list(answer["data"]["result"])

    def firing(self) -> dict[str, dict[str, str]]:
        """The annotations of each firing alert, by its name."""
        alerts = self.get_json("/api/v1/alerts")["data"]["alerts"]
        return {
            alert["labels"]["alertname"]: alert["annotations"]
            for alert in alerts
            if alert["state"] == "firing"
        }

    def has_fired(self) -> set[str]:
        """The names of all alerts that have fired since its start."""
        samples = self.ask(
            'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))'
        )
        return {sample["metric"]["alertname"] for sample in samples}
