"""Expressions of users: what is parsed, and what is refused."""

import polars as pl
import pytest

from sparq.pipeline.expressions import parse


def test_an_expression_is_parsed() -> None:
    """Words of SQL in names and texts are no subquery."""
    frame = pl.DataFrame({"selected": [1, 2], "page": ["/a", "/b"]})

    assert [2, 3] == frame.select(parse(" selected + 1 ")).to_series().to_list()
    assert [True, False] == frame.select(parse("page LIKE '%a'")).to_series().to_list()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(SELECT * FROM read_csv('/etc/passwd'))", "may not contain the word SELECT"),
        ("page IN (sElEcT 1)", "may not contain the word SELECT"),
        ("page = 'a", "."),
        ("", "."),
    ],
)
def test_what_could_read_a_file_is_refused(text: str, sentence: str) -> None:
    """So is what is no expression; the error is one line."""
    with pytest.raises(ValueError, match=sentence) as raised:
        parse(text)

    assert 1 == len(str(raised.value).splitlines())
