"""SIGHUP and `/config`: options that can change while nsqd runs, and options that cannot."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqd.options import NsqdOptions
from sparq.nsqd.reload import Reloader
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.program.lifecycle import StartError
from tests.nsqd.daemon import Daemon
from tests.support.options import changed
from tests.support.servers import Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import until, wait_for

pytestmark = pytest.mark.usefixtures("log_levels_are_restored")


@pytest.fixture
async def two_lookupds() -> AsyncIterator[list[Nsqlookupd]]:
    """Two running nsqlookupds."""
    here = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    daemons = [
        Nsqlookupd(NsqlookupdOptions(broadcast_address="127.0.0.1", **here)) for _ in range(2)
    ]
    for daemon in daemons:
        await daemon.start()
    yield daemons
    for daemon in daemons:
        await daemon.stop()


def address_of(daemon: Nsqlookupd) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


def nodes(daemon: Nsqlookupd) -> int:
    return next(len(found) for kind, *_, found in daemon.registry.registrations() if kind)


def topics(daemon: Nsqlookupd) -> list[str]:
    """The topics that an nsqd has registered."""
    return [t for kind, t, _, found in daemon.registry.registrations() if kind == "topic" and found]


@pytest.mark.behaviour("TestReconfigure", "stringy.TestUniq")
async def test_nsqlookupds_are_added_and_removed_in_order(
    nsqd: Daemon, two_lookupds: list[Nsqlookupd]
) -> None:
    """Addresses keep their order, without duplicates; a removed nsqlookupd drops this nsqd."""
    first, second = map(address_of, two_lookupds)
    reloader, peers = nsqd.reloader, nsqd.peers
    await nsqd.post("/topic/create?topic=old")

    reloader.set_lookupd_addresses([first])
    assert list(peers._peers) == [first]
    await until(lambda: topics(two_lookupds[0]) == ["old"])

    reloader.set_lookupd_addresses([second, first, second])
    assert list(peers._peers) == [second, first]
    assert nsqd.nsqd.options.lookupd.tcp_addresses == (second, first, second)
    await until(lambda: topics(two_lookupds[1]) == ["old"])

    reloader.set_lookupd_addresses([second])
    await until(lambda: nodes(two_lookupds[0]) == 0)
    await nsqd.post("/topic/create?topic=new")
    await until(lambda: topics(two_lookupds[1]) == ["new", "old"])
    assert (list(peers._peers), nodes(two_lookupds[1])) == ([second], 1)


async def test_a_kept_nsqlookupd_keeps_its_connection(
    nsqd: Daemon, two_lookupds: list[Nsqlookupd]
) -> None:
    """The connection to it is not interrupted, so that no consumer sees the node vanish."""
    nsqd.reloader.set_lookupd_addresses([address_of(two_lookupds[0])])
    await until(lambda: nodes(two_lookupds[0]) == 1)
    before = set(two_lookupds[0].connections)

    nsqd.reloader.set_lookupd_addresses([address_of(two_lookupds[1]), address_of(two_lookupds[0])])
    await until(lambda: nodes(two_lookupds[1]) == 1)
    assert two_lookupds[0].connections == before


async def test_a_new_topic_queries_the_current_nsqlookupds(
    nsqd: Daemon, two_lookupds: list[Nsqlookupd]
) -> None:
    """Without nsqlookupds a topic gets no channels; with one it gets the channels known there."""
    two_lookupds[0].registry.create_channel("t", "known")
    two_lookupds[0].registry.create_channel("late", "known")
    await nsqd.post("/topic/create?topic=t")
    assert (await nsqd.topic("t"))["channels"] == []

    nsqd.reloader.set_lookupd_addresses([address_of(two_lookupds[0])])
    await nsqd.post("/pub?topic=late", b"x")
    await until(lambda: nsqd.nsqd.broker.topics["late"].channels)
    assert (await nsqd.channel("late", "known"))["depth"] == 1

    nsqd.reloader.set_lookupd_addresses([])
    assert nsqd.nsqd.broker._topics.has_lookupd is False


async def test_a_topic_does_not_wait_for_a_removed_nsqlookupd(nsqd: Daemon) -> None:
    """A topic waits for an nsqlookupd that does not answer, until that one is removed."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        address = f"127.0.0.1:{hole.getsockname()[1]}"
        nsqd.reloader.set_lookupd_addresses([address])
        await nsqd.post("/topic/create?topic=t")
        topic = nsqd.nsqd.broker.topics["t"]
        assert topic.waits_for_lookup

        nsqd.reloader.set_lookupd_addresses([])
        await until(lambda: not topic.waits_for_lookup)


