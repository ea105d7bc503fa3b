"""nsqds fail, move and lose data while Spark reads them, with real processes and a recorder.

Each scenario runs with a continuous query and with runs that read the available messages
(availableNow), and with failOnDataLoss true and false. In each, every message is in the sink
exactly once, except those that were lost, and the query has reported exactly the lost ones.
"""

import contextlib
import re
import shutil
from collections import Counter

import pytest

from sparq.client.range_reader import RangeReader
from sparq.protocol import commands
from sparq.spark.connections import NsqdDiscovery
from sparq.spark.offsets import TopicSelection
from sparq.spark.options import ClusterOptions
from tests.scenarios.spark.witness import WAIT_SECONDS, Witness, wipe
from tests.support.own_topic import own_topic
from tests.support.servers import NsqdServer, spawn_nsqd, spawn_nsqlookupd, start_first
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

pytestmark = [
    # The first test also waits for the JVM to start, even on a busy machine.
    pytest.mark.timeout(400),
    # Py4J leaves closing its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

every_query = pytest.mark.parametrize(
    ("continuous", "fail"),
    [
        pytest.param(True, True, id="continuous-fail", marks=pytest.mark.slow),
        pytest.param(True, False, id="continuous-go_on"),
        pytest.param(False, True, id="drained-fail"),
        pytest.param(False, False, id="drained-go_on", marks=pytest.mark.slow),
    ],
)


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory):
    """One nsqlookupd for all tests; each uses its own topics."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookupd")) as running:
        yield running


@pytest.fixture(scope="module")
def steady(tmp_path_factory, lookupd):
    """An nsqd that keeps running undisturbed."""
    with spawn_nsqd(tmp_path_factory.mktemp("steady"), lookupds=(lookupd,)) as running:
        yield running


@pytest.fixture
def another(tmp_path, lookupd):
    """Return a function that starts a further nsqd."""

    def start(name: str, *flags: str) -> NsqdServer:
        return spawn_nsqd(tmp_path, *flags, lookupds=(lookupd,), name=name)

    return start


@pytest.fixture
def nsqd(another):
    """An nsqd that the test kills, stops or moves."""
    with another("hurt") as running:
        yield running


@pytest.fixture
def witness(request, spark, spark_log, lookupd, tmp_path):
    """The recorder of a query that finds its nsqds through nsqlookupd."""
    values = request.node.callspec.params
    options = {
        "topic": own_topic(request),
        "lookupd_http_addresses": lookupd.http,
        "startingOffsets": "earliest",
        "failOnDataLoss": str(values["fail"]).lower(),
    }
    made = Witness(spark, spark_log, tmp_path, options)
    made.continuous = values["continuous"]
    yield made
    made.stop()


def lookupd_knows(witness: Witness, nsqd: NsqdServer) -> bool:
    """Whether the query would find an nsqd now."""
    found = NsqdDiscovery(
        ClusterOptions((), (witness.options["lookupd_http_addresses"],), 1000),
        TopicSelection((witness.options["topic"],)),
    )
    return nsqd.tcp in {place.address for place in found.found()}


def number_of_lost(line: str) -> int:
    """Return how many messages a log line reports as lost and skipped."""
    found = re.search(r"([\d,]+) messages of topic .* are lost.* continues without", line)
    return int(found[1].replace(",", "")) if found else 0


def restart_behind_its_back(
    witness: Witness, nsqd: NsqdServer, count: int, *, gracefully: bool
) -> None:
    """Restart an nsqd; before the query reaches it, it accepts messages and deletes those read.

    The query cannot reach it meanwhile, since it listens on another address. The last batch is
    deleted because a consumer subscribes: nsqd keeps it only for range readers.
    """
    topic = witness.options["topic"]
    wait_for(lambda: nsqd.channel(topic, "spark")["depth"] == 0)
    nsqd.terminate() if gracefully else nsqd.kill9()
    flags = (f"--data-path={nsqd.folder}", "--broadcast-address=127.0.0.1")
    with NsqdServer("sparq.nsqd", nsqd.folder, flags) as elsewhere:
        start_first(elsewhere)
        reader = RangeReader(elsewhere.tcp)
        before = reader.ends(topic)
        with V2Client(elsewhere) as consumer:
            assert consumer.ask(commands.sub(topic, "spark")) == OK
        witness.publish(elsewhere, count)
        wait_for(
            lambda: reader.ends(topic).first_ordinal == before.end_ordinal,
            describe=lambda: (before, reader.ends(topic), elsewhere.channel(topic, "spark")),
        )
        assert reader.ends(topic).first > before.end
        reader.close()
        elsewhere.terminate() if gracefully else elsewhere.kill9()
    nsqd.start()


@every_query
def test_nothing_is_lost_when_nsqds_restart_join_and_leave(
    witness, steady, another, continuous, fail
):
    """Nothing is lost or read twice when nsqds restart, join and leave between two reads.

    nsqd restarts, cleanly and after a kill, and accepts messages before Spark reaches it again. A
    new nsqd joins and leaves. A run of available messages cannot know whether that nsqd has
    messages: with failOnDataLoss it fails and names it, without it continues.
    """
    with another("hurt") as nsqd, another("joining") as joining:
        witness.publish(steady, 10_000)
        witness.publish(nsqd, 20_000)
        witness.read()
        for gracefully in (True, False):
            restart_behind_its_back(witness, nsqd, 10_000, gracefully=gracefully)
            witness.publish(nsqd, 5_000)
            witness.publish(steady, 1_500)
            witness.read()
        witness.publish(joining, 30_000)
        witness.read()
        joining.terminate()
        witness.publish(nsqd, 7_000)
        witness.options["nsqdTimeoutMs"] = "3000"
        if fail and not continuous:
            told = witness.wait_for_failure()
            assert f"nsqd {joining.tcp}" in told
            assert "if it will never come back, name it in the option lostNsqds" in told
            joining.start()
        witness.read()

    assert 100_000 == len(witness.published)
    assert "" == witness.wrong()
    assert [] == witness.lines("are lost")


@every_query
def test_an_nsqd_that_was_down_at_the_start_is_read(witness, steady, nsqd, continuous, fail):
    """An nsqd that was down at the start is read from its channel's cursor, without repetition."""
    topic = witness.options["topic"]
    witness.options["startingOffsets"] = "committed" if continuous == fail else "latest"
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=keeps")
    old = len(witness.publish(nsqd, 2_000) + witness.publish(steady, 100))
    for each in (nsqd, steady):
        wait_for(lambda each=each: each.channel(topic, "spark")["depth"] > 0)
        each.post(f"/channel/empty?topic={topic}&channel=spark")
    wait_for(lambda: lookupd_knows(witness, nsqd))
    nsqd.kill9()
    wait_for(lambda: not lookupd_knows(witness, nsqd))
    witness.read(0)
    if continuous:
        wait_for(lambda: witness.query.lastProgress is not None, WAIT_SECONDS, every=0.05)
    witness.publish(steady, 1_000)
    witness.read(1_000)
    nsqd.start()
    if continuous:
        wait_for(lambda: nsqd.tcp in witness.query.lastProgress.sources[0].endOffset)
    else:
        witness.run()
    assert 0 == nsqd.channel(topic, "spark")["depth"]
    witness.publish(nsqd, 5_000)
    witness.read(6_000)

    assert witness.found() == Counter(witness.published[old:])
    assert [] == witness.lines("are lost")


