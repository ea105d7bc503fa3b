"""The page: its text, hostile text in clicks, and in a browser its charts and layouts."""

import os
import re
from pathlib import Path

import pytest

from sparq.pipeline.report.figures import figures_of
from sparq.pipeline.report.page import page_of, text_of
from tests.pipeline.report.sample_tables import written
from tests.scenarios.admin_pages.browser import Reader, started

HOSTILE = (
    "</script><img/src=x/onerror=alert(1)>",
    "<svg/onload=alert(2)>",
    "'onmouseover='alert(4)",
    "</style><style>*{display:none}</style>",
    "&lt;b&gt;&#60;script&#62;alert(5)&#60;/script&#62;",
    "{{7*7}}${7*7}{%raw%}",
    "\u202eleft\u2066",
)
SCORE = {"precision": 1.0, "recall": 0.75}
RUN = {
    **dict.fromkeys(("published", "archived", "distinct", "minute_clicks", "clicks"), 4_000),
    **dict.fromkeys(("rejected", "resent", "evicted_visits", "evicted_clicks", "logged"), 0),
    **dict.fromkeys(("session_clicks", "sessions", "minutes", "visitors", "bytes"), 90),
    **{"exactly_once": True, "failures": [], "seconds": 31.5, "clicks_per_second": 127},
    **{"source": "<b>a log</b>", "restarts": [], "statuses": {"2xx": 4_000}},
    **{"findings": {"burst": 3}, "rejected_by_reason": {}},
    "scores": {one: {"found": 3, "planted": 4, **SCORE} for one in ("burst", "all")},
    "top_pages": [{"page": "/" + "x" * 100, "clicks": 7}],
}
# The lowest contrast between any visible text and its background, and this text.
CONTRAST = """() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const style = getComputedStyle(at), bar = style.backgroundImage.match(/rgb[^)]*\\)/);
      const found = channels(bar ? bar[0] : style.backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.getClientRects().length) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data]);
  }
  return found.sort((x, y) => x[0] - y[0])[0];
}"""
SCALES = "plots.map(plot => [plot.scales.x.min, plot.scales.x.max])"


def hostile_lines():
    """Clicks with each hostile text as page, referrer and user agent, of robots and others."""
    for text in HOSTILE:
        for second in range(30):
            at = f"02/Mar/2026:11:00:{second:02} +0000"
            yield f'192.0.2.1 - - [{at}] "GET /{text} HTTP/1.1" 200 9 "http://{text}/" "bot {text}"'
            yield f'192.0.2.2 - - [{at}] "GET /{text} HTTP/1.1" 200 9 "http://{text}/" "{text}"'


@pytest.fixture(scope="module")
def figures(day, tmp_path_factory):
    """Figures of a generated day and hostile clicks."""
    lines = [*day.lines, *(one.encode() for one in hostile_lines())]
    return figures_of(written(tmp_path_factory.mktemp("tables"), lines))


