"""Tests of the report in a browser: on a screen, a phone and paper, light and dark.

Screenshots are saved in the folder that SPARQ_SCREENSHOTS names, if it is set.
"""

import asyncio
import os
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from sparq.pipeline.report_page.page import page_of
from tests.pipeline.report_page import sample_reports
from tests.scenarios.pipeline.browser import running_tab

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

KEPT = os.environ.get("SPARQ_SCREENSHOTS", "")
PICTURE_BYTES_MIN = 20_000
"""A screenshot of an empty page of this size has about a tenth of it."""

LAYOUTS = {
    "wide-light": (1_200, "light", ""),
    "wide-dark": (1_200, "dark", ""),
    "narrow-light": (360, "light", ""),
    "narrow-dark": (360, "dark", ""),
    "paper": (794, "dark", "print"),
}
TAB, ENTER = ("Tab", 9), ("Enter", 13)

# The lowest contrast between any visible text and its background.
CONTRAST = """(() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, style = getComputedStyle(node);
    if (!walker.currentNode.data.trim() || style.visibility === 'hidden') continue;
    if (!node.getClientRects().length) continue;
    const ink = channels(node.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(node))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0])[0];
})()"""


def hostile_page():
    """The report of a failed run whose clicks contain injection attempts."""
    table, found = sample_reports.day(), sample_reports.findings(60, sample_reports.HOSTILE)
    report = sample_reports.report(
        table,
        found,
        pages=sample_reports.HOSTILE,
        source=sample_reports.HOSTILE[0],
        exactly_once=False,
        failures=["3 acknowledged messages are missing"],
        resent=12,
        restarts=["nsqd-1", "spark"],
        rejected_by_reason={sample_reports.HOSTILE[1]: 1},
    )
    return page_of(report, table, found, sample_reports.samples())


def plain_page():
    """The report of a successful run."""
    table, found = sample_reports.day(), sample_reports.findings()
    return page_of(sample_reports.report(table, found), table, found, sample_reports.samples())


class Site:
    """The HTTP server of both pages; it records every requested path."""

    def __init__(self):
        self.asked = []
        self.pages = {"/plain": plain_page(), "/hostile": hostile_page()}
        self.url = ""

    async def answer(self, request):
        self.asked.append(request.path)
        text = self.pages.get(request.path)
        if text is None:
            return web.Response(status=404)
        return web.Response(body=text.encode(), content_type="text/html", charset="utf-8")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site():
    """Serve both pages on a free port."""
    served = Site()
    application = web.Application()
    application.router.add_get("/{path:.*}", served.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    place = web.TCPSite(runner, "127.0.0.1", 0)
    await place.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory):
    """One browser for all tests here, since it takes seconds to start."""
    async with running_tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser, site):
    """The browser with a blank page and a cleared list of requests."""
    await browser.resize(1_200)
    await browser.open("about:blank")
    site.asked.clear()
    return browser


async def keep(picture, name):
    """Save a screenshot for people to look at."""
    if KEPT:
        await asyncio.to_thread(Path(KEPT, f"{name}.png").write_bytes, picture)