@every_query
def test_a_replaced_disk_is_reported_as_a_loss(witness, steady, nsqd, continuous, fail):
    """An nsqd that returns without its log is one reported loss."""
    said = f"of topic {witness.options['topic']} at nsqd {nsqd.tcp} are lost: its log"
    witness.publish(steady, 1_000)
    witness.publish(nsqd, 10_000)
    witness.read()
    wipe(nsqd)
    nsqd.start()
    if fail:
        assert said in witness.wait_for_failure()
        witness.options["failOnDataLoss"] = "false"
    witness.publish(nsqd, 20_000)
    witness.read()
    witness.publish(nsqd, 1_000)
    witness.read()

    assert "" == witness.wrong()
    assert 1 == sum("continues without" in line for line in witness.lines(said))


@every_query
def test_messages_dropped_by_the_lag_limit_are_reported(witness, another, continuous, fail):
    """Unread messages dropped by the lag limit are reported; all others are read once."""
    flags = ["--max-bytes-per-file=262144", "--max-channel-lag-bytes=524288"]
    topic = witness.options["topic"]
    witness.options["maxOffsetsPerTrigger"] = "6500"
    with another("limited", *flags) as nsqd:
        witness.publish(nsqd, 6_500)
        if continuous:
            witness.gate.clear()
        witness.read()
        witness.publish(nsqd, 93_500)
        wait_for(lambda: nsqd.channel(topic, "spark")["depth"] < 50_000, every=0.05)
        witness.gate.set()
        if fail:
            told = witness.wait_for_failure()
            assert f"of topic {topic} at nsqd {nsqd.tcp} are lost: they were deleted" in told
            witness.options["failOnDataLoss"] = "false"
        witness.read_to_the_last()

    found = witness.found()
    assert 1 == max(found.values())
    lost = sum(map(number_of_lost, witness.lines(f"of topic {topic} at nsqd {nsqd.tcp} are lost")))
    assert len(witness.published) - len(found) == lost > 0


