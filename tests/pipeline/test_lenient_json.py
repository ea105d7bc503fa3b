"""JSON as Spark's from_json reads it: what is accepted, what is refused, and values as text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.lenient_json import DEPTH_MAX, NAME_CHARACTERS_MAX, NotJson, read_object

# Values, and the results of from_json in Spark 4.3.
VALUES = {
    '"a"': "a", "'a'": "a", "'a\"b'": 'a"b', '"a\\\'b"': "a'b", '"\\u0041\\n\\/"': "A\n/", '""': "",
    '"\\ud83d\\ude00"': "\U0001f600", '"\\ud800x"': "?x", '"a\x7f"': "a\x7f",
    "null": None, "true": "true", "7": "7", "-0": "0", "-1": "-1", "1.50": "1.5", "1e3": "1000.0",
    "0.001": "0.001", "1e-4": "1.0E-4", "12345678.0": "1.2345678E7", "1234567.0": "1234567.0",
    "1e22": "1.0E22", "-0.0": "-0.0", "1e400": '"Infinity"', "-1e400": '"-Infinity"',
    "NaN": '"NaN"',
    "-Infinity": '"-Infinity"', "+INF": '"Infinity"', "9" * 30: "9" * 30,
    "{}": "{}", "[ ]": "[]", '{"a" : [1, {"b": "c\\u00e9\\n"}], \'x\':null}':
    '{"a":[1,{"b":"c\u00e9\\n"}],"x":null}', "[NaN, 1.0]": '["NaN",1.0]',
}  # fmt: skip
REFUSED = (
    "", "007", "+1", "1.", ".5", "1.e3", "0x1", "nul", "True", "INF", '"a\tb"', '"\\x41"',
    '"\\u12"',
    '"a', "[1,]", "[1 2]", "[", '{"a":1,}', "{a:1}", "{1:2}", '{"a"}', '{"a":}', "1]", "1 2", "1}",
    "9" * 1001, "- 1", "1 // c", "[" * DEPTH_MAX + "]" * DEPTH_MAX,
)  # fmt: skip


def value(text):
    """The value read from an object with one key."""
    return read_object(f'{{"x": {text}}}', {"x"})["x"]


@pytest.mark.parametrize("text", VALUES)
def test_a_value_becomes_text(text):
    """Strings lose their quotes, numbers are formatted as in Java, others become compact JSON."""
    assert value(text) == VALUES[text]


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_json_is_refused(text):
    """An invalid value is refused, also if its key is not requested."""
    for keys in ({"x"}, set()):
        with pytest.raises(NotJson):
            read_object(f'{{"x": {text}}}', keys)


@pytest.mark.parametrize(
    "text", ["", "[]", "x", '{"x": 1', '{"x": 1} 2', '{"x": 1},', '{"x" 1}', "{,}"]
)
def test_only_a_single_object_is_accepted(text):
    """Anything but one object and white space is refused."""
    with pytest.raises(NotJson):
        read_object(text, {"x"})


def test_the_last_of_equal_keys_counts():
    """Of equal keys the last counts, null included, as in Spark; other keys are left out."""
    text = ' { "a" : 1 , "b":2, "a": null, "\\u0063": 3 }\r\n\t '

    assert read_object(text, {"a", "c", "d"}) == {"a": None, "c": "3"}
    assert read_object("{ }", {"a"}) == {}


def test_depth_and_name_length_are_limited_as_in_jackson():
    """Depth and length of names are limited as in Jackson; values just within are read."""
    deep = DEPTH_MAX - 2
    assert value("[" * deep + "]" * deep) == "[" * deep + "]" * deep
    assert read_object(f'{{"{"k" * NAME_CHARACTERS_MAX}": 1}}', set()) == {}
    with pytest.raises(NotJson):
        read_object(f'{{"{"k" * (NAME_CHARACTERS_MAX + 1)}": 1}}', set())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4), st.booleans())
def test_json_written_by_python_is_read(found, ascii_only):
    """Any JSON that Python writes is read; other values than strings become equivalent JSON."""
    read = read_object(json.dumps(found, ensure_ascii=ascii_only), found.keys())

    assert read.keys() == found.keys()
    for key, text in read.items():
        if isinstance(found[key], str):
            assert text == found[key]
        elif found[key] is None:
            assert text is None
        else:
            assert json.loads(text) == found[key]


@given(st.text(alphabet="{}[]\",:\\'0123.eE-+ tfn", max_size=20))
def test_any_text_is_read_as_an_object_or_refused(text):
    """Any text is read or refused with NotJson; what Python reads as an object is read."""
    try:
        read_object("{" + text, {"a"})
    except NotJson:
        with pytest.raises((ValueError, AssertionError)):
            assert isinstance(json.loads("{" + text), dict)
