"""Failing disks: publishes are refused with the reason, FINs are not, and all works again later."""

from __future__ import annotations

import copy
import errno
import json

import pytest

from sparq.broker.channel import SeekTarget
from sparq.log.disk import DiskError
from sparq.protocol import commands
from sparq.protocol.layout import INDEX_LIMIT
from sparq.testing import Fault, MemoryDisk, PowerCut
from tests.broker.harness import BrokerHarness


@pytest.fixture
def harness() -> BrokerHarness:
    """A broker with an empty data path."""
    return BrokerHarness()


def test_a_refused_publish_keeps_its_connection(harness: BrokerHarness) -> None:
    """E_PUB_FAILED has the disk's error; the client stays connected."""
    client = harness.connect()
    client.say(commands.pub("t", b"before"))
    assert client.answers() == [b"OK"]
    harness.disk.fail(Fault(1, errno.ENOSPC, frozenset({"write", "create"}), times=9))
    client.say(
        commands.pub("t", b"1") * 2 + commands.mpub("t", [b"2"]) + commands.dpub("t", 5, b"3")
    )
    reason = b"no space left on device"
    assert client.answers() == [
        b"E_PUB_FAILED PUB failed " + reason,
        b"E_PUB_FAILED PUB failed " + reason,
        b"E_MPUB_FAILED MPUB failed " + reason,
        b"E_DPUB_FAILED DPUB failed " + reason,
    ]
    assert not client.session.closing
    assert harness.broker.health().startswith("NOK - no space left on device; ")
    assert harness.broker.notes

    harness.disk.fault = None
    client.say(commands.pub("t", b"after"))

    assert client.answers() == [b"OK"]
    assert harness.broker.health() == "OK"
    assert harness.consumer("t", "c", rdy=10).bodies() == [b"before", b"after"]


def test_a_batch_of_a_failed_sync_is_written_again_or_refused(harness: BrokerHarness) -> None:
    """P8: after a failed sync a batch is written again or refused, never acknowledged and lost."""
    for seed in range(10):
        harness = BrokerHarness()
        client = harness.connect()
        client.say(commands.pub("t", b"first"))
        client.answers()
        harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"}), times=1 + seed % 3))
        client.say(commands.pub("t", b"doubtful"))
        (answer,) = client.answers()
        harness.disk.fault = None
        harness.disk = harness.disk.crash(seed)
        harness.crash()
        bodies = harness.consumer("t", "c", rdy=10).bodies()

        assert bodies[0] == b"first"
        assert answer != b"OK" or bodies == [b"first", b"doubtful"]


def test_fins_are_kept_while_the_ledger_cannot_be_written(harness: BrokerHarness) -> None:
    """A FIN is never refused; it is written to the ledger when the disk accepts writes again."""
    consumer = harness.consumer("t", "c", rdy=10)
    harness.publish("t", b"1", b"2", b"3")
    messages = consumer.messages()
    consumer.answers()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"write"}), times=5))
    consumer.finish(messages[:2])
    assert consumer.answers() == []
    assert harness.channel("t", "c").in_flight_count == 1
    assert harness.broker.health() != "OK"

    harness.disk.fault = None
    harness.pass_time(1.0)
    assert harness.broker.health() == "OK"
    harness.crash()

    assert harness.consumer("t", "c", rdy=10).bodies() == [b"3"]


def test_a_topic_that_cannot_be_created_is_refused(harness: BrokerHarness) -> None:
    """PUB and SUB of a topic that cannot be created get the reason; later the same name works."""
    harness.disk.fail(Fault(1, errno.ENOSPC, frozenset({"mkdir", "create"}), times=9))
    producer, consumer = harness.connect(), harness.connect()
    producer.say(commands.pub("t", b"x"))
    consumer.say(commands.sub("t", "c"))
    assert producer.answers() == [b"E_PUB_FAILED PUB failed no space left on device"]
    assert consumer.answers() == [b"E_SUB_FAILED SUB failed no space left on device"]
    assert (producer.session.closing, consumer.session.closing) == (False, True)

    harness.disk.fault = None
    producer.say(commands.pub("t", b"y"))

    assert producer.answers() == [b"OK"]


def test_a_failed_read_is_repeated(harness: BrokerHarness) -> None:
    """After EIO on a read no message is delivered wrongly or lost: it is read again 1 s later."""
    harness = BrokerHarness(cache_bytes=1)
    for n in range(10):
        harness.publish("t", b"%d" % n)
    harness.crash()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"read", "open"}), times=1))
    consumer = harness.consumer("t", "c", rdy=100)
    assert consumer.bodies() == []

    harness.pass_time(1.1)

    assert consumer.bodies() == [b"%d" % n for n in range(10)]


