"""Ordinary lines, found a batch at a time: same result as with the careful reader."""

from sparq.demo.generator import generate
from sparq.pipeline.click_reader import read
from sparq.pipeline.ordinary_lines import find_lines
from tests.pipeline.click_examples import ORDINARY, WORDS, as_line, nearly_ordinary, ordinary_clicks

LINES = [body for body in ORDINARY if not body.startswith(b"{")]


def read_carefully(body, names):
    """The careful reader's result, without status and bytes: "000" and "-" also mean 0."""
    click = read(body)._asdict()
    assert click["reason"] is None, body
    return click["time"], {name: click[name] for name in names if name not in ("status", "bytes")}


def test_ordinary_clicks_are_read_as_by_the_careful_reader():
    """A line that is found as ordinary is read as by the careful reader, and is valid."""
    bodies = list(nearly_ordinary(WORDS, as_line))
    rows, clicks = ordinary_clicks(find_lines, bodies)

    assert 50 < len(rows) < len(bodies) / 2
    for row, (micros, click) in zip(rows, clicks, strict=True):
        texts = {name: text for name, text in click.items() if name not in ("status", "bytes")}
        assert read_carefully(bodies[row], click) == (micros, texts)


def test_ordinary_lines_are_found():
    """Ordinary lines may have host and port, more words after the agent, and any UTC offset."""
    rows, clicks = ordinary_clicks(find_lines, [*LINES, b'{"time": 1}', b"hello"])

    assert [0, 1] == rows
    assert [("200", "17"), ("404", "-")] == [
        (click["status"], click["bytes"] or "-") for _, click in clicks
    ]


def test_nearly_all_generated_lines_are_ordinary():
    """Of generated lines only damaged ones are not ordinary: others are slow to read."""
    made = generate(2000, seed=6)
    lines = [line for line in made.lines if not line.startswith(b"{")]

    assert len(lines) > 1_000
    assert len(lines) - len(ordinary_clicks(find_lines, lines)[0]) <= made.damaged


def test_a_batch_without_lines_gives_no_clicks():
    """A batch without lines gives no clicks."""
    assert ([], []) == ordinary_clicks(find_lines, [b"\x00"])
