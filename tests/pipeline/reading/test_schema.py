"""Values in the type of a user's column, and the schema that these columns give."""

import pyarrow as pa
import pytest

from sparq.pipeline.reading.schema import CLICK_SCHEMA, Reading, click_schema, fitting

FITS = {
    "string": (["a", 7, True], [{"v": 1}, []]),
    "boolean": ([True, "false"], [7, "yes"]),
    "int": ([7, "-7", 7.0], [1 << 31, True, "x", 7.5]),
    "bigint": ([1 << 62, "7"], [1 << 63, [], ""]),
    "double": ([7, 1.5, "1e3"], [True, "nan", {}]),
    "date": (["2026-03-02"], ["02.03.2026", 7]),
    "timestamp": (["2026-03-02T10:00:00Z", 1772445600], ["soon", True]),
}


@pytest.mark.parametrize("kind", FITS)
def test_values_of_other_types_do_not_fit(kind):
    """What fits is in the column's type; texts are read as numbers, dates and times."""
    values, others = FITS[kind]
    column = Reading(columns=(("own", f"a.b: {kind}"),)).own["own"][1]
    found = fitting(column, [*values, *others, None])

    assert None not in pa.array(found[: len(values)], column).to_pylist()
    assert [None] * (len(others) + 1) == found[len(values) :]


def test_own_columns_come_before_the_extra_ones():
    """After those of enrichment, with their types, in their order; a string without a type."""
    columns = (*((kind, f"a.{kind}: {kind}") for kind in FITS), ("none", "b.c"))
    schema = click_schema(Reading(columns=columns, enrich=("kind",)))
    types = ["string", "bool", "int32", "int64", "double", "date32[day]", "timestamp[us, tz=UTC]"]

    assert [*CLICK_SCHEMA.names[:-3], "kind", *FITS, "none"] == schema.names[:-3]
    assert [*types, "string"] == [str(schema.field(name).type) for name, _ in columns]
    assert click_schema(Reading()) == CLICK_SCHEMA
