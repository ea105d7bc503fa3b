"""The types of options: their values on a command line and in a file."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.options.kinds import (
    FLOAT,
    FLOATS,
    LISTEN,
    PEER,
    STRING,
    TLS_REQUIRED,
    TLS_VERSION,
    TLS_VERSIONS,
    Kind,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (FLOAT, "0.25", 0.25),
        (FLOAT, "-.5e1", -5.0),
        (FLOAT, "1", 1.0),
        (FLOATS, "0.5", [0.5]),
        (FLOATS, "1,.99,5e-1", [1.0, 0.99, 0.5]),
        (TLS_REQUIRED, "true", "true"),
        (TLS_REQUIRED, "1", "true"),
        (TLS_REQUIRED, "F", "false"),
        (TLS_REQUIRED, "TCP-HTTPS", "tcp-https"),
        (TLS_VERSION, "", "tls1.2"),
        (TLS_VERSION, "TLS1.0", "tls1.0"),
        (TLS_VERSION, "tls1.3", "tls1.3"),
    ],
)
def test_nsqs_spellings_are_accepted_on_a_command_line(
    kind: Kind, text: str, value: object
) -> None:
    """NSQ's spellings are accepted in any case; an empty TLS version means tls1.2."""
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (FLOAT, 0.25, 0.25),
        (FLOAT, 1, 1.0),
        (FLOAT, "0.5", 0.5),
        (FLOATS, "0.99,0.5", [0.99, 0.5]),
        (FLOATS, 0.25, [0.25]),
        (FLOATS, 1, [1.0]),
        (TLS_REQUIRED, True, "true"),
        (TLS_REQUIRED, False, "false"),
        (TLS_REQUIRED, "tcp-https", "tcp-https"),
        (TLS_REQUIRED, 1, "true"),
        (TLS_VERSION, "tls1.1", "tls1.1"),
    ],
)
def test_toml_types_and_texts_are_accepted_in_a_file(
    kind: Kind, given: object, value: object
) -> None:
    """A file may have TOML's own types or texts."""
    assert kind.coerce(given) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        *(
            (FLOAT, text, "write a number")
            for text in ("", "half", "nan", "inf", "1_0", " 1", "1e999")
        ),
        (FLOATS, "", "write numbers"),
        (FLOATS, "0.5,,1", "write numbers"),
        (FLOATS, "half", "write numbers"),
        (TLS_REQUIRED, "http", "write true, false or tcp-https"),
        (TLS_REQUIRED, "", "write true, false or tcp-https"),
        (TLS_VERSION, "ssl3.0", "tls version must be one of tls1.0, tls1.1, tls1.2, tls1.3"),
        (TLS_VERSION, "1.2", "tls version must be one of tls1.0, tls1.1, tls1.2, tls1.3"),
    ],
)
def test_other_texts_are_refused(kind: Kind, text: str, reason: str) -> None:
    """Other texts raise ValueError, on a command line and in a file."""
    for read in (kind.parse, kind.coerce):
        with pytest.raises(ValueError, match=reason):
            read(text)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (FLOAT, True),
        (FLOAT, [0.5]),
        (FLOATS, True),
        (FLOATS, [0.5]),
        (TLS_REQUIRED, 2),
        (TLS_VERSION, 1.2),
    ],
)
def test_other_types_in_a_file_are_refused(kind: Kind, given: object) -> None:
    """A TOML value of another type raises ValueError."""
    with pytest.raises(ValueError, match=r"."):
        kind.coerce(given)


def test_only_tls_required_may_have_no_value() -> None:
    """`--tls-required` without a value is true; the others need a value."""
    assert (TLS_REQUIRED.bare, TLS_VERSION.bare, FLOATS.bare) == ("true", "", "")


@given(st.lists(st.lists(st.floats(0, 1), min_size=1)))
def test_repeated_percentiles_are_sorted_in_descending_order(values: list[list[float]]) -> None:
    """Repeated percentiles are sorted in descending order, as NSQ sorts them for /stats."""
    gathered = FLOATS.gather(iter(values))

    assert list(gathered) == sorted(chain.from_iterable(values), reverse=True)


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_raises_value_error(text: str) -> None:
    """Any text is parsed or raises ValueError; a parsed TLS version is one of TLS_VERSIONS."""
    for kind in (FLOATS, TLS_REQUIRED, TLS_VERSION):
        try:
            value = kind.parse(text)
        except ValueError:
            continue
        assert kind is not TLS_VERSION or value in TLS_VERSIONS


@pytest.mark.parametrize("kind", [LISTEN, PEER])
def test_leading_zeros_do_not_hide_an_invalid_port(kind: Kind) -> None:
    """A port may have leading zeros; without them it is at most 65,535."""
    kind.check("host:0000065535")
    kind.check("host:" + "0" * 5000)
    with pytest.raises(ValueError, match="has an invalid port: 0000099999 is above 65535"):
        kind.check("host:0000099999")


def test_a_text_is_shown_in_quotes() -> None:
    """A text is shown in quotes, with a newline escaped; an empty text is shown as nothing."""
    assert ['"a"', '"\\n"', '"ä"', ""] == [STRING.show(text) for text in ("a", "\n", "ä", "")]