@pytest.mark.parametrize("fail", [True], ids=[""])
@pytest.mark.parametrize("continuous", [True, False], ids=["continuous", "drained"])
def test_a_batch_whose_commit_is_lost_runs_again(witness, another, continuous, fail):
    """After kills, a batch whose commit is lost is repeated; nsqd keeps it, but no older ones."""
    topic = witness.options["topic"]
    witness.options["maxOffsetsPerTrigger"] = "6000"
    with another("small", "--max-bytes-per-file=65536") as nsqd:
        witness.publish(nsqd, 18_000)
        first = first_index(nsqd, topic)
        for _ in range(2):
            witness.read()
            wait_for(lambda: nsqd.channel(topic, "spark")["depth"] == 0)
            wait_for(lambda before=first: first_index(nsqd, topic) > before)
            witness.stop()
            witness.batches.pop(forget_last_commit(witness))
            nsqd.kill9()
            nsqd.start()
            first = first_index(nsqd, topic)
            witness.read()
            witness.publish(nsqd, 18_000)
        witness.read()

    assert "" == witness.wrong()
    assert [] == witness.lines("are lost")


def first_index(nsqd: NsqdServer, topic: str) -> int:
    """Return the first index of the topic's log."""
    with contextlib.closing(RangeReader(nsqd.tcp)) as reader:
        return reader.ends(topic).first


def forget_last_commit(witness: Witness) -> int:
    """Delete the last file in a stopped query's `commits/`; return its batch number."""
    commits = witness.checkpoint / "commits"
    batch = max(int(path.name) for path in commits.glob("[0-9]*"))
    for name in (f"{batch}", f".{batch}.crc"):
        (commits / name).unlink(missing_ok=True)
    return batch


@pytest.mark.parametrize(("continuous", "fail"), [(False, True)], ids=[""])
def test_an_nsqd_that_is_lost_for_good_is_given_up_by_name(witness, steady, nsqd, continuous, fail):
    """With lostNsqds a query goes on without an nsqd; each message is read once or counted as lost.

    The nsqd dies while a batch that was planned with it is not finished.
    """
    witness.options |= {"maxOffsetsPerTrigger": "2000", "nsqdTimeoutMs": "2000"}
    kept = witness.publish(steady, 5_000)
    dying = witness.publish(nsqd, 5_000)
    witness.gate.clear()
    witness.start(availableNow=True)
    wait_for(lambda: witness.count == 2_000, WAIT_SECONDS)
    nsqd.kill9()
    witness.stop()
    shutil.rmtree(witness.checkpoint / "commits", ignore_errors=True)
    assert f"nsqd {nsqd.tcp}" in witness.wait_for_failure()

    witness.options["lostNsqds"] = nsqd.tcp
    witness.run()
    found = witness.found()
    assert Counter(kept) == Counter({body: found[body] for body in kept})
    lost = re.findall(
        r"(?:at least )?([0-9,]+)(?:,| messages) of topic .* lostNsqds gives", witness.log_text()
    )
    assert 5_000 == sum(found[body] for body in dying) + sum(
        int(count.replace(",", "")) for count in lost
    )

    witness.publish(steady, 1_000)
    witness.options.pop("lostNsqds")
    witness.run()
    assert 6_000 == sum(body in witness.found() for body in (*kept, *witness.published[-1_000:]))
