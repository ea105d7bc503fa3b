"""Queries continue from checkpoints of earlier versions, without duplicate or missing messages.

`golden/` contains what `golden_write.py` of each version wrote.
"""

import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from sparq.spark.offsets import Offset
from tests.scenarios.spark.golden_write import PLANNED, PUBLISHED, TOPIC
from tests.support.servers import spawn_nsqd

pytestmark = [
    # The first test also waits for the JVM to start, even on a busy machine.
    pytest.mark.timeout(400),
    # Py4J leaves closing its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAIT_SECONDS = 150
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.tar.xz"))


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name.removesuffix(".tar.xz"))
def folder(request, tmp_path):
    """A golden checkpoint and data path, unpacked."""
    with tarfile.open(request.param) as archive:
        # Written by golden_write.py; the argument `filter` is new in Python 3.11.4.
        archive.extractall(tmp_path)
    return tmp_path


def test_there_are_golden_checkpoints():
    """A golden checkpoint exists of the version that supported a single topic."""
    assert "one_topic.tar.xz" in {path.name for path in GOLDEN}


def test_offsets_of_earlier_versions_are_unchanged(folder):
    """Each offset of an earlier version is read, and would be written back unchanged."""
    offsets = [
        path for path in (folder / "checkpoint" / "offsets").iterdir() if path.name.isdigit()
    ]

    assert 3 == len(offsets)
    for path in offsets:
        found = json.loads(path.read_text().splitlines()[-1])
        assert found == Offset.parse(found).as_json()


@pytest.mark.parametrize("option", ["topic", "topics"])
def test_a_query_of_an_earlier_version_continues(spark, folder, option):
    """The planned batch is repeated with the same messages; then later messages are read."""
    batches: dict[int, list[int]] = {}

    def keep(rows, batch: int) -> None:
        batches[batch] = sorted(int(bytes(row.body)) for row in rows.select("body").collect())

    with spawn_nsqd(folder, name="data") as nsqd:
        options = {option: TOPIC, "channel": "archive", "nsqd_tcp_addresses": nsqd.tcp}
        query = (
            spark.readStream.format("nsq")
            .options(**options)
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_SECONDS)

    assert list(range(200, PLANNED)) == batches[2]
    assert Counter(range(200, PUBLISHED)) == Counter(
        number for bodies in batches.values() for number in bodies
    )