@pytest.fixture(scope="module")
def file(figures, tmp_path_factory):
    """The page of a run on disk."""
    made = tmp_path_factory.mktemp("page") / "report.html"
    made.write_text(page_of(RUN["source"], figures, RUN), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests here, since it takes seconds to start."""
    with started() as running:
        yield running


@pytest.fixture
def opened(browser, file):
    """A function that opens the page; nothing must go wrong, and nothing else be requested."""
    readers = []

    def open_page(**options):
        reader = Reader(browser.new_context(**options), file.as_uri())
        reader.open("")
        readers.append(reader)
        return reader.page

    yield open_page
    for reader in readers:
        assert ([], [file.as_uri()]) == (reader.problems, reader.requests)
        reader.close()


def test_dragging_zooms_all_charts_and_a_double_click_zooms_out(opened):
    """A cursor and a zoom on one chart are also on the others."""
    page = opened()
    before = page.evaluate(SCALES)
    box = page.locator(".u-over").first.bounding_box()
    x, y = (lambda share: box["x"] + box["width"] * share), box["y"] + 20
    page.mouse.move(x(0.25), y)
    page.mouse.down()
    page.mouse.move(x(0.75), y, steps=4)
    page.mouse.up()
    zoomed = page.evaluate(SCALES)
    legends = page.locator(".u-legend .u-series:first-child .u-value")

    assert ([before[0]] * 4, [zoomed[0]] * 4) == (before, zoomed)
    assert before[0][0] < zoomed[0][0] < zoomed[0][1] < before[0][1]
    assert 1 == len({*legends.all_inner_texts()})
    assert re.match(r"2 Mar 2026 \d\d:\d\d", legends.first.inner_text())
    page.mouse.dblclick(x(0.5), y)
    assert before == page.evaluate(SCALES)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1_440])
def test_each_layout_fits_and_can_be_read(opened, width, scheme):
    """The page fits the width; with all tables open, text has WCAG's contrast of 4.5 or more."""
    page = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    contrast, text = page.evaluate(CONTRAST)
    if folder := os.environ.get("SPARQ_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"report-{width}-{scheme}.png", full_page=True)

    assert width == page.evaluate("document.documentElement.scrollWidth")
    assert contrast >= 4.5, text
    assert page.locator("#audit").bounding_box()["y"] < 320


def test_hostile_text_of_clicks_is_shown_as_text(opened):
    """It makes no element and no handler; invisible characters are shown as numbers."""
    page = opened()
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    strange = "img, svg, iframe, object, form, input, a[href^=http], body script + *"
    names = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
    shown = page.locator("main").inner_text()

    assert 0 == page.locator(strange).count()
    assert [] == page.evaluate(f"{names}.filter(n => n.startsWith('on') || n == 'src')")
    assert [] == [one for one in HOSTILE[:-1] if f"/{one}" not in shown]
    assert "/\\u202eleft\\u2066" in shown


def test_the_figures_can_be_read_without_javascript(opened, figures):
    """Each chart has a table of its figures, and no hint about the mouse is shown."""
    page = opened(java_script_enabled=False)
    page.locator("figure summary").first.click()
    rows = page.locator("#traffic tbody tr").all_inner_texts()

    assert len(figures["over_time"]["rows"]) == len(rows)
    assert figures["clicks"] == sum(int(row.split("\t")[1]) for row in rows)
    assert not page.get_by_text("Drag across").is_visible()


def test_a_run_without_clicks_has_a_page():
    """A failed audit is in the title; what has no figures is left out."""
    none = dict.fromkeys(("clicks", "views", "visitors", "sessions", "visits", "bytes"), 0)
    none |= {**dict.fromkeys(("status_4xx", "status_5xx"), 0), "over_time": None}
    none |= {"top_lists": [], "findings": {}, "examples": []}
    text = page_of("x", none, {**RUN, "exactly_once": False, "failures": ["2 are missing"]})

    assert "<title>Clicks: AUDIT FAILED</title>" in text
    assert "<li>2 are missing</li>" in text
    assert "Over time" not in text


def test_the_text_for_a_terminal_has_all_figures():
    """It ends with the audit's result; no line is longer than a terminal."""
    text = text_of(RUN)
    odd = {"restarts": ["nsqd-1"], "evicted_visits": 3, "rejected_by_reason": {"empty": 2}}
    failed = text_of({**RUN, **odd, "exactly_once": False, "failures": ["2 are missing"]})

    assert text.endswith("\n  audit passed: every acknowledged click is stored exactly once\n")
    assert failed.endswith("\n  AUDIT FAILED\n  - 2 are missing\n")
    assert "  burst                        3         4      1.000    0.750\n" in text
    assert f"  /{'x' * 48}...         7\n" in text
    assert "  restarted                  1   nsqd-1\n" in failed
    assert "  ended early                3   visits with 0 clicks, to make room\n" in failed
    assert max(map(len, text.splitlines())) <= 78
