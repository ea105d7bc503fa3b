"""nsqadmin as a program: start, failures to start, signals, base path, version."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import AdminServer, start_first
from tests.support.waiting import wait_for

LOOKUPD = "--lookupd-http-address=127.0.0.1:1"


def spawn_nsqadmin(folder: Path, *flags: str, base: str = "") -> AdminServer:
    """Start an nsqadmin; `base` is the base path that its flags or its file set."""
    admin = AdminServer("sparq.nsqadmin", folder, flags)
    admin.base = base
    start_first(admin)
    return admin


def test_start_reload_and_stop(tmp_path: Path) -> None:
    """It answers below its base path, reloads at SIGHUP, and ends with status 0 at SIGTERM."""
    config = tmp_path / "nsqadmin.toml"
    config.write_text('nsqlookupd_http_addresses = ["127.0.0.1:1"]\nbase_path = "queues/"\n')
    with spawn_nsqadmin(tmp_path, f"-config={config}", base="/queues") as admin:

        def get(path: str) -> tuple[int, bytes]:
            return admin.request("GET", path)

        def reload(text: str) -> None:
            config.write_text(text)
            assert admin.process is not None
            admin.process.send_signal(signal.SIGHUP)

        assert (200, b"OK") == get("/queues/ping")
        assert (200, b'["127.0.0.1:1"]') == get("/queues/config/nsqlookupd_http_addresses")
        assert (200, b"/queues") == get("/queues/config/base_path")
        assert (404, b'{"message":"NOT_FOUND"}') == get("/ping")
        status, body = get("/queues/metrics")
        assert 200 == status
        for family in ("build_info", "upstream_requests_total", "upstream_failures_total"):
            assert f"\nnsqadmin_{family}".encode() in b"\n" + body

        reload('nsqlookupd_http_addresses = ["127.0.0.1:2"]\nlog_level = "debug"\n')
        wait_for(lambda: b"127.0.0.1:2" in get("/queues/config/nsqlookupd_http_addresses")[1])
        assert (200, b"1") == get("/queues/config/log_level")
        reload("nsqd_http_addresses = []\nnsqlookupd_http_addresses = []\n")
        wait_for(lambda: "SIGHUP: nothing is changed" in admin.log_text)
        assert b"127.0.0.1:2" in get("/queues/config/nsqlookupd_http_addresses")[1]
        assert 0 == admin.terminate()
    assert "base_path has changed: that needs a restart" in admin.log_text
    assert admin.log_text.rstrip().endswith("bye")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        (
            [LOOKUPD, "--nsqd-http-address=127.0.0.1:2"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        ([LOOKUPD, "--http-client-tls-cert=x"], "--http-client-tls-key is missing"),
        ([LOOKUPD, "--http-client-tls-key=x"], "--http-client-tls-cert is missing"),
        ([LOOKUPD, "--graphite-url=graphite"], "failed to parse --graphite-url='graphite'"),
        ([LOOKUPD, "--notification-http-endpoint=x:y"], "failed to parse --notification-http"),
        (["--lookupd-http-address=nobody.invalid:1"], "failed to resolve --lookupd-http-address"),
        (["--nsqd-http-address=127.0.0.1"], "--nsqd-http-address=127.0.0.1 is not an address"),
        ([LOOKUPD, "--http-address=192.0.2.1:1"], "listen (192.0.2.1:1) failed - "),
        ([LOOKUPD, "--http-client-tls-root-ca-file=/nope"], "failed to read --http-client-tls-r"),
        (
            [LOOKUPD, "--http-client-tls-cert=/no", "--http-client-tls-key=/no"],
            "failed to load /no",
        ),
        ([LOOKUPD, "--allow-config-from-cidr=x"], "--allow-config-from-cidr: "),
        ([LOOKUPD, "--allow-node-address=a/b"], "--allow-node-address: 'a/b' is not an IP address"),
        ([LOOKUPD, "--audit-topic=a b"], "--audit-topic=a b is not a valid topic name"),
        ([LOOKUPD, "--upstream-token=@/nope"], "--upstream-token: /nope cannot be read"),
    ],
)
def test_invalid_options_prevent_the_start(flags: list[str], sentence: str) -> None:
    """With invalid options nsqadmin exits with 1; its last line is FATAL with the reason."""
    port = [] if any("--http-address" in f for f in flags) else ["--http-address=127.0.0.1:0"]
    command = [sys.executable, "-m", "sparq.nsqadmin", *port, *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert 1 == ended.returncode
    last = ended.stderr.rstrip().splitlines()[-1]
    assert f"FATAL: failed to instantiate nsqadmin - {sentence}" in last


def test_the_version() -> None:
    """-version prints the version in NSQ's form."""
    command = [sys.executable, "-m", "sparq.nsqadmin", "-version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert output.startswith("nsqadmin v1.3.0 (built w/python")
