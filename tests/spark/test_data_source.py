"""The data source before a query runs: Spark finds, configures and pickles it."""

import pickle
import pkgutil

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import pyspark_nsq
from sparq.spark.data_source import COLUMNS, NsqDataSource
from sparq.spark.options import OptionError
from sparq.spark.ranges import SCHEMA
from tests.support.servers import free_port

NSQD = {"topic": "clicks", "channel": "archive", "nsqd_tcp_addresses": "127.0.0.1:4150"}


def source_of(**options: str) -> NsqDataSource:
    return NsqDataSource(CaseInsensitiveDict(NSQD | options))


KINDS = (BinaryType(), IntegerType(), LongType(), StringType(), TimestampType())


def schema_of(text: str) -> StructType:
    """Make a schema from "name type" pairs, without a session to parse it."""
    known = {kind.simpleString(): kind for kind in KINDS}
    fields = (field.split() for field in text.split(", "))
    return StructType([StructField(name, known[kind], not rest) for name, kind, *rest in fields])


FULL = schema_of(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))


def test_spark_finds_the_data_source_by_its_module():
    """Spark looks for modules named pyspark_* with a DefaultSource."""
    assert "pyspark_nsq" in {module.name for module in pkgutil.iter_modules()}
    assert NsqDataSource is pyspark_nsq.DefaultSource
    assert "nsq" == pyspark_nsq.DefaultSource.name()


def test_the_schema_is_that_of_the_rows():
    """The declared schema equals the schema of the rows that the source produces."""
    assert list(COLUMNS) == SCHEMA.names
    assert source_of(nsqd_tcp_addresses=f"127.0.0.1:{free_port()}").schema() == ", ".join(
        f"`{name}` {COLUMNS[name]}" for name in SCHEMA.names
    )


def test_readers_and_writers_are_copied_to_executors():
    """Readers and writers can be pickled: none holds a connection before it is used."""
    body = schema_of("body binary")
    for made in (
        source_of().streamReader(FULL),
        source_of().reader(FULL),
        source_of().writer(body, False),
        source_of().streamWriter(body, True),
    ):
        assert type(made) is type(pickle.loads(pickle.dumps(made)))


def test_only_a_reader_with_the_option_has_push_filters():
    """A reader has `pushFilters` only with pushDownPredicate=true.

    Spark refuses a reader with `pushFilters` unless Spark's own setting is on, too.
    """
    plain, pushing = (source_of(pushDownPredicate=text).reader(FULL) for text in ("false", "true"))

    assert DataSourceReader.pushFilters is type(plain).pushFilters
    assert DataSourceReader.pushFilters is not type(pushing).pushFilters
    assert type(pushing) is type(pickle.loads(pickle.dumps(pushing)))


@pytest.mark.parametrize("text", ["body string", "clicks string", "body binary never"])
def test_a_schema_may_only_select_columns(text):
    """A schema with another type, another column or NOT NULL is refused with a list of columns."""
    with pytest.raises(OptionError, match="these columns, all nullable: topic string, nsqd"):
        source_of().reader(schema_of(text))
