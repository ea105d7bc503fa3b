"""The data source before a query runs: its readers, and the schemas that they accept."""

import pickle

import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from sparq.spark.data_source import COLUMNS, NsqDataSource
from sparq.spark.options import OptionError

KINDS = (T.BinaryType(), T.IntegerType(), T.LongType(), T.StringType(), T.TimestampType())


def schema_of(text: str) -> T.StructType:
    """Make a schema from "name type" pairs, without a session to parse it."""
    known = {kind.simpleString(): kind for kind in KINDS}
    fields = (field.split() for field in text.split(", "))
    return T.StructType([T.StructField(name, known[kind], not no) for name, kind, *no in fields])


FULL = schema_of(", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))


def reader_of(schema: T.StructType, **options: str) -> DataSourceReader:
    given = {"topic": "clicks", "nsqd_tcp_addresses": "127.0.0.1:4150"}
    return NsqDataSource(CaseInsensitiveDict(given | options)).reader(schema)


def test_only_a_reader_with_the_option_has_push_filters():
    """A reader has `pushFilters` only with pushDownPredicate=true.

    Spark refuses a reader with `pushFilters` unless Spark's own setting is on, too.
    """
    plain, pushing = (reader_of(FULL, pushDownPredicate=text) for text in ("false", "true"))

    assert DataSourceReader.pushFilters is type(plain).pushFilters
    assert DataSourceReader.pushFilters is not type(pushing).pushFilters
    assert type(pushing) is type(pickle.loads(pickle.dumps(pushing)))


@pytest.mark.parametrize("text", ["body string", "clicks string", "body binary never"])
def test_a_schema_may_only_select_columns(text):
    """A schema with another type, another column or NOT NULL is refused with a list of columns."""
    with pytest.raises(OptionError, match="these columns, all nullable: topic string, nsqd"):
        reader_of(schema_of(text))
