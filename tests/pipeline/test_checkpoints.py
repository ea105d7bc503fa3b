"""What is read from a query's checkpoint before its next start."""

import pytest

from sparq.pipeline.checkpoints import PARTITIONS, QueryCheckpoint, readable_as_state


@pytest.fixture
def partitions(spark):
    """A function that sets the session's shuffle partitions for one test."""
    before = spark.conf.get(PARTITIONS)
    yield lambda count: spark.conf.set(PARTITIONS, str(count))
    spark.conf.set(PARTITIONS, before)


def test_a_query_keeps_the_partitions_of_its_first_start(spark, partitions, tmp_path):
    """Spark keeps the shuffle partitions of the first start; they are read from the checkpoint."""
    checkpoint = QueryCheckpoint(spark, str(tmp_path / "checkpoint"))

    def run():
        rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        query = rows.groupBy("value").count().writeStream.outputMode("update").format("noop")
        query = (
            query.option("checkpointLocation", checkpoint.address)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    partitions(3)
    assert checkpoint.shuffle_partitions() == 3
    assert not checkpoint.is_unfinished()
    run()
    partitions(5)
    run()

    assert checkpoint.shuffle_partitions() == 3


def test_a_batch_without_a_commit_is_unfinished(spark, tmp_path):
    """A batch that has begun is unfinished until it is committed; a folder may hold other files."""
    checkpoint = QueryCheckpoint(spark, str(tmp_path))
    for log, batches in (("offsets", "01"), ("commits", "0")):
        (tmp_path / log).mkdir()
        for batch in batches:
            (tmp_path / log / batch).touch()
            (tmp_path / log / f".{batch}.crc").touch()

    assert checkpoint.is_unfinished()
    (tmp_path / "commits" / "1").touch()
    assert not checkpoint.is_unfinished()


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


def test_an_unreadable_checkpoint_is_refused(spark, tmp_path):
    """An unreadable checkpoint raises ValueError with the file's name.

    A guessed number of partitions would send clicks to buckets without their visitors.
    """
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v9")

    with pytest.raises(ValueError, match=r"offsets/0 has no valid value"):
        QueryCheckpoint(spark, str(tmp_path / "checkpoint")).shuffle_partitions()
