"""`sparq bench` with a real nsqd: the effect of each flag, the table, and the deleted topic."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sparq.program.flags import flags_of
from sparq.tools import bench as module
from sparq.tools.bench import Options, bench
from sparq.tools.command_line import ToolError, UsageError, parse
from sparq.tools.scratch_topic import ScratchTopic
from tests.support.servers import NsqdServer, free_port, spawn_nsqd
from tests.tools.conftest import GuardedNsqd

ATTEMPTS = 10

FLAGS = {
    "nsqd-tcp-address": "test_every_measure_is_in_the_table",
    "nsqd-http-address": "test_every_measure_is_in_the_table",
    "duration": "test_every_measure_is_in_the_table",
    "size": "test_every_measure_is_in_the_table",
    "tasks": "test_every_measure_is_in_the_table",
    "batch": "test_every_measure_is_in_the_table",
    "backlog": "test_every_measure_is_in_the_table",
    "rate": "test_the_requested_rate_is_kept",
    "part": "test_named_parts_run_in_the_usual_order",
    "max-in-flight": "test_client_options_reach_the_consumer",
    "token": "test_a_guarded_nsqd",
    "http-client-tls-root-ca-file": "test_a_guarded_nsqd",
    "client-opt": "test_client_options_reach_the_consumer",
}


def test_no_flag_is_missing() -> None:
    """Each flag has a test of its effect."""
    assert {flag.name for flag in flags_of(Options)} == set(FLAGS)
    assert all(name in globals() for name in FLAGS.values())


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd for all tests; every bench uses its own topic."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


def options(nsqd: NsqdServer, *words: str) -> Options:
    places = (f"--nsqd-tcp-address={nsqd.tcp}", f"--nsqd-http-address={nsqd.http}")
    return parse(Options, "sparq bench", (*places, *words))


def topics(nsqd: NsqdServer) -> list[str]:
    stats = nsqd.get_json("/stats?format=json&include_clients=false")
    return [topic["topic_name"] for topic in stats["topics"]]


async def test_every_measure_is_in_the_table(
    nsqd: NsqdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every flag's value shows in the table; the topic is deleted at the end."""
    words = ("--duration=50ms", "--size=100", "--tasks=7", "--batch=30", "--backlog=600")
    asked = options(nsqd, *words, "--rate=200")
    began = time.monotonic()

    assert 0 == await bench(asked, asyncio.Event())

    assert 4 * 0.05 < time.monotonic() - began  # a part without messages may end early
    head, _, headings, *rows = capfd.readouterr().out.splitlines()
    assert f"{nsqd.tcp}, nsqd v1.3.0: messages of 100 B, 50ms each" == head
    assert "MESSAGES/S MIB/S P50 MS P95 MS P99 MS MAX MS" == " ".join(headings.split())
    found = {name: rest for name, *rest in (re.split(r"  +", row) for row in rows)}
    assert [
        *("publish, 1 task", "publish, 7 tasks", "publish, 30 at once", "consume, one by one"),
        *("consume, batches of 30", "latency, publish to OK", "latency, publish to delivery"),
    ] == list(found)
    assert all(float(figures[0].replace(",", "")) > 0 for figures in found.values())
    assert all(figures[2:] == ["-"] * 4 for name, figures in found.items() if "consume" in name)
    assert float(found["latency, publish to OK"][0]) <= 210
    assert [] == topics(nsqd)


