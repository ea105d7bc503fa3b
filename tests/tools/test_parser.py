"""Command lines that argparse reads: one-sentence errors, and the version."""

from __future__ import annotations

import pytest

from sparq.tools.parser import ToolParser, VersionAction


def parser() -> ToolParser:
    made = ToolParser("tool", description="a tool")
    made.add_argument("--version", action=VersionAction)
    made.add_argument("--count", type=int)
    return made


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--count=x"], "--count"), (["more"], "unrecognized arguments: more")],
)
def test_a_usage_error_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    """The error is printed without usage, and the exit status is that of the tool for errors."""
    made = parser()
    made.mistake_status = 2
    with pytest.raises(SystemExit) as ended:
        made.parse_args(words)

    said = capsys.readouterr()
    assert (2, "", 1) == (ended.value.code, said.out, said.err.count("\n"))
    assert said.err.startswith("tool: ")
    assert reason in said.err


def test_the_version_is_one_line_on_any_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the form of NSQ's tools."""
    monkeypatch.setenv("COLUMNS", "20")
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])

    said = capsys.readouterr().out
    assert (0, 1, True) == (ended.value.code, said.count("\n"), said.startswith("tool v1.3.0 ("))


def test_without_a_version_there_is_no_flag() -> None:
    """The flag adds nothing to the parsed values."""
    assert {"count": 3} == vars(parser().parse_args(["--count=3"]))
