"""The settings of reading, and the schema that they give."""

import pickle

import pyarrow as pa
import pytest

from sparq.pipeline.reading.formats import TYPES
from sparq.pipeline.reading.schema import CLICK_SCHEMA, Reading, click_schema

WRONG = {
    "format=combind is unknown: did you mean combined": {"format": "combind"},
    "fields=c-ip has no date and time": {"fields": "c-ip"},
    "click: pth is no field of a click: did you mean path": {"click": (("pth", "a"),)},
    "click: path has no path": {"click": (("path", ""),)},
    "columns: .Order Id. is no name of a column": {"columns": (("Order Id", "a: int"),)},
    "columns: path is a column of every click": {"columns": (("path", "a: int"),)},
    'columns: a = .* is not "path: type" with one of': {"columns": (("a", "b: blob"),)},
    "trusted-proxies= is not a network: write": {"trusted_proxies": ("10.0.0.0/99",)},
}


@pytest.mark.parametrize(("reason", "settings"), WRONG.items())
def test_a_wrong_setting_is_one_sentence(reason, settings):
    """A wrong setting raises an error that names it and says what to write."""
    with pytest.raises(ValueError, match=reason):
        Reading(**settings)


def test_own_columns_come_before_the_extra_ones():
    """The user's columns have their types, in their order, before `extra`."""
    columns = tuple((kind, f"a.{kind}: {kind}") for kind in ("bigint", "date"))
    names = click_schema(Reading(columns=columns)).names

    assert [*CLICK_SCHEMA.names[:-3], "bigint", "date", "extra", "misfits", "reason"] == names
    assert click_schema(Reading()) == CLICK_SCHEMA


def test_a_column_is_text_without_a_type():
    """A path without a type is a string; each type has a name of Spark SQL."""
    reading = Reading(columns=(("a", "b.c"), *((f"c_{one}", f"x:{one}") for one in TYPES)))

    assert ("b.c", pa.string()) == reading.own["a"]
    assert [
        "string",
        "bool",
        "int32",
        "int64",
        "double",
        "date32[day]",
        "timestamp[us, tz=UTC]",
    ] == [str(kind) for _, kind in list(reading.own.values())[1:]]


def test_settings_can_be_sent_to_executors():
    """Settings are equal after pickle, and usable as a key."""
    reading = Reading(click=(("path", "a.b"),), trusted_proxies=("private",))

    assert {reading: 1}[pickle.loads(pickle.dumps(reading))]