class DiskWithForbiddenDirectory(MemoryDisk):
    """A disk on which the files of one directory cannot be opened."""

    forbidden = "none"

    def step(self, operation: str, path: str) -> None:
        """Refuse to open the forbidden files."""
        super().step(operation, path)
        if operation == "open" and self.forbidden in path:
            raise DiskError(operation, path, errno.EACCES)


def test_a_topic_that_cannot_be_opened_is_left_alone() -> None:
    """A topic that cannot be opened is reported and refused; its files stay, and others work.

    Health says which and why; peers do not learn the path. The next start opens it.
    """
    disk = DiskWithForbiddenDirectory()
    harness = BrokerHarness(disk)
    harness.publish("bad", b"x")
    harness.publish("good", b"y")
    files = [path for path in disk.paths() if "/t-bad/" in path]
    disk.forbidden = "/t-bad/"
    harness.crash()
    assert any("bad" in note for note in harness.broker.notes)
    assert harness.broker.health() == "NOK - topic bad cannot be opened: permission denied"

    client = harness.connect()
    client.say(commands.pub("good", b"z") + commands.pub("bad", b"z"))

    ok, refused = client.answers()
    assert ok == b"OK"
    reason = b"topic bad cannot be opened: permission denied"
    assert refused == b"E_PUB_FAILED PUB failed " + reason
    harness.pass_time(60)
    assert [path for path in disk.paths() if "/t-bad/" in path] == files
    disk.forbidden = "none"
    harness.crash()
    assert harness.broker.health() == "OK"
    assert harness.consumer("bad", "c", rdy=1).bodies() == [b"x"]


def test_range_requests_on_a_failing_disk_get_its_error() -> None:
    """ENDS and READ get E_RANGE_FAILED with the disk's error; the same request works later."""
    harness = BrokerHarness(cache_bytes=1)
    for n in range(20):
        harness.publish("t", b"%d" % n * 100)
        harness.advance(1.0)
    harness.consumer("t", "c")
    harness.crash()
    client = harness.connect()
    client.say(commands.ends("t"))
    ends = json.loads(client.answers()[0])
    log, first, end = ends["log"], int(ends["first"]), int(ends["end"])
    questions = (
        commands.ends("t", "time", harness.clock.wall_ns - 9_500_000_000),
        commands.read("t", log, first, end, 1 << 20),
    )
    for question in questions:
        harness.disk.fail(Fault(1, errno.EIO, frozenset({"open", "read"}), times=1))
        client.say(question)
        ((kind, refused),) = client.take_frames()
        assert (kind, refused.split(b" ")[0]) == (1, b"E_RANGE_FAILED")
        assert refused.endswith(b"failed input/output error")
        client.say(question)
        ((kind, _),) = client.take_frames()
        assert kind != 1


def test_a_failed_seek_is_noted_and_moves_nothing() -> None:
    """A channel whose seek fails to read stays where it is, and the error is noted."""
    harness = BrokerHarness(cache_bytes=1)
    harness.consumer("t", "c")
    for n in range(20):
        harness.publish("t", b"%d" % n * 100)
        harness.advance(1.0)
    harness.crash()
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"open", "read"}), times=1))
    target: SeekTarget = ("time", harness.clock.wall_ns - 5_500_000_000)
    harness.broker.seek("t", "c", target, harness.clock.now())
    harness.turn()

    assert harness.channel("t", "c").depth == 20
    assert any("seeking" in note for note in harness.broker.notes)


def test_a_segment_that_cannot_be_deleted_is_noted() -> None:
    """A segment that cannot be deleted stays on the disk and is noted; delivery goes on."""
    harness = BrokerHarness(max_bytes_per_file=2000)
    consumer = harness.consumer("t", "c", rdy=100)
    for n in range(20):
        harness.publish("t", b"%d" % n * 150)
    consumer.finish(consumer.messages())
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"unlink", "rename"}), times=99))
    harness.pass_time(3.0)

    assert any("could not be deleted" in note for note in harness.broker.notes)
    harness.disk.fault = None
    harness.publish("t", b"new")
    assert consumer.bodies() == [b"new"]


def test_a_topic_whose_sync_fails_at_the_start_is_left_alone(harness: BrokerHarness) -> None:
    """At the start, the log is synced before it is used (P8).

    If that fails, the next start retries: no file is synced again after a failed sync.
    """
    harness.publish("t", b"x")
    disk = harness.disk
    copied = copy.deepcopy(disk)
    copied.trace.clear()
    BrokerHarness(copied)
    syncs = [(kind, path.endswith(".log")) for kind, path in copied.trace]
    disk.fail(Fault(syncs.index(("sync", True)) + 1))

    harness.crash()

    assert any(".log: input/output error" in note for note in harness.broker.notes)
    harness.pass_time(11)
    assert "t" not in harness.broker.topics

    harness.crash()
    assert [b"x"] == harness.consumer("t", "c", rdy=1).bodies()