@pytest.mark.parametrize("which", ["plain", "hostile"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_every_layout_fits_and_logs_nothing(tab, site, which, layout):
    """In each layout the page fits the width, logs nothing, and makes a single request."""
    width, scheme, media = LAYOUTS[layout]
    await tab.resize(width, 800, scheme, media)
    await tab.open(f"{site.url}/{which}")
    height = await tab.value("document.documentElement.scrollHeight")
    await tab.resize(width, min(height, 8_000), scheme, media)
    picture = await tab.picture()
    await keep(picture, f"report-{which}-{layout}")

    assert width == await tab.value("document.documentElement.scrollWidth")
    assert [] == tab.complaints()
    assert [f"{site.url}/{which}"] == tab.requests()
    assert [f"/{which}"] == site.asked
    assert len(picture) > PICTURE_BYTES_MIN


async def test_a_page_opened_from_disk_requests_nothing_else(tab, tmp_path):
    """A page opened from disk requests nothing but itself."""
    file = tmp_path / "report.html"
    await asyncio.to_thread(file.write_text, hostile_page(), encoding="utf-8")
    await tab.open(file.as_uri())

    assert [file.as_uri()] == tab.requests()
    assert [] == tab.complaints()


async def test_hostile_text_in_clicks_is_shown_as_text(tab, site):
    """Hostile text from clicks is shown as text: it creates no element, handler or dialog."""
    await tab.open(f"{site.url}/hostile")
    for number in range(3):  # a hover handler would run now
        await tab.point(200, 200 + 150 * number)

    strange = "script, img, iframe, object, embed, form, input, a[href^='http'], a[href^='java']"
    assert 0 == await tab.value(f'document.querySelectorAll("{strange}").length')
    handlers = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
    assert [] == await tab.value(f"{handlers}.filter(n => n.startsWith('on') || n == 'src')")
    rows = "[...document.querySelectorAll('section[aria-labelledby=pages] tbody th')]"
    shown = await tab.value(f"{rows}.map(e => e.textContent)")
    assert list(sample_reports.HOSTILE[:8]) == shown[:8]
    assert "right\\u202eto left\\u2066\\x00\\x07\\ud800" == shown[8]
    assert "none" != await tab.value("getComputedStyle(document.body).display")
    assert [] == tab.heard("Page.javascriptDialogOpening")


async def test_the_content_security_policy_blocks_injected_elements(tab, site):
    """The page's Content-Security-Policy blocks an injected script and an injected image."""
    await tab.open(f"{site.url}/plain")
    await tab.value(
        "document.body.insertAdjacentHTML('beforeend',"
        " '<img src=/stolen onerror=\"document.title=1\">')"
    )
    await tab.value(
        "(() => { const s = document.createElement('script'); s.textContent = 'document.title=2';"
        " document.body.append(s); })()"
    )
    blocked = "img-src data:"
    while not any(blocked in str(said) for said in tab.heard("Log.entryAdded")):
        await tab.value("new Promise(done => setTimeout(done, 20))")

    assert "Clicks: audit passed" == await tab.value("document.title")
    assert ["/plain"] == site.asked


@pytest.mark.parametrize("width", [360, 1_200])
@pytest.mark.parametrize("which", ["plain", "hostile"])
async def test_the_audits_result_is_visible_without_scrolling(tab, site, which, width):
    """The audit's result is visible without scrolling, even on a phone, and is the largest text."""
    await tab.resize(width, 640)
    await tab.open(f"{site.url}/{which}")
    bottom = await tab.value("document.getElementById('audit').getBoundingClientRect().bottom")
    sizes = "[...document.querySelectorAll('h1, h2, p, dd')].map(e => [e.id, getComputedStyle(e)])"
    largest = f"{sizes}.sort((a, b) => parseFloat(b[1].fontSize) - parseFloat(a[1].fontSize))[0][0]"

    assert bottom < 320
    assert "audit" == await tab.value(largest)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_enough_contrast(tab, site, scheme):
    """With all tables open, text contrast is at least WCAG's 4.5, in light and dark mode."""
    await tab.resize(1_200, 800, scheme)
    await tab.open(f"{site.url}/hostile")
    await tab.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    contrast, text = await tab.value(CONTRAST)

    assert contrast >= 4.5, text


async def test_the_page_follows_the_browsers_colour_scheme(tab, site):
    """The page switches between light and dark with the browser's setting, without a reload."""
    await tab.open(f"{site.url}/plain")
    seen = []
    for scheme in ("light", "dark"):
        await tab.resize(1_200, 800, scheme)
        seen.append(
            await tab.value(
                "[document.body, document.querySelector('.layer-clicks .line')].map(e =>"
                " getComputedStyle(e)).map((s, at) => at ? s.stroke : s.backgroundColor)"
            )
        )

    assert seen[0][0] == "rgb(255, 255, 255)"
    assert not {*seen[0]} & {*seen[1]}


async def test_hovering_over_a_chart_shows_its_values(tab, site):
    """Hovering over a chart shows the time and values; moving away hides them."""
    shown = (
        "[...document.querySelectorAll('.hit text')].filter(t =>"
        " getComputedStyle(t).visibility == 'visible').map(t => t.textContent)"
    )
    await tab.open(f"{site.url}/plain")
    await tab.value("document.getElementById('clicks').scrollIntoView()")
    box = await tab.value(
        "(r => [r.x, r.y, r.width, r.height])"
        "(document.querySelector('.chart.wide .background').getBoundingClientRect())"
    )
    assert [] == await tab.value(shown)

    await tab.point(box[0] + box[2] / 2, box[1] + box[3] / 2)
    await keep(await tab.picture(whole=False), "report-pointer")
    (text,) = await tab.value(shown)
    assert text.startswith("21 Nov 1")
    assert "clicks" in text
    assert "visitors" in text

    await tab.point(5, 5)
    assert [] == await tab.value(shown)


async def test_the_keyboard_reaches_every_link_and_table(tab, site):
    """Tab reaches every link and table, Enter opens a table, and the focus is visible."""
    await tab.open(f"{site.url}/plain")
    here = (
        "(e => [e.tagName, e.textContent.trim().slice(0, 30),"
        " getComputedStyle(e).outlineStyle])(document.activeElement)"
    )
    visited = []
    for _ in range(60):
        await tab.press(*TAB)
        tag, text, outline = await tab.value(here)
        if tag == "BODY":
            break
        assert outline == "solid", text
        visited.append((tag, text))
        if tag == "SUMMARY" and not [one for one in visited[:-1] if one[0] == "SUMMARY"]:
            await tab.press(*ENTER)
            await tab.press(*TAB)
            visited.append(tuple((await tab.value(here))[:2]))

    assert ("A", "Skip to the charts") == visited[0]
    opened = [tag for tag, _ in visited].index("SUMMARY")
    assert ("DIV", "Time (UTC)clicksvisitors") == (
        visited[opened + 1][0],
        visited[opened + 1][1][:24],
    )
    summaries = await tab.value("document.querySelectorAll('summary').length")
    assert summaries == len([one for one in visited if one[0] == "SUMMARY"])
    assert 1 == await tab.value("document.querySelectorAll('details[open]').length")


async def test_charts_have_descriptions_for_screen_readers(tab, site):
    """For screen readers, charts have descriptions; headings, tables and regions have names."""
    await tab.open(f"{site.url}/plain")
    tree = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    found = {}
    for node in tree:
        if not node["ignored"]:
            role, name = (node.get(key, {}).get("value", "") for key in ("role", "name"))
            found.setdefault(role, []).append(name)

    assert 5 == len(found["image"])
    assert found["image"][0].startswith(
        "Clicks and visitors per minute, 21 Nov 2026 00:00 to 22 Nov 2026 00:00 UTC. clicks: mean"
    )
    assert all("maximum" in name for name in found["image"])
    assert "Audit passed" in found["heading"]
    assert all(found["table"])
    assert all(found["region"])
    assert {"navigation", "main", "banner"} <= set(found)


async def test_the_printed_page_has_all_charts(tab, site):
    """Printed in dark mode, the page has wide charts and no navigation."""
    await tab.resize(794, 800, "dark", "print")
    await tab.open(f"{site.url}/plain")
    pdf = await tab.call("Page.printToPDF", preferCSSPageSize=True)
    shown = "getComputedStyle(document.querySelector('{}')).display"

    assert "none" == await tab.value(shown.format("nav"))
    assert "block" == await tab.value(shown.format(".chart.wide"))
    assert "none" == await tab.value(shown.format(".chart.narrow"))
    assert pdf["data"].startswith("JVBERi0")  # %PDF-
