"""nsqadmin beside the cluster of `sparq up`: its own process, which the pipeline does not need.

1. It listens on NSQ's port where that is free, on another one else, on this machine only: whoever
   is on it may administer, as nsqadmin has it by itself.
2. One that ends is started again, at most `STARTS_MAX` times in all; then it stays away. Neither
   that nor one that cannot start ends the pipeline: `watch` says what to look at.
3. Its audit log lies in the run's folder.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparq.pipeline.cluster import HOST, any_free_port, is_free, stop_process

PORT = 4171
STARTS_MAX = 4
START_SECONDS = 15.0
POLL_SECONDS = 0.05
PING_SECONDS = 5.0


@dataclass
class Console:
    """nsqadmin of a run.

    Args:
        run_dir: where its audit log goes.
        log: where what it prints goes.
        lookupd: the nsqlookupd that it asks, `host:port`.
        module: the program.
    """

    run_dir: Path
    log: Path
    lookupd: str
    module: str = "sparq.nsqadmin"
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    is_given_up: bool = False

    def __post_init__(self) -> None:
        self.port = PORT if is_free(PORT) else any_free_port()

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{HOST}:{self.port}/"

    @property
    def audit_log(self) -> Path:
        """Who did what."""
        return self.run_dir / "nsqadmin_audit.log"

    def start(self) -> None:
        """Start it; `is_ready` says when it can be used."""
        command = [sys.executable, "-m", self.module, f"--lookupd-http-address={self.lookupd}"]
        command += [f"--http-address={HOST}:{self.port}", f"--audit-log={self.audit_log}"]
        self.starts += 1
        with self.log.open("ab") as log:
            # A session of its own, as with the cluster's: Ctrl-C reaches the runner alone.
            self.process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def is_ready(self, seconds: float = START_SECONDS) -> bool:
        """Whether it answers within so many seconds, and has not ended."""
        deadline = time.monotonic() + seconds
        while not self._has_ended() and time.monotonic() < deadline:
            if self._answers():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def watch(self) -> str:
        """Start it again if it has ended; what is to be told of it, "" for nothing."""
        if self.is_given_up or not self._has_ended():
            return ""
        if self.starts >= STARTS_MAX:
            self.is_given_up = True
            return f"nsqadmin ended {self.starts} times and stays away; its log: {self.log}"
        self.start()
        return f"nsqadmin ended and is started again; its log: {self.log}"

    def stop(self) -> None:
        """End it."""
        process, self.process = self.process, None
        stop_process(process)

    def state(self) -> dict[str, Any]:
        """Process id, address and logs."""
        return {
            "pid": self.process.pid if self.process else None,
            "http": f"{HOST}:{self.port}",
            "starts": self.starts,
            "log": os.fspath(self.log),
            "audit_log": os.fspath(self.audit_log),
        }

    def _has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PING_SECONDS)
        with suppress(OSError, http.client.HTTPException):
            try:
                connection.request("GET", "/ping")
                return connection.getresponse().status == http.client.OK
            finally:
                connection.close()
        return False
