"""The shell lines of docs/operating.md that change a cluster, run with real nsqds."""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from sparq.protocol.commands import mpub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

TEXT = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")


def topics_and_channels(nsqd: NsqdServer) -> dict[str, list[str]]:
    """Each topic with its channels."""
    stats: dict[str, Any] = nsqd.get_json("/stats?format=json")
    return {
        topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]]
        for topic in stats["topics"]
    }


def test_topics_and_channels_are_recreated_on_another_nsqd(tmp_path: Path) -> None:
    """The script creates all topics and channels on another nsqd, except ephemeral ones."""
    [indented] = re.findall(r"^   ```\n(.*?)^   ```$", TEXT, re.M | re.S)
    script = textwrap.dedent(indented)
    with spawn_nsqd(tmp_path, name="old") as old, spawn_nsqd(tmp_path, name="new") as new:
        for topic in ("clicks", "empty", "gone%23ephemeral"):
            old.post(f"/topic/create?topic={topic}")
        for channel in ("archive", "metrics", "tail%23ephemeral"):
            old.post(f"/channel/create?topic=clicks&channel={channel}")
        script = script.replace("127.0.0.1:4151", old.http).replace("127.0.0.1:5151", new.http)
        ran = subprocess.run(
            ["/bin/bash", "-c", script], capture_output=True, text=True, timeout=60, check=False
        )

        assert (0, "", "") == (ran.returncode, ran.stdout, ran.stderr)
        assert {"clicks": ["archive", "metrics"], "empty": []} == topics_and_channels(new)


def test_remedies_for_a_full_disk(tmp_path: Path) -> None:
    """`/ping` reports the full disk; each remedy works, and publishing succeeds again."""
    section = TEXT[TEXT.index("### A full disk") : TEXT.index("## The way back")]
    ping, *remedies = re.findall(r"^\$ (curl .*)$", section, re.M)
    with (
        SmallDisk(tmp_path / "nsqd", "8m") as disk,
        spawn_nsqd(tmp_path, prefix=disk.prefix) as nsqd,
        V2Client(nsqd) as line,
    ):
        assert len(remedies) == 4
        for remedy in remedies:
            nsqd.post("/topic/create?topic=clicks")
            if "channel" in remedy:
                nsqd.post("/channel/create?topic=clicks&channel=stopped")
            while line.ask(mpub("clicks", [b"x" * 1000] * 50)) == OK:
                pass
            answer = subprocess.run(
                shlex.split(ping.replace("127.0.0.1:4151", nsqd.http)),
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert answer.stdout.startswith("NOK - no space left on device; ")
            command = shlex.split(remedy.replace("127.0.0.1:4151", nsqd.http))
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

            assert answer.stdout == ""
            wait_for(lambda: line.ask(mpub("clicks", [b"y"])) == OK, seconds=1.0)
            nsqd.post("/topic/delete?topic=clicks")
