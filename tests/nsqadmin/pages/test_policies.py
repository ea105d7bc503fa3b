"""The policies page with real nsqds: show, try, set and drop policies; settings of topics."""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
from pathlib import Path

import aiohttp
import pytest

from sparq.nsqadmin.pages import policies as page
from sparq.nsqadmin.words import UNKNOWN
from sparq.nsqlookupd.tcp import instant
from tests.nsqadmin.access.cluster import cluster
from tests.nsqadmin.pages.conftest import Site, words
from tests.support.waiting import until

TOML = (
    '[[policies]]\ntopic = "t"\nmax_channels = 3\n\n[[policies]]\ntopic = "<b>"\nmax_channels = 1'
)
GOOD = TOML.replace("<b>", "b?")


async def test_nsqds_with_the_same_policies_are_shown_together(site: Site) -> None:
    """File and run-time policies are shown once for both; Go's nsqd is listed without policies."""
    for nsqd in site.nsqds:
        assert 200 == (await nsqd.ask("PUT", "/policies", json.dumps(SAME).encode()))[0]

    page_text = words(await site.get("/policies"))
    assert "The same at 2 nsqds" in page_text
    assert f"in the file 1 t* {UNKNOWN} max_channel_lag_bytes = 5,000,000" in page_text
    assert "at run time 1 t c max_channel_lag_time = 2h0m0s" in page_text
    assert f"{site.fake.http}: NSQ's Go nsqd has no policies" in page_text
    assert "differ" not in page_text


SAME = {"policies": [{"topic": "t", "channel": "c", "max_channel_lag_time": "2h"}]}


async def test_nsqds_that_differ_are_marked(site: Site) -> None:
    """The page has a warning; `from` chooses the nsqd whose policies are in the text field."""
    assert 200 == (await site.nsqds[1].ask("PUT", "/policies", json.dumps(SAME).encode()))[0]

    page_text = words(await site.get("/policies"))
    assert "The policies set at run time differ between the nsqds" in page_text
    assert 2 == page_text.count("At 1 nsqd")
    text = await site.get(f"/policies?from={site.nodes[1]}")
    assert f"The text has the policies of {site.nodes[1]}." in words(text)
    assert 'max_channel_lag_time = "2h0m0s"' in html.unescape(text)
    assert 'max_channel_lag_time = "2h0m0s"' not in html.unescape(
        await site.get(f"/policies?from={site.nodes[0]}")
    )


async def test_an_nsqd_that_is_no_longer_listed_is_reported(tmp_path: Path) -> None:
    """The page reports it as not queried, a change as not changed: it may have policies."""
    async with cluster(tmp_path) as site, aiohttp.ClientSession() as session:
        url = f"{site.url}/policies"
        async with session.get(url) as answer:
            assert "no longer listed" not in await answer.text()
        await site.nsqd.peers.stop()
        await until(lambda: not site.lookupd.registry.producers("t", instant()))
        async with session.get(url) as answer:
            page_text = words(await answer.text())
        assert f"{site.node} is no longer listed and was not queried." in page_text
        fields = {"action": "drop_policies", "typed": "policies"}
        async with session.post(url, data=fields) as answer:
            page_text = words(await answer.text())
        assert f"{site.node}: nsqlookupd does not list it: not changed" in page_text


async def test_changes_are_shown_before_they_are_made(site: Site) -> None:
    """A try shows changes per nsqd without making them; setting is in the audit log."""
    status, text = await site.post(action="try", document=GOOD)
    page_text = words(text)
    assert (200, [[], []]) == (status, await site.run_time_topics())
    assert (
        "2 settings of topics and channels would change at 2 nsqds, with 2 policies set"
        in page_text
    )
    for node in site.nodes:
        assert f"{node} t {UNKNOWN} max_channels 0 3" in page_text
    assert (
        f"{site.fake.http}: this is NSQ's Go nsqd, which does not support this action" in page_text
    )
    assert [] == await site.audited()
    carried = re.search(r'name="document" value="([^"]*)"', text)
    assert carried
    document = html.unescape(carried[1])

    status, text = await site.post(action="set_policies", document=document, typed="policies")
    page_text = words(text)
    assert (200, [["t", "b?"]] * 2) == (status, await site.run_time_topics())
    assert "Set: 2 policies; 2 settings of topics and channels changed on" in page_text
    assert "but not everywhere" in page_text
    assert (
        f"{site.fake.http}: this is NSQ's Go nsqd, which does not support this action" in page_text
    )
    (entry,) = await site.audited()
    expected = {"user": "ann", "action": "set_policies", "outcome": "partly"}
    assert expected.items() <= entry.items()
    assert {"policies": 2, "changes": 2} == entry["arguments"]
    assert site.fake.http in entry["detail"]


async def test_a_page_shows_which_policies_apply(site: Site) -> None:
    """A topic or channel page has its settings, per nsqd if they differ; streams query none."""
    assert "Settings" not in words(await site.get("/topics/free"))
    for path in ("/topics/t", "/topics/t/c"):
        page_text = words(await site.get(path))
        assert "Setting Value From max_channel_lag_bytes 5,000,000 file, policy 1" in page_text
    await site.post(action="set_policies", document=GOOD, typed="policies")
    assert "max_channels 3 run time, policy 1" in words(await site.get("/topics/t", "eve"))
    assert 200 == (await site.nsqds[1].ask("DELETE", "/policies"))[0]
    page_text = words(await site.get("/topics/t"))
    assert f"max_channels 3 run time, policy 1 {site.nodes[0]}" in page_text
    assert f"max_channels 0 flag {site.nodes[1]}" in page_text

    asked = [path for path in site.fake.requests if path.startswith("/policies?topic=")]
    headers = {"Authorization": f"Bearer {site.tokens['ann']}"}
    url = f"http://127.0.0.1:{site.admin.http_port}/live?view=/topics/t"
    async with site.session.get(url, headers=headers) as stream:
        async with asyncio.timeout(20):
            for _ in range(2):
                part = (await stream.content.readuntil(b"\n\n")).decode()
                assert "max_channels" not in part
    assert asked == [path for path in site.fake.requests if path.startswith("/policies?topic=")]


async def test_a_page_does_not_wait_for_a_hanging_nsqd(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page waits SETTINGS_SECONDS for the settings, then shows that they are missing."""
    await site.get("/topics/t")
    monkeypatch.setattr(page, "SETTINGS_SECONDS", 0.2)
    site.fake.may_answer.clear()
    begun = time.monotonic()
    try:
        page_text = words(await site.get("/topics/t"))
    finally:
        site.fake.may_answer.set()

    assert time.monotonic() - begun < 2.0
    assert "The nsqds did not report the settings in time." in page_text
