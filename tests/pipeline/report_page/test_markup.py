"""What a click says is text on the page."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.report_page.page import visible
from tests.pipeline.report_page.made import HOSTILE


class Seen(HTMLParser):
    """What a reader of the markup finds: tags, attributes, text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@given(st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_text_of_a_click_is_read_as_the_same_text(text):
    """Whatever it is, no tag and no attribute comes of it, and no character of it is lost."""
    seen = Seen(visible(text, 10_000))

    assert ["bdi"] == seen.tags
    assert [] == seen.attributes
    assert all(character in seen.text for character in text if character.isalnum())
    if text.isprintable():
        assert text == seen.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("\x00\x1b[2J", "\\x00\\x1b[2J"),
        ("\u200b\ufeff", "\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        ("näive 日本 😀", "näive 日本 😀"),
    ],
)
def test_what_has_no_shape_is_shown_as_its_number(text, shown):
    """A mark that turns the direction of text cannot turn the rest of the page."""
    assert f"<bdi>{shown}</bdi>" == visible(text)


def test_long_text_is_cut():
    """A page of a megabyte is a line in the report."""
    assert "<bdi>" + "x" * 197 + "...</bdi>" == visible("x" * 1_000_000)
