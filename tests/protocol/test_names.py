"""Names: valid ones, directories that never collide, and quoting as in Go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol.names import (
    directory_name,
    fits,
    is_valid_name,
    quote,
    topic_of_directory,
)

NAMES = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)
# Few letters, so that pairs that differ only by case or underscores are drawn often.
CONFUSABLE = st.text("aA_.x-", min_size=1, max_size=6)


@pytest.mark.behaviour("TestChannelTopicNames")
@pytest.mark.parametrize(
    "name", ["a", ".", "..", "-", "_", "clicks.metrics", "A-b_9", "x" * 64, "x#ephemeral"]
)
def test_legal_names(name: str) -> None:
    """1 to 64 of NSQ's characters are a valid name, as text and as bytes."""
    assert is_valid_name(name)
    assert is_valid_name(name.encode())


@pytest.mark.behaviour("TestChannelTopicNames")
@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 65, "x" * 55 + "#ephemeral", "a b", "a\n", "a/b", "é", "a#", "#ephemeral"),
        *("a#ephemeralx", "a#Ephemeral", "a#ephemeral#ephemeral", "a\0", "\ud800"),
    ],
)
def test_illegal_names(name: str) -> None:
    """Anything else is invalid, including a newline at the end.

    The suffix `#ephemeral` counts towards the length.
    """
    assert not is_valid_name(name)
    assert not is_valid_name(name.encode("utf-8", "surrogatepass"))


@given(st.one_of(NAMES, CONFUSABLE))
def test_a_directorys_name_gives_its_topic(name: str) -> None:
    """A directory's name gives its topic, so different topics have different directories."""
    assert topic_of_directory(directory_name(name)) == name


@given(CONFUSABLE, CONFUSABLE)
def test_directories_never_collide_ignoring_case(one: str, other: str) -> None:
    """No two topics share a directory on a file system that ignores case."""
    same = directory_name(one).casefold() == directory_name(other).casefold()

    assert same == (one == other)


@given(st.one_of(NAMES, CONFUSABLE))
def test_directories_are_plain_file_names(name: str) -> None:
    """A directory's name is lower case, has no slash and at most 130 characters."""
    directory = directory_name(name)

    assert directory.startswith("t-")
    assert directory == directory.lower()
    assert "/" not in directory
    assert len(directory) <= 130


@pytest.mark.parametrize(
    ("name", "directory"),
    [(".", "t-."), ("..", "t-.."), ("Ab_c", "t-_ab__c"), ("x#ephemeral", "t-x#ephemeral")],
)
def test_directory_examples(name: str, directory: str) -> None:
    """The encoding is part of the data path's format and must not change."""
    assert directory_name(name) == directory


@pytest.mark.parametrize("name", ["", "a/b", "../x", "x" * 65])
def test_illegal_names_have_no_directory(name: str) -> None:
    """An invalid name raises ValueError."""
    with pytest.raises(ValueError, match="not a legal name"):
        directory_name(name)


@pytest.mark.parametrize(
    "directory", ["t-", "clicks", "t-A", "t-a_", "t-a_9", "t-" + "x" * 65, "t-a b", "trash"]
)
def test_other_directories_give_no_topic(directory: str) -> None:
    """Other directories' names give no topic."""
    assert topic_of_directory(directory) is None


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b"plain name", '"plain name"'),
        (b'a"b\\c', '"a\\"b\\\\c"'),
        (b"\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        (b"\x00\x1f\x7f", '"\\x00\\x1f\\x7f"'),
        (b"\xff\xc3", '"\\xff\\xc3"'),
        ("é漢😀".encode(), '"é漢😀"'),
        ("\u0085\u200b\ufeff", '"\\u0085\\u200b\\ufeff"'),
        ("\U000e0001", '"\\U000e0001"'),
        ("\ufffd", '"\ufffd"'),
    ],
)
def test_names_are_quoted_as_in_go(text: bytes | str, quoted: str) -> None:
    """Printable characters are unchanged, others are escaped as in Go."""
    assert quote(text) == quoted


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("clicks", "clicks", True),
        ("clicks", "clicks2", False),
        ("clicks", "Clicks", False),
        ("click*", "clicks.old", True),
        ("*", "a#ephemeral", True),
        ("*", "", True),
        ("c*s", "clicks", True),
        ("c*s", "clicks.", False),
        ("c?", "cx", True),
        ("c?", "c", False),
        ("a.c", "abc", False),
        ("*#ephemeral", "x#ephemeral", True),
        ("*#ephemeral", "x", False),
    ],
)
def test_pattern_wildcards(pattern: str, name: str, is_one: bool) -> None:
    """`*` matches any text, `?` one character, everything else itself."""
    assert is_one == fits(pattern, name)