class Reload:
    """A SIGHUP in the test process; `wanted` has the options in the file."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.wanted: NsqdOptions | Exception = daemon.nsqd.options
        self.certificates: list[str] = []
        self.refusal: StartError | None = None
        self.reloader = Reloader(daemon.nsqd, daemon.peers, self._read)
        self.reloader.load_certificates = self._load

    def __call__(self, **changes: Any) -> NsqdOptions:
        self.wanted = changed(self.daemon.nsqd.options, **changes)
        self.reloader.reload()
        return self.daemon.nsqd.options

    def _read(self) -> NsqdOptions:
        if isinstance(self.wanted, Exception):
            raise self.wanted
        return self.wanted

    def _load(self, options: NsqdOptions) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.certificates.append(options.tls.cert)


@pytest.fixture
def reload(nsqd: Daemon, caplog: pytest.LogCaptureFixture) -> Reload:
    """Reload the daemon as SIGHUP does, and record its log from INFO up."""
    caplog.set_level(logging.INFO)
    return Reload(nsqd)


def sighup_log(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in caplog.records if "SIGHUP" in r.getMessage()]


async def test_sighup_applies_changed_options(
    reload: Reload, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGHUP changes log level, nsqlookupds and certificates, and logs each change."""
    running = reload(
        log_level=logging.DEBUG, nsqlookupd_tcp_addresses=("/nowhere",), tls_cert="new.pem"
    )

    assert logging.getLogger().level == logging.DEBUG
    assert list(reload.daemon.peers._peers) == ["/nowhere"]
    assert reload.certificates == ["new.pem"]
    assert (running.log.level, running.tls.cert) == (logging.DEBUG, "new.pem")
    assert sighup_log(caplog) == [
        ("INFO", 'SIGHUP: log_level is now "debug"'),
        ("INFO", 'SIGHUP: nsqlookupd_tcp_addresses is now "/nowhere"'),
        ("INFO", 'SIGHUP: tls_cert is now "new.pem"'),
    ]


async def test_invalid_certificates_keep_the_old_ones(
    reload: Reload, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged; the other changes in the file take effect."""
    reload.refusal = StartError("failed to build TLS config - no such file")
    running = reload(tls_cert="new.pem", log_level=logging.WARNING)
    assert running.tls.cert == ""
    assert logging.getLogger().level == logging.WARNING
    assert sighup_log(caplog) == [
        (
            "ERROR",
            "SIGHUP: keeping the old certificates: failed to build TLS config - no such file",
        ),
        ("INFO", 'SIGHUP: log_level is now "warn"'),
        ("WARNING", "SIGHUP: tls_cert has changed: that needs a restart"),
    ]


async def test_enabling_tls_needs_a_restart(
    reload: Reload, caplog: pytest.LogCaptureFixture
) -> None:
    """An nsqd that was started without certificates needs a restart for TLS."""
    reload.reloader.load_certificates = None
    assert reload(tls_cert="new.pem").tls.cert == ""
    assert sighup_log(caplog) == [
        ("WARNING", "SIGHUP: tls_cert has changed: that needs a restart"),
    ]


async def test_sighup_during_a_stop_is_ignored(reload: Reload) -> None:
    """A SIGHUP after a SIGTERM is ignored: the connections are closed already."""
    reload.daemon.nsqd.exiting = True
    reload(nsqlookupd_tcp_addresses=("/nowhere",))

    assert list(reload.daemon.peers._peers) == []


class SighupSender:
    """Sends SIGHUP to a real process after a change of its configuration file."""

    def __init__(self, server: Server, config: Path) -> None:
        self.server = server
        self.config = config

    def __call__(self, text: str, *lines: str) -> None:
        """Write the file, send SIGHUP, and wait for these lines in the log."""
        self.config.write_text(text)
        seen = len(self.server.log_text)
        os.kill(self.server.pid, signal.SIGHUP)

        def new() -> str:
            return self.server.log_text[seen:]

        wait_for(lambda: all(line in new() for line in lines), describe=new)


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    """nsqd takes the log level and the nsqlookupds from the changed file.

    The command line overrides the file. A broken file changes nothing, and nsqd continues.
    """
    config = tmp_path / "nsqd.toml"
    config.write_text('msg_timeout = "1m"\n')
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, f"--config={config}", "--max-rdy-count=7") as server,
    ):
        hangup = SighupSender(server, config)
        hangup('msg_timeout = "1m"\nmax_rdy_count = 8\n', "INFO: SIGHUP: no option has changed\n")
        hangup(
            f'log_level = "DEBUG"\nnsqlookupd_tcp_addresses = "{lookupd.tcp}"\nmsg_timeout = 5000',
            'INFO: SIGHUP: log_level is now "debug"\n',
            f'INFO: SIGHUP: nsqlookupd_tcp_addresses is now "{lookupd.tcp}"\n',
            "WARNING: SIGHUP: msg_timeout has changed: that needs a restart\n",
            f"INFO: LOOKUPD({lookupd.tcp}): connected\n",
        )
        assert len(lookupd.get_json("/nodes")["producers"]) == 1
        hangup("log_level = ", "ERROR: SIGHUP: nothing is changed: failed to load config file")
        hangup("id = true", "ERROR: SIGHUP: nothing is changed: ERROR: Resolve failed to coerce")
        hangup('log_level = "loud"', "SIGHUP: nothing is changed: failed parsing log_level loud")
        assert len(lookupd.get_json("/nodes")["producers"]) == 1
        hangup('log_level = "fatal"\n')
        wait_for(lambda: not lookupd.get_json("/nodes")["producers"])
        assert server.terminate() == 0
    assert "NSQ: bye" not in server.log_text
