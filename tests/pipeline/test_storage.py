"""The location of a Delta table: Spark's addresses and credentials translated for `deltalake`."""

from sparq.pipeline.storage import TablePlace, address_of, place_of, s3_options


def test_local_addresses_are_paths():
    """A local address becomes a path, without unescaping: Hadoop addresses are not escaped."""
    assert "/data/an archive" == address_of("file:/data/an archive")
    assert "/data/50%25" == address_of("file:///data/50%25")
    assert "hdfs://nodes:8020/data" == address_of("hdfs://nodes:8020/data")
    assert "s3a://clicks/archive" == address_of("s3a://clicks/archive")


def test_sparks_s3_options_are_passed_on():
    """Spark's S3 options are passed on; a bucket's own options override the general ones.

    An Amazon endpoint is left out: it follows from the region.
    """
    configured = {
        "fs.s3a.access.key": "one",
        "fs.s3a.bucket.clicks.access.key": "two",
        "fs.s3a.secret.key": "secret",
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com",
        "fs.s3a.connection.ssl.enabled": "true",
    }

    assert {
        "AWS_ACCESS_KEY_ID": "two",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-central-1",
    } == s3_options(configured.get, "clicks")
    assert "one" == s3_options(configured.get, "others")["AWS_ACCESS_KEY_ID"]
    assert {} == s3_options({}.get, "clicks")


def test_an_s3_endpoint_may_have_a_scheme():
    """An S3 endpoint may have a scheme; plain HTTP needs AWS_ALLOW_HTTP."""
    for endpoint, encrypted, address in (
        ("minio:9000", "false", "http://minio:9000"),
        ("minio:9000", "", "https://minio:9000"),
        ("http://minio", "true", "http://minio"),
    ):
        configured = {"fs.s3a.endpoint": endpoint, "fs.s3a.connection.ssl.enabled": encrypted}
        allowed = {} if address.startswith("https:") else {"AWS_ALLOW_HTTP": "true"}

        assert {"AWS_ENDPOINT_URL": address, **allowed} == s3_options(configured.get, "clicks")


def test_the_representation_has_no_credentials():
    """The representation, which may be logged, has no credentials."""
    place = TablePlace("s3a://clicks/archive", {"AWS_SECRET_ACCESS_KEY": "planted"})

    assert "planted" not in f"{place} {place!r}"


def test_relative_paths_are_resolved_as_by_spark(spark, tmp_path, monkeypatch):
    """A relative path is in the driver's working folder; given options replace Spark's."""
    monkeypatch.chdir(tmp_path)
    root = (tmp_path / "an archive").as_uri()

    assert str(tmp_path / "archive") == place_of(spark, str(tmp_path / "archive")).address
    assert str(tmp_path / "an%20archive") == place_of(spark, root).address
    assert {"timeout": "5s"} == place_of(spark, root, {"timeout": "5s"}).options
