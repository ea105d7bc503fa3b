"""The processes of a run: restarted if they die, and stopped when the run ends."""

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request

import pytest

from sparq.cli import main
from sparq.options.mistakes import Mistake
from sparq.pipeline.run.processes import App, LocalCluster, free_port
from sparq.pipeline.run.publishing import publish
from tests.support.waiting import wait_for


@pytest.fixture
def cluster(tmp_path):
    """A cluster with an nsqadmin that has not started; at the end no port is in use."""
    made = LocalCluster(tmp_path / "run", tmp_path / "data", has_admin=True)
    yield made
    made.stop()
    assert all(one.http_port == free_port(one.http_port) for one in made.members)


def test_a_killed_nsqd_is_restarted(cluster, tmp_path):
    """A killed nsqd comes back on its ports with its data."""
    cluster.start("clicks", ["archive"])
    first, second = cluster.nsqds
    asyncio.run(publish([b"click"] * 10, [first.tcp], "clicks", tmp_path))
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(10)

    assert ["nsqd-1"] == cluster.restart_dead()
    assert {"archive": 10} == cluster.depths("clicks", ["archive"])
    second.request("POST", "/topic/delete?topic=clicks")
    assert cluster.depths("clicks", ["archive"]) is None
    state = cluster.state()
    assert (2, second.process.pid) == (first.starts, state["nsqd-2"]["pid"])


def test_the_error_names_a_member_that_cannot_start(cluster):
    """The error names the member and its log; members that had started are stopped."""
    cluster.nsqds[1].command.append("--no-such-flag")

    with pytest.raises(Mistake, match=r"nsqd-2 ended .*nsqd-2\.log"):
        cluster.start()

    assert [0] * 4 == [member.pid for member in cluster.members]
    cluster.nsqds[1].command.pop()
    with pytest.raises(Mistake, match=r"nsqd-1 refused /channel/.*: 400 .*INVALID_ARG_CHANNEL"):
        cluster.start("clicks", ["a+b"])


def test_nsqadmin_acts_and_keeps_an_audit_log(cluster, capfd):
    """The nsqadmin of a run keeps its actions in its audit log, which `sparq admin audit` shows."""
    cluster.start()
    url = f"http://{cluster.members[-1].http}/"
    request = urllib.request.Request(
        f"{url}api/topics", b'{"topic": "made"}', {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()
    assert 0 == main(["admin", "audit", f"--nsqadmin-http-address={url}", "--json"])
    (entry,) = json.loads(capfd.readouterr().out)["entries"]

    assert ("create_topic", "made") == (entry["action"], entry["topic"])


def test_a_port_in_use_is_replaced():
    """A standard port is used if it is free, otherwise another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port != free_port(port)
    assert port == free_port(port)


def test_a_mistake_is_the_last_sentence_before_the_application_was_up(tmp_path):
    """The mistake is the last sentence since this start; none after the application was up."""
    says = "import sys; print('sparq pipeline: ' + sys.argv[1], 'noise', sep=chr(10))"
    app = App(tmp_path)
    for sentence in ("of an earlier start", "--master=x: unknown"):
        app.command = [sys.executable, "-c", says, sentence]
        app.start()
        wait_for(app.has_ended)
        assert sentence == app.mistake()

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "app.json").write_text('{"pid"')
    assert sentence == app.mistake()
    (tmp_path / "run" / "app.json").write_text(json.dumps({"pid": app.pid}))
    assert "" == app.mistake()
    app.command = [sys.executable, "-c", "print('noise')"]
    app.start()
    wait_for(app.has_ended)
    assert "" == app.mistake()
