"""Names: what is legal, that directories never collide, and quoting as Go's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol.names import (
    directory_name,
    is_ephemeral,
    is_valid_name,
    quote,
    topic_of_directory,
)

NAMES = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)
# Few letters, so that names that differ by case or underscores alone are often drawn together.
CONFUSABLE = st.text("aA_.x-", min_size=1, max_size=6)


@pytest.mark.behaviour("TestChannelTopicNames")
@pytest.mark.parametrize(
    "name", ["a", ".", "..", "-", "_", "clicks.metrics", "A-b_9", "x" * 64, "x#ephemeral"]
)
def test_legal_names(name: str) -> None:
    """NSQ's letters in 1 to 64 characters are a name, as text and as bytes."""
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
    """Anything else is none; the suffix counts towards the length, a newline is seen."""
    assert not is_valid_name(name)
    assert not is_valid_name(name.encode("utf-8", "surrogatepass"))


def test_bytes_that_are_not_utf8_are_no_name() -> None:
    """Names come from the wire as bytes of any kind."""
    assert not is_valid_name(b"\xff\xfe")


def test_ephemeral_is_told_by_the_suffix() -> None:
    """Only the suffix makes a name ephemeral."""
    assert is_ephemeral("a#ephemeral")
    assert not is_ephemeral("ephemeral")


@given(st.one_of(NAMES, CONFUSABLE))
def test_directory_names_lead_back(name: str) -> None:
    """A topic's directory tells the topic, so different topics have different directories."""
    assert topic_of_directory(directory_name(name)) == name


@given(CONFUSABLE, CONFUSABLE)
def test_directories_never_collide_ignoring_case(one: str, other: str) -> None:
    """No two names share a directory on a file system that ignores case."""
    same = directory_name(one).casefold() == directory_name(other).casefold()

    assert same == (one == other)


@given(st.one_of(NAMES, CONFUSABLE))
def test_directories_are_plain_file_names(name: str) -> None:
    """A directory's name is neither "." nor "..", has no slash and fits any file system."""
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
    """The encoding is part of the data path's format and stays."""
    assert directory_name(name) == directory


@pytest.mark.parametrize("name", ["", "a/b", "../x", "x" * 65])
def test_illegal_names_have_no_directory(name: str) -> None:
    """A name that slipped through would be refused here at last."""
    with pytest.raises(ValueError, match="not a legal name"):
        directory_name(name)


@pytest.mark.parametrize(
    "directory", ["t-", "clicks", "t-A", "t-a_", "t-a_9", "t-" + "x" * 65, "t-a b", "trash"]
)
def test_other_directories_are_no_topics(directory: str) -> None:
    """What else lies in the folder is not taken for a topic."""
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
def test_quoting_is_that_of_go(text: bytes | str, quoted: str) -> None:
    """Printable characters stand as they are; others as Go escapes them."""
    assert quote(text) == quoted
