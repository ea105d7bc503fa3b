"""Expressions of users: what is accepted, and what is refused."""

import polars as pl
import pytest

from sparq.pipeline.expressions import checked

FRAME = pl.DataFrame({"selected": [1, 2], "page": ["/a", "/b"]})


def test_an_expression_is_parsed() -> None:
    """Words of SQL in names and texts are no subquery."""
    plus, kind = checked(FRAME.clear(), " selected + 1 ", "x")
    like, _ = checked(FRAME.clear(), "page LIKE '%a'", "x", pl.Boolean)

    assert [2, 3] == FRAME.select(plus).to_series().to_list()
    assert [True, False] == FRAME.select(like).to_series().to_list()
    assert kind == pl.Int64


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("(SELECT * FROM read_csv('/etc/passwd'))", "x: an .* may not contain the word SELECT"),
        ("page IN (sElEcT 1)", "may not contain the word SELECT"),
        *(("page = 'a", "."), ("", ".")),
    ],
)
def test_what_could_read_a_file_is_refused(text: str, sentence: str) -> None:
    """So is what is no expression; the error is one line."""
    with pytest.raises(ValueError, match=sentence) as raised:
        checked(FRAME.clear(), text, "x")

    assert 1 == len(str(raised.value).splitlines())
