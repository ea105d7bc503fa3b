"""What is read from a query's checkpoint before its next start."""

import pytest

from sparq.pipeline.checkpoints import (
    PARTITIONS,
    is_unfinished,
    readable_as_state,
    shuffle_partitions,
)
from sparq.pipeline.storage import TablePlace


@pytest.fixture
def partitions(spark):
    """A function that sets the session's shuffle partitions for one test."""
    before = spark.conf.get(PARTITIONS)
    yield lambda count: spark.conf.set(PARTITIONS, str(count))
    spark.conf.set(PARTITIONS, before)


def test_a_query_keeps_the_partitions_of_its_first_start(spark, partitions, tmp_path):
    """Spark keeps the shuffle partitions of the first start; they are read from the checkpoint."""
    files = TablePlace(str(tmp_path)).files()

    def run():
        rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        query = rows.groupBy("value").count().writeStream.outputMode("update").format("noop")
        query = (
            query.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    assert shuffle_partitions(files, "checkpoint") is None
    partitions(3)
    run()
    partitions(5)
    run()

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


@pytest.mark.parametrize("name", ["clicks", "my clicks", "10% & more"])
def test_the_state_of_any_folder_can_be_read(spark, tmp_path, name):
    """The state can be read in a folder with a space or %: Spark's reader escapes its name."""
    checkpoint, words = tmp_path / name, tmp_path / "words"
    words.mkdir()
    (words / "some").write_text("one\ntwo\none\n")
    rows = spark.readStream.text(str(words))
    query = rows.groupBy("value").count().writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()

    for address in (str(checkpoint), f"file://{checkpoint}"):
        with readable_as_state(address) as readable:
            state = spark.read.format("statestore").load(readable)
            counted = state.select("key.value", "value.count").collect()
            assert {("one", 2), ("two", 1)} == {tuple(row) for row in counted}


def test_an_unreadable_checkpoint_is_refused(tmp_path):
    """An unreadable checkpoint raises ValueError with the file's name.

    A guessed number of partitions would send clicks to buckets without their visitors.
    """
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v9")

    with pytest.raises(ValueError, match=r"offsets/0 has no valid value"):
        shuffle_partitions(TablePlace(str(tmp_path)).files(), "checkpoint")