def test_a_start_rewrites_pages_of_a_failed_sync() -> None:
    """A start writes pages again that a failed sync left in memory.

    The kernel regards them as written, so another sync alone would not write them to the disk.
    """
    harness = BrokerHarness(sync_every=2500)
    harness.publish("t", b"x")
    (path,) = [path for path in harness.disk.paths() if path.endswith(".log")]
    file = harness.disk.open(path)
    harness.disk.fail(Fault(1, errno.EIO, frozenset({"sync"})))
    with pytest.raises(DiskError):
        file.sync()
    file.close()
    assert harness.disk.forgotten() == [path]

    harness.disk = harness.disk.killed()
    harness.crash()
    assert harness.disk.forgotten() == []
    harness.disk = harness.disk.crash(1)
    harness.crash()
    assert [b"x"] == harness.consumer("t", "c", rdy=1).bodies()


def test_a_ledger_that_cannot_be_synced_at_the_start_is_replaced(harness: BrokerHarness) -> None:
    """P3: if a ledger cannot be synced at the start, a checkpoint stores its entries again."""
    harness.publish("t", b"x")
    client = harness.consumer("t", "c", rdy=1)
    client.finish(client.messages())
    disk = harness.disk
    copied = copy.deepcopy(disk)
    copied.trace.clear()
    BrokerHarness(copied)
    steps = [(kind, "ledger-" in path) for kind, path in copied.trace]
    disk.fail(Fault(steps.index(("sync", True)) + 1))

    harness.crash()
    assert any("ledger-" in line and "input/output" in line for line in harness.report), (
        harness.report
    )
    harness.disk = harness.disk.crash(1)
    harness.crash()

    assert harness.channel("t", "c").depth == 0


def test_an_index_file_without_space_is_tried_once_per_trim() -> None:
    """On a full disk an index file is tried once per trim, not in a loop."""
    harness = BrokerHarness(max_bytes_per_file=20_000)
    for _ in range(8):
        harness.publish("t", b"." * 9_000)
    for path in harness.disk.paths():
        if path.endswith(".index"):
            harness.disk.unlink(path)
    harness.crash()
    harness.disk.fail(Fault(1, errno.ENOSPC, frozenset({"write", "create"}), times=10_000))
    harness.pass_time(2.0)
    harness.pass_time(2.0)
    assert harness.disk.failed_count == 2

    harness.disk.fault = None
    harness.pass_time(2.0)
    assert len([path for path in harness.disk.paths() if path.endswith(".index")]) >= 3


class DiskOfLayers(MemoryDisk):
    """A disk on which the topics' folders cannot be renamed, as in an overlay's lower layer."""

    def step(self, operation: str, path: str) -> None:
        """Refuse to rename them."""
        super().step(operation, path)
        if operation == "rename" and "/topics/" in path and path.count("/") == 3:
            raise DiskError(operation, path, errno.EXDEV)


def test_a_topic_whose_folder_cannot_be_renamed_is_deleted_wholly_or_not_at_all() -> None:
    """A power cut at any step of the deletion leaves all messages, or no topic."""
    returned = 0
    for at in range(1, 100):
        disk = DiskOfLayers()
        harness = BrokerHarness(disk)
        harness.consumer("t", "c")
        harness.publish("t", b"x", b"y")
        harness.broker.delete_topic("t", harness.clock.now())
        disk.fail(Fault(at, None))
        is_cut = False
        try:
            harness.turn()
            assert harness.broker.not_durable_reason("t") is None
        except PowerCut:
            is_cut = True
        again = BrokerHarness(disk.crash(seed=at))
        returned += "t" in again.broker.topics
        assert is_cut or "t" not in again.broker.topics
        if "t" in again.broker.topics:
            assert again.broker.topics["t"].stream.log.messages_between(0, INDEX_LIMIT) == 2
        else:
            again.publish("t", b"z")
            again.crash()
            assert again.consumer("t", "c", rdy=9).bodies() == [b"z"]
        if not is_cut:
            break
    assert 0 < returned < at


def test_a_mark_of_a_deletion_does_not_outlive_a_start() -> None:
    """The record of a deletion cannot delete a new topic of that name: a start removes it first."""
    disk = DiskOfLayers()
    harness = BrokerHarness(disk)
    harness.publish("t", b"x")
    harness.broker.delete_topic("t", harness.clock.now())
    disk.fail(Fault(1, errno.EIO, frozenset({"unlink"}), times=10**6))
    harness.turn()
    disk.fail(Fault(2, errno.EIO, frozenset({"rmdir"}), times=10**6))
    with pytest.raises(DiskError, match="rmdir"):
        BrokerHarness(disk)
    disk.fault = None

    harness = BrokerHarness(disk)
    harness.publish("t", b"y")
    harness.crash()

    assert harness.consumer("t", "c", rdy=9).bodies() == [b"y"]
