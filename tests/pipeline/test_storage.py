"""The location of a Delta table: Spark's addresses and credentials translated for `deltalake`."""

import pytest

from sparq.pipeline.storage import TablePlace, place_of, readable_as_state, s3_options
from tests.pipeline.query_input import counted_to_the_end

KEYS = {
    "fs.s3a.access.key": "one",
    "fs.s3a.bucket.clicks.access.key": "two",
    "fs.s3a.secret.key": "secret",
    "fs.s3a.endpoint.region": "eu-central-1",
}
AWS = {"AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}


def endpoint(address, encrypted):
    return {"fs.s3a.endpoint": address, "fs.s3a.connection.ssl.enabled": encrypted}


@pytest.mark.parametrize(
    ("configured", "bucket", "expected"),
    [
        ({}, "clicks", {}),
        (KEYS, "clicks", {"AWS_ACCESS_KEY_ID": "two", **AWS}),
        (KEYS, "others", {"AWS_ACCESS_KEY_ID": "one", **AWS}),
        (endpoint("s3.eu-central-1.amazonaws.com", "true"), "clicks", {}),
        (endpoint("minio:9000", ""), "clicks", {"AWS_ENDPOINT_URL": "https://minio:9000"}),
        *(
            (given, "clicks", {"AWS_ENDPOINT_URL": "http://minio", "AWS_ALLOW_HTTP": "true"})
            for given in (endpoint("minio", "false"), endpoint("http://minio", "true"))
        ),
    ],
)
def test_sparks_s3_options_are_passed_on(configured, bucket, expected):
    """Spark's S3 options are passed on; a bucket's own options override the general ones.

    An Amazon endpoint is left out: it follows from the region. Others may have a scheme.
    """
    assert expected == s3_options(configured.get, bucket)


def test_the_representation_has_no_credentials():
    """The representation, which may be logged, has no credentials."""
    place = TablePlace("s3a://clicks/archive", {"AWS_SECRET_ACCESS_KEY": "planted"})

    assert "planted" not in f"{place} {place!r}"


def test_addresses_are_those_that_spark_would_write_to(spark, tmp_path):
    """A local address becomes a path, without unescaping; given options replace Spark's."""
    root = (tmp_path / "an archive").as_uri()

    assert str(tmp_path / "an archive") == place_of(spark, f"{tmp_path}/an archive").address
    assert str(tmp_path / "an%20archive") == place_of(spark, root).address
    assert {"timeout": "5s"} == place_of(spark, root, {"timeout": "5s"}).options


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
