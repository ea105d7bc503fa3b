"""A command line is split into flags, values and words as by Go's `flag` package."""

import pytest

from tests.program.sample import FATAL, options, refused


@pytest.mark.parametrize(
    "arguments",
    [
        ["-tcp-address", "a:1"],
        ["--tcp-address", "a:1"],
        ["-tcp-address=a:1"],
        ["--tcp-address=a:1"],
        ["--tcp-address=b:2", "-tcp-address", "a:1"],
    ],
)
def test_all_spellings_of_a_flag_mean_the_same(arguments: list[str]) -> None:
    """All spellings mean the same; the last of repeated flags counts."""
    assert options(*arguments).tcp_address == "a:1"


def test_a_value_may_look_like_anything() -> None:
    """A value is the next word, even if it has dashes, spaces or signs, or is empty."""
    assert options("-name", "--deflate").name == "--deflate"
    assert options("-name", "a b = c").name == "a b = c"
    assert options("-name", "").name == ""
    assert options("-node-id", "-5").node_id == -5
    assert options("--name=--", "-node-id=7").node_id == 7


@pytest.mark.parametrize(
    ("text", "value"), [("=false", False), ("=F", False), ("=0", False), ("", True), ("=t", True)]
)
def test_a_boolean_flag_takes_its_value_only_after_an_equals_sign(text: str, value: bool) -> None:
    """A Boolean flag without `=` is true, and never takes the next word as its value."""
    assert options(f"-deflate{text}", "-node-id=3").deflate is value
    assert options(f"-deflate{text}", "-node-id=3").node_id == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["word", "--node-id=3"],
            '"word" is not a flag: remove it, or write it as a flag\'s value, --name=value',
        ),
        (["-"], '"-" is not a flag: remove it, or write it as a flag\'s value, --name=value'),
        (["--", "-node-id=3"], '"-node-id=3" is not a flag: remove it, or write it as a flag\'s'),
        (["--deflate", "false"], '"false" after --deflate is not its value: write --deflate=false'),
        (["tcp-address=a:1"], '"tcp-address=a:1" is not a flag: write --tcp-address=a:1'),
        (["tcp_address=a:_"], '"tcp_address=a:_" is not a flag: write --tcp-address=a:_'),
    ],
)
def test_a_word_that_is_no_flag_is_a_mistake(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """A word that is no flag ends the program; Go's silently ignore it and all later flags."""
    status, text = refused(capsys, *arguments)

    assert status == 1
    assert FATAL.sub("", text).startswith(sentence)
    assert text.count("\n") == 1


def test_two_dashes_at_the_end_change_nothing() -> None:
    """`--` at the end changes nothing."""
    assert options("--node-id=3", "--").node_id == 3


def test_a_repeated_flag_adds_values() -> None:
    """Each occurrence adds one value, which is not split."""
    assert options("-peer=a:1,b:2", "--peer", "c:3").lookupd == ("a:1,b:2", "c:3")
