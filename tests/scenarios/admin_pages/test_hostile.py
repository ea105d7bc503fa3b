"""Hostile texts in everything that a client can set are shown, and none of them executes.

They are in client ids, host names, user agents, bodies and URLs, and there are odd topic and
channel names. A payload that ran would call `alert`, set `window.pwned` or send a request to
another host; the page reports each as a problem.
"""

from __future__ import annotations

import json
from itertools import cycle
from urllib.parse import quote

from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster
from tests.support.waiting import wait_for

RUN = "window.pwned=1;alert(1)"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f"<ScRiPt>{RUN}</sCrIpT>",
    f"</script><script>{RUN}</script>",
    f"'\"><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'<img src="x" onerror="{RUN}">',
    f"'><img src=x onerror={RUN}>",
    f'"><img src=x onerror={RUN}>',
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<body onload={RUN}>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src=javascript:{RUN}></iframe>",
    f"<a href=javascript:{RUN} autofocus onfocus={RUN}>x</a>",
    f"javascript:{RUN}",
    f"<input autofocus onfocus={RUN}>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<video><source onerror={RUN}></video>",
    f"<marquee onstart={RUN}>x</marquee>",
    f"<object data=javascript:{RUN}></object>",
    f"<embed src=javascript:{RUN}>",
    f"<form action=javascript:{RUN}><button autofocus>x</button></form>",
    f"<math><mtext><script>{RUN}</script></mtext></math>",
    f"<style>@import 'http://evil.test/x';</style><b onmouseover={RUN}>",
    "<link rel=stylesheet href=http://evil.test/x>",
    "<base href=http://evil.test/>",
    "<meta http-equiv=refresh content='0;url=http://evil.test/'>",
    "<img src=http://evil.test/x>",
    f"<div hx-get=/nodes hx-trigger=load hx-on::load='{RUN}'>x</div>",
    f"<div hx-on:htmx:load='{RUN}'>x</div>",
    "<div hx-delete=/api/topics/orders hx-trigger=load>x</div>",
    '<div hx-post=/topics/orders hx-trigger=load hx-vals=\'{"action":"pause_topic"}\'>x</div>',
    f"<div hx-vals='js:{{x:{RUN}}}' hx-get=/ hx-trigger=load>x</div>",
    f"<hx-partial hx-target=body hx-swap=innerHTML><script>{RUN}</script></hx-partial>",
    f"<template hx type=partial hx-target=body><img src=x onerror={RUN}></template>",
    f"<div id=live hx-swap-oob=true><img src=x onerror={RUN}></div>",
    f"<div hx-sse:connect=/live?view=/ hx-swap=beforeend><script>{RUN}</script></div>",
    f"<!--><script>{RUN}</script>-->",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f"<title><script>{RUN}</script></title>",
    f"<textarea></textarea><script>{RUN}</script>",
    "{{ 7*7 }}{% for x in ().__class__.__base__.__subclasses__() %}x{% endfor %}",
    "${7*7}#{7*7}<%= 7*7 %>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"&#60;script&#62;{RUN}&#60;/script&#62;",
    f"\u2028<script>{RUN}</script>\u2029",
    f"\u202e<script>{RUN}</script>",
    f"\r\n\r\ndata: <script>{RUN}</script>\r\n\r\n",
    f"\nevent: message\ndata: <img src=x onerror={RUN}>\n\n",
    f"\x1b]0;{RUN}\x07<script>{RUN}</script>",
]
NAMES = ["javascript.alert-1", "-.-", "..", ".", "__proto__", "constructor", "messages", "live"]
"""Valid NSQ names that could be mistaken for paths, object members or routes."""


def test_no_client_text_or_body_executes(reader: Reader, cluster: Cluster) -> None:
    """No payload executes on any page that shows client texts or bodies."""
    cluster.create("hostile", "c", "held")
    held = cycle(PAYLOADS)
    for payload in PAYLOADS:
        cluster.consume(
            "hostile",
            "held",
            rdy=1,
            finishes=False,
            client_id=payload,
            hostname=next(held)[:255],
            user_agent=payload,
        )
    cluster.publish("hostile", *(payload.encode() for payload in PAYLOADS))
    cluster.publish("hostile", *(json.dumps({"x": payload}).encode() for payload in PAYLOADS))
    nsqd = cluster.nsqds[0]
    wait_for(lambda: nsqd.channel("hostile", "held")["in_flight_count"] == len(PAYLOADS))
    base = "/messages?topic=hostile&channel"
    paths = [
        f"{base}=c&limit=200",
        f"{base}=held&show=in_flight&limit=200",
        f"{base}=c&show=log&from=earliest&limit=200",
        f"{base}=c&show=tail",
        f"{base}=c&show=search&go=1&text=script",
        "/topics/hostile/held?limit=200",
        "/dead-letters?topic=hostile",
    ]
    for path in paths:
        reader.open(path)
        assert reader.page.evaluate("window.pwned") is None, path
        assert "window.pwned=1" in reader.page.inner_text("body"), path
    reader.open(f"{base}=c&limit=200")
    links = reader.page.locator("tbody th a").evaluate_all(
        "all => all.map(a => a.pathname + a.search)"
    )
    for link in links[:: len(links) // 6]:
        reader.open(link)
        assert reader.page.evaluate("window.pwned") is None


def test_no_text_in_a_url_executes(reader: Reader, cluster: Cluster) -> None:
    """No payload in a URL executes in the page's fields or sentences."""
    for payload in PAYLOADS[::7]:
        text = quote(payload, safe="")
        for path in (
            f"/topics?filter={text}",
            f"/messages?topic=orders&show=search&text={text}&json={text}&since={text}",
            f"/audit?user={text}&topic={text}",
            f"/dead-letters?topic={text}",
        ):
            reader.open(path)
            assert reader.page.evaluate("window.pwned") is None, path


def test_odd_names_have_pages(reader: Reader, cluster: Cluster) -> None:
    """Each odd name leads to its own page."""
    for name in NAMES:
        cluster.create(name, name)
    for name in NAMES:
        if name in (".", ".."):
            continue  # browsers resolve such a path before they send it
        path = f"/topics/{quote(name, safe='')}/{quote(name, safe='')}"
        reader.open(path)
        assert reader.text("h1") == name, path
    reader.open("/topics?filter=..")
    reader.open("/topics?view=channels")
