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
from tests.scenarios.spark.witness import WAIT_SECONDS, Witness
from tests.support.own_topic import own_topic
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.spark_session import IN_A_SESSION
from tests.support.waiting import wait_for

pytestmark = IN_A_SESSION


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
