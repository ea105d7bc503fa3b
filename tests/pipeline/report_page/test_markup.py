"""Markup that cannot be written wrong: what a click says is text."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.report_page.markup import Html, element, joined, visible
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
    seen = Seen(element("p", visible(text, 10_000), title="x"))

    assert ["p", "bdi"] == seen.tags
    assert [("title", "x")] == seen.attributes
    assert all(character in seen.text for character in text if character.isalnum())
    if text.isprintable():
        assert text == seen.text


@given(st.text(st.characters(exclude_categories=["C"])))
def test_an_attribute_is_read_as_the_same_text(text):
    """Quotes in it do not end it."""
    assert [("title", text)] == Seen(element("p", title=text)).attributes


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


def test_parts_are_joined_in_their_order():
    """Text is escaped, markup is not, nothing is nothing, numbers are written."""
    assert Html("a&lt;<br>1<i></i>") == joined(
        ["a<", element("br"), None, 1, (one for one in [element("i")])]
    )


def test_attributes_that_are_not_said_are_not_there():
    """True is an attribute without a value; None and False are none."""
    assert '<p hidden class="a" aria-label="b"></p>' == element(
        "p", hidden=True, class_="a", aria_label="b", title=None, inert=False
    )
