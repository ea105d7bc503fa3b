"""Values in the type of a user's column."""

import json

import pytest

from sparq.pipeline.reading.own_columns import own_columns, with_extra
from sparq.pipeline.reading.schema import Reading

FITS = {
    "string": (["a", 7, True], [{"v": 1}, []]),
    "boolean": ([True, "false"], [1, "yes"]),
    "int": ([7, "-7", 7.0], [1 << 31, True, "x", 7.5]),
    "bigint": ([1 << 62, "+7"], [1 << 63, [], ""]),
    "double": ([7, 1.5, "1e3"], [True, "nan", {}]),
    "date": (["2026-03-02"], ["02.03.2026", 7]),
    "timestamp": (["2026-03-02T10:00:00Z", 1772445600], ["soon", True]),
}


@pytest.mark.parametrize("kind", FITS)
def test_a_value_that_does_not_fit_its_column_is_extra_and_counted(kind):
    """A value of another type goes to `extra` below its own path, and is counted."""
    fitting, others = FITS[kind]
    values = [*fitting, *others, None]
    extras = [None] * len(values)
    found = own_columns({"own": values}, extras, Reading(columns=(("own", f"a.b: {kind}"),)))

    assert [0] * len(fitting) + [1] * len(others) + [0] == found["misfits"].to_list()
    assert None not in found["own"].to_list()[: len(fitting)]
    assert [None] * (len(others) + 1) == found["own"].to_list()[len(fitting) :]
    assert others == [json.loads(one)["a"]["b"] for one in extras[len(fitting) : -1]]


def test_a_misfit_joins_the_other_values():
    """A value is added to the extra values that a message has."""
    assert b'{"a":{"x":1,"y":2}}' == with_extra('{"a":{"x":1}}', "a.y", 2)
    assert b'{"peer":"::1"}' == with_extra(None, "peer", "::1")
