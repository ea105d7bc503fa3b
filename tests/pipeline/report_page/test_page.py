"""The report as an HTML page: its sections, their order, its size.

Text from clicks is shown as text, never as markup.
"""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.report_page.page import POLICY, page_of, visible
from tests.pipeline.report_page import sample_reports
from tests.pipeline.report_page.sample_reports import HOSTILE, page


class ParsedPage(HTMLParser):
    """The tags, attributes and text that an HTML parser finds in the markup."""

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


def sections_of(text):
    """The ids of the headings, in order."""
    return re.findall(r'<h2 id="(\w+)"', text)


def test_the_audits_result_is_before_all_figures():
    """The audit's result is before all figures."""
    text = page(progress=sample_reports.samples())

    assert [
        *("audit", "clicks", "statuses", "pages", "findings", "rate", "lag", "age"),
        *("rejected", "stages"),
    ] == sections_of(text)
    assert "Audit passed" in text
    assert text.index("Audit passed") < text.index("Published")


def test_a_failed_audit_lists_its_failures():
    """A failed audit is in the title and its failures are listed; "passed" does not occur."""
    text = page(exactly_once=False, failures=["3 acknowledged messages are missing"])

    assert "<title>Clicks: AUDIT FAILED</title>" in text
    assert "<li>3 acknowledged messages are missing</li>" in text
    assert "passed" not in text


def test_equal_input_gives_equal_pages():
    """Equal input gives an identical page: it has no time, random value or host name."""
    progress = sample_reports.samples()

    assert page(progress=progress) == page(progress=progress)


def test_resent_messages_visits_that_made_room_and_restarts_are_warnings():
    """Resent messages, visits ended early and restarts are listed as warnings, if there are any."""
    text = page(resent=12, evicted_visits=4_000, restarts=["nsqd-1", "spark"])

    assert "12 messages were sent again" in text
    assert "4,000 visits were ended early for lack of room" in text
    assert "Restarted during the run: nsqd-1, spark" in text
    assert 'class="warnings"' not in page()


def test_a_report_without_planted_visitors_has_no_scores():
    """Without planted visitors the page has no precision and recall."""
    table, found = sample_reports.day(), sample_reports.findings()
    report = sample_reports.report(table, found)
    del report["scores"]

    text = page_of(report, table, found)

    assert "Precision" not in text
    assert "Precision" in page()


@pytest.mark.parametrize("text", sample_reports.HOSTILE)
def test_hostile_text_in_clicks_adds_no_element(text):
    """Hostile text in clicks adds no tag and no attribute."""
    harmless, hostile = ("Mozilla/5.0", "/"), text.replace("\ud800", "")
    pages = [
        ParsedPage(page(found=sample_reports.findings(10, (one,)), pages=(one,), source=one))
        for one in (harmless[1], hostile)
    ]

    assert pages[0].tags == pages[1].tags
    assert pages[0].attributes == pages[1].attributes


def test_the_page_forbids_scripts_and_requests():
    """The page's policy allows only its own style and the empty icon.

    It has no script, and no link to another page.
    """
    seen = ParsedPage(
        page(
            found=sample_reports.findings(10, sample_reports.HOSTILE), pages=sample_reports.HOSTILE
        )
    )
    attributes = dict(seen.attributes)

    assert POLICY.startswith("default-src 'none';")
    assert POLICY in [value for _, value in seen.attributes]
    assert not {"script", "img", "iframe", "object", "form", "base"} & set(seen.tags)
    assert not [name for name in attributes if name.startswith("on") or name == "src"]
    assert all(v[0] == "#" or v == "data:," for n, v in seen.attributes if n == "href")


def test_the_size_of_a_page_is_limited():
    """A year of minutes and 5,000 findings give less than 1 MB; omissions are stated."""
    at = sample_reports.BEGIN_MINUTE + np.arange(365 * 1_440)
    year = page(
        sample_reports.minutes(at, 100 + at % 97),
        sample_reports.findings(5_000),
        sample_reports.samples(1_000),
    )

    assert len(year) < 1_000_000
    assert "A point is the mean per minute of 6 hours." in year
    assert "the 20 strongest of 1,000 findings" in year


def test_a_run_without_data_has_a_page():
    """A run without minutes, findings, pages and samples has a page."""
    text = page(sample_reports.minutes([], []), sample_reports.findings(0), pages=(), scores=None)

    assert ["audit", "clicks", "findings", "rejected", "stages"] == sections_of(text)
    assert "No minutes." in text


@given(st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_text_of_a_click_is_parsed_as_the_same_text(text):
    """Any text gives one <bdi> element without attributes; no letter or digit of it is lost."""
    seen = ParsedPage(visible(text, 10_000))

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
def test_invisible_characters_are_shown_as_escapes(text, shown):
    """Invisible characters are shown as escapes: a direction mark cannot affect the page."""
    assert f"<bdi>{shown}</bdi>" == visible(text)


def test_long_text_is_cut():
    """A text of 1 MB is cut to 200 characters."""
    assert "<bdi>" + "x" * 197 + "...</bdi>" == visible("x" * 1_000_000)
