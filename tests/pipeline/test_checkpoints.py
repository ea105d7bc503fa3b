"""What is read from a query's checkpoint before its next start."""

import pytest

from sparq.pipeline.checkpoints import (
    PARTITIONS,
    is_unfinished,
    readable_as_state,
    shuffle_partitions,
)
from sparq.pipeline.storage import TablePlace, place_of


@pytest.fixture
def partitions(spark):
    """A function that sets the session's shuffle partitions for one test."""
    before = spark.conf.get(PARTITIONS)
    yield lambda count: spark.conf.set(PARTITIONS, str(count))
    spark.conf.set(PARTITIONS, before)


def counted_to_the_end(rows, checkpoint):
    """Count a stream by `value` until it has no more rows."""
    query = rows.groupBy("value").count().writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()


def test_a_query_keeps_the_partitions_of_its_first_start(spark, partitions, tmp_path):
    """Spark keeps the shuffle partitions of the first start; they are read from the checkpoint."""
    files, rows = TablePlace(str(tmp_path)).files(), spark.readStream.format("rate").load()
    assert shuffle_partitions(files, "checkpoint") is None
    for count in (3, 5):
        partitions(count)
        counted_to_the_end(rows, tmp_path / "checkpoint")

    assert shuffle_partitions(files, "checkpoint") == 3
    assert not is_unfinished(files, "checkpoint")


def test_a_batch_without_a_commit_is_unfinished(tmp_path):
    """A batch that has begun is unfinished until it is committed; a folder may hold other files."""
    files = TablePlace(str(tmp_path)).files()
    assert not is_unfinished(files, "of it")
    for log, batches in (("offsets", "01"), ("commits", "0")):
        (tmp_path / "of it" / log).mkdir(parents=True)
        for batch in batches:
            (tmp_path / "of it" / log / batch).touch()
            (tmp_path / "of it" / log / f".{batch}.crc").touch()

    assert is_unfinished(files, "of it")
    (tmp_path / "of it" / "commits" / "1").touch()
    assert not is_unfinished(files, "of it")


@pytest.mark.parametrize("name", ["clicks", "10% & more"])
def test_the_state_of_any_folder_can_be_read(spark, tmp_path, name):
    """The state can be read in a folder with a space or %: Spark's reader escapes its name."""
    checkpoint, words = tmp_path / name, tmp_path / "words"
    words.mkdir()
    (words / "some").write_text("one\ntwo\none\n")
    counted_to_the_end(spark.readStream.text(str(words)), checkpoint)

    with readable_as_state(place_of(spark, f"file://{checkpoint}")) as readable:
        state = spark.read.format("statestore").load(readable)
        counted = state.select("key.value", "value.count").collect()
        assert {("one", 2), ("two", 1)} == {tuple(row) for row in counted}
    with readable_as_state(TablePlace("s3a://clicks/a b")) as readable:
        assert "s3a://clicks/a b" == readable