async def test_the_requested_rate_is_kept(
    nsqd: NsqdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rate is never above the requested 200/s, and above 100/s at least once in ten runs."""
    rates: list[float] = []
    while len(rates) < ATTEMPTS and max(rates, default=0.0) <= 100:
        asked = options(nsqd, "--part=latency", "--duration=50ms", "--rate=200")
        assert 0 == await bench(asked, asyncio.Event())
        rows = capfd.readouterr().out.splitlines()[3:]
        found = {name: rest for name, *rest in (re.split(r"  +", row) for row in rows)}
        rates.append(float(found["latency, publish to OK"][0]))

    assert 100 < max(rates) <= 210


async def test_named_parts_run_in_the_usual_order(
    nsqd: NsqdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Named parts run in the usual order; `--batch=1` measures no batches."""
    words = ("--part=latency,publish", "--duration=20ms", "--batch=1")

    assert 0 == await bench(options(nsqd, *words), asyncio.Event())

    rows = capfd.readouterr().out.splitlines()[3:]
    assert ["publish, 1 task", "publish, 100 tasks"] == [
        re.split("  +", row)[0] for row in rows[:2]
    ]
    assert 4 == len(rows)
    with pytest.raises(SystemExit):
        options(nsqd, "--part=everything")
    assert (
        '--part: "everything" is not one of publish, consume, latency\n' in capfd.readouterr().err
    )


async def test_client_options_reach_the_consumer(
    nsqd: NsqdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """`--client-opt` and `--max-in-flight` reach the consumer; an unknown option is an error."""
    words = ("--part=consume", "--duration=10s", "--backlog=100000", "--max-in-flight=3")
    stop = asyncio.Event()
    running = asyncio.create_task(bench(options(nsqd, *words, "--client-opt=snappy"), stop))
    seen: list[dict[str, object]] = []

    def consuming() -> bool:
        stats = nsqd.get_json("/stats?format=json")
        seen[:] = [
            client
            for topic in stats["topics"]
            for channel in topic["channels"]
            for client in channel["clients"] or ()
        ]
        return bool(seen and seen[0]["ready_count"])

    while not await asyncio.to_thread(consuming):
        assert not running.done()
    stop.set()

    assert 0 == await running
    assert (3, True) == (seen[0]["ready_count"], seen[0]["snappy"])
    assert str(seen[0]["user_agent"]).startswith("sparq_bench/")
    with pytest.raises(SystemExit):
        options(nsqd, "--client-opt=flavour,sweet")
    assert "invalid option flavour" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("--size=0", "--size should be 1 or more"),
        ("--tasks=0", "--tasks should be 1 or more"),
        ("--max-in-flight=0", "--max-in-flight should be 1 or more"),
        ("--duration=0", "--duration should be positive"),
        ("--size=1048577", "--size should be at most 1048576"),
        ("--backlog=10000000", "--size times --backlog should be at most 1073741824"),
        ("--nsqd-tcp-address=nowhere", "--nsqd-tcp-address not an address of the form host:port"),
        ("--nsqd-http-address=nowhere", "--nsqd-http-address not an address of the form host:port"),
    ],
)
async def test_invalid_values_are_refused(word: str, reason: str, nsqd: NsqdServer) -> None:
    """The value is refused before the bench starts, with the flag's name."""
    with pytest.raises(UsageError, match=re.escape(reason)):
        await bench(options(nsqd, word), asyncio.Event())


async def test_an_unreachable_nsqd_is_an_error(
    nsqd: NsqdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the address, for HTTP and TCP; no topic is left."""
    monkeypatch.setattr(module, "PUBLISH_SECONDS", 0.2)
    nobody = f"127.0.0.1:{free_port()}"

    with pytest.raises(ToolError, match=f"--nsqd-http-address {nobody}: connection refused"):
        await bench(options(nsqd, f"--nsqd-http-address={nobody}"), asyncio.Event())
    with pytest.raises(ToolError, match="speaks NSQ"):
        await bench(options(nsqd, f"--nsqd-http-address={nsqd.tcp}"), asyncio.Event())
    with pytest.raises(ToolError, match=f"{nobody}: "):
        await bench(options(nsqd, f"--nsqd-tcp-address={nobody}"), asyncio.Event())
    assert [] == topics(nsqd)


async def test_http_and_tcp_addresses_must_be_of_one_nsqd(
    nsqd: NsqdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench compares nsqd's message count with the number of acknowledged messages."""

    async def nothing(_topic: ScratchTopic) -> int:
        return 0

    monkeypatch.setattr(ScratchTopic, "message_count", nothing)
    with pytest.raises(
        ToolError, match="counted 0: check that both addresses are of the same nsqd"
    ):
        await bench(options(nsqd, "--part=publish", "--duration=10ms"), asyncio.Event())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_a_signal_prints_the_lines_measured_so_far(
    nsqd: NsqdServer, number: signal.Signals
) -> None:
    """SIGINT and SIGQUIT print the lines measured so far; the status is 0, and no topic remains."""
    command = [sys.executable, "-m", "sparq.cli", "bench", "--duration=100ms", "--part=publish"]
    command += [f"--nsqd-tcp-address={nsqd.tcp}", f"--nsqd-http-address={nsqd.http}"]
    with subprocess.Popen(
        [*command, "--client-opt=heartbeat_interval,5s"], stdout=subprocess.PIPE, text=True
    ) as process:
        while not topics(nsqd):
            assert process.poll() is None
        process.send_signal(number)
        said, _ = process.communicate(timeout=30)

    assert 0 == process.returncode
    assert said == "" or "MESSAGES/S" in said
    assert [] == topics(nsqd)


async def test_a_guarded_nsqd(guarded: GuardedNsqd, capfd: pytest.CaptureFixture[str]) -> None:
    """The token and the CA file create and delete the topic at an nsqd that requires them."""
    flags = (guarded.address, guarded.token, guarded.authority)
    client = ("tls_v1", f"tls_root_ca_file,{guarded.authority.partition('=')[2]}")
    client += (f"auth_secret,{guarded.token.partition('=')[2]}",)
    words = (f"--nsqd-tcp-address={guarded.nsqd.tcp}", *flags, "--part=publish", "--duration=20ms")
    words += tuple(f"--client-opt={each}" for each in client)

    assert 0 == await bench(parse(Options, "sparq bench", words), asyncio.Event())
    assert "publish" in capfd.readouterr().out
