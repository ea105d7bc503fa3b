"""What nsqadmin sends to browsers: policy, sizes, links, plain HTML; checked without a browser."""

from __future__ import annotations

import gzip
import http.client
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from sparq.nsqadmin.access import SECURE_HEADERS
from tests.scenarios.admin_pages.cluster import Cluster
from tests.scenarios.admin_pages.test_pages import PAGES
from tests.support.servers import AdminServer

BYTES_MAX = 60 << 10
BASE = "/queue/admin"
ADDRESSES = ("href", "src", "action", "hx-post", "hx-get", "hx-sse:connect")
EVALUATED = re.compile(r"hx-on|hx-vals|hx-headers|\bjs:|javascript:|hx-trigger=\"[^\"]*\[")


class Document(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str, attribute: str) -> list[str]:
        """The values of an attribute."""
        return [
            found[attribute] for name, found in self.elements if name == tag and attribute in found
        ]


def get(cluster: Cluster, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """A response and its body, undecoded."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.admin.http_port, timeout=30)
    connection.request("GET", path, headers={"Accept": "text/html", **headers})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_html_has_no_inline_scripts_or_styles(cluster: Cluster) -> None:
    """Pages have no inline scripts, styles or handlers, so that the policy can forbid them.

    Nor do they have attributes that htmx would evaluate.
    """
    for path in PAGES:
        answer, body = get(cluster, path)
        elements = Document(body.decode()).elements
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert policy == SECURE_HEADERS["Content-Security-Policy"]
        for tag, found in elements:
            assert tag != "style" and "style" not in found, path
            assert tag != "script" or "src" in found, path
            assert not any(name.startswith("on") for name in found), path
        assert not EVALUATED.search(body.decode()), path
        ids = [found["id"] for _, found in elements if "id" in found]
        assert len(ids) == len(set(ids)), path


def test_scripts_and_styles_are_small_and_cached(cluster: Cluster) -> None:
    """Scripts and styles are under 60 KiB compressed in total, and cached as immutable."""
    _, body = get(cluster, "/")
    document = Document(body.decode())
    carried = {*document.all("script", "src"), *document.all("link", "href")}
    total = 0
    for address in carried:
        answer, sent = get(cluster, address, **{"Accept-Encoding": "gzip"})
        assert answer.status == 200
        assert "immutable" in answer.headers["Cache-Control"]
        assert gzip.decompress(sent) == get(cluster, address)[1]
        total += len(sent)

    assert {urlsplit(address).path for address in carried} >= {
        f"/static/{name}"
        for name in ("app.css", "htmx.min.js", "hx-sse.min.js", "uplot.min.js", "charts.js")
    }
    assert total < BYTES_MAX


def test_no_link_is_dead(cluster: Cluster) -> None:
    """No link on any page is dead."""
    cluster.lookupd.post("/topic/create?topic=served.nowhere")  # no nsqd has it
    seen: set[str] = set()
    dead: list[str] = []
    for path in PAGES:
        _, body = get(cluster, path)
        for link in Document(body.decode()).all("a", "href"):
            if link in seen or link.startswith(("#", "/message?")):
                continue
            seen.add(link)
            if get(cluster, link)[0].status != 200:
                dead.append(f"{path}: {link}")

    assert dead == []


def test_every_address_starts_with_the_base_path(cluster: Cluster, tmp_path: Path) -> None:
    """With `--base-path`, every address on every page starts with it."""
    lookup = f"--lookupd-http-address={cluster.lookupd.http}"
    with AdminServer("sparq.nsqadmin", tmp_path, (lookup, f"--base-path={BASE}")) as admin:
        admin.base = BASE
        admin.start()
        for path in PAGES:
            status, body = admin.request("GET", f"{BASE}{path}".rstrip("/"))
            links = [
                value
                for _, found in Document(body.decode()).elements
                for name, value in found.items()
                if name in ADDRESSES and not value.startswith("#")
            ]
            assert status == 200, path
            assert [link for link in links if not link.startswith(BASE)] == [], path
