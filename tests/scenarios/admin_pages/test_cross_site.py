"""Pages of other sites in Chromium can neither change nor read anything in nsqadmin.

nsqadmin runs with its defaults: requests from its own machine may do everything. So the danger is a
foreign page opened on that machine. The tests serve it from another port and from another name of
this machine (`localhost` and `127.0.0.1` are different origins).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.scenarios.admin_pages.cluster import Cluster
from tests.support.servers import AdminServer

TOPIC, CHANNEL = "cross.site", "c"
POLICY = f'[[policies]]\ntopic = "{TOPIC}"\nmax_channels = 9'
OWN = f"/topics/{TOPIC}/{CHANNEL}"
API = f"/api/topics/{TOPIC}"
REQUESTS: list[tuple[str, str, dict[str, str]]] = [
    ("POST", OWN, {"action": "pause_channel"}),
    ("POST", OWN, {"action": "empty_channel", "typed": CHANNEL}),
    ("POST", OWN, {"action": "delete_channel", "typed": CHANNEL}),
    ("POST", f"/topics/{TOPIC}", {"action": "delete_topic", "typed": TOPIC}),
    ("POST", "/lookup", {"action": "create", "topic": "cross.made"}),
    ("POST", "/replay", {"topic": TOPIC, "channel": CHANNEL, "to": "latest"}),
    ("POST", "/policies", {"action": "set_policies", "typed": "policies", "document": POLICY}),
    ("POST", f"{API}/{CHANNEL}", {"action": "pause"}),
    ("POST", API, {"action": "empty"}),
    ("POST", "/api/topics", {"topic": "cross.made", "channel": "c"}),
    ("POST", "/api/v2/dead-letters", {"topic": TOPIC, "to": "cross.made", "all": "true"}),
    ("DELETE", f"{API}/{CHANNEL}", {}),
    ("DELETE", API, {}),
    ("PUT", "/config/log_level", {"": '"debug"'}),
    ("POST", "/signout", {}),
]
"""Requests that succeed when one of nsqadmin's own pages sends them (see the last test)."""

SEND = """async ([base, orders]) => {
  const types = ["application/x-www-form-urlencoded", "text/plain", "application/json"];
  const tries = [];
  const body = (fields, type) => type === types[0]
    ? new URLSearchParams(fields).toString() : JSON.stringify(fields);
  for (const [method, path, fields] of orders) {
    for (const type of types) {
      for (const mode of ["no-cors", "cors"]) {
        for (const more of [{}, { "HX-Request": "true" }]) {
          if (mode === "no-cors" && (more["HX-Request"] || type === types[2])) continue;
          if (mode === "no-cors" && method !== "POST") continue;
          const headers = { "Content-Type": type, ...more };
          const how = { method, mode, headers, credentials: "include", body: body(fields, type) };
          tries.push(fetch(base + path, how).then((answer) => answer.text(), () => ""));
        }
      }
    }
    if (method === "POST") navigator.sendBeacon(base + path, new URLSearchParams(fields));
  }
  return (await Promise.all(tries)).join("");
}"""
LOAD = """async ([base, paths]) => {
  const ends = [];
  const told = [];
  for (const path of paths) {
    for (const kind of ["img", "script", "iframe"]) {
      const element = document.createElement(kind);
      ends.push(new Promise((end) => { element.onload = element.onerror = end; }));
      element.onload = () => kind === "img" && told.push("an image");
      element.src = base + path;
      document.body.append(element);
    }
    for (const how of [false, true]) {
      const stream = new EventSource(base + path, { withCredentials: how });
      stream.onmessage = (event) => told.push(event.data);
      ends.push(new Promise((end) => { stream.onerror = () => { stream.close(); end(); }; }));
      ends.push(fetch(base + path, { credentials: how ? "include" : "omit" })
        .then((answer) => answer.text()).then((text) => told.push(text), () => ""));
    }
  }
  const late = new Promise((end) => setTimeout(end, 3000));
  await Promise.race([Promise.allSettled(ends), late]);
  return told.join("");
}"""


class OtherSite(BaseHTTPRequestHandler):
    """Another site: it serves an empty page, or one with forms that submit themselves."""

    forms: dict[str, str] = {}  # noqa: RUF012 - a handler has no other way to be given something

    def do_GET(self) -> None:
        """Serve a page."""
        page = self.forms.get(self.path, "<!doctype html><title>elsewhere</title><body>")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def other_site() -> Iterator[int]:
    """The port of the other site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherSite)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def admin_under_test(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AdminServer]:
    """A separate nsqadmin, whose audit log records only requests of these tests."""
    cluster.create(TOPIC, CHANNEL)
    cluster.publish(TOPIC, *[b"secret"] * 5)
    home = Path(tmp_path_factory.mktemp("victim"))
    with AdminServer("sparq.nsqadmin", home, cluster.admin.flags) as admin:
        admin.start()
        yield admin


def state(cluster: Cluster, admin_under_test: AdminServer) -> dict[str, Any]:
    """Everything that one of the requests could change."""
    figures = ("paused", "depth", "message_count")
    audit = admin_under_test.get_json("/api/v2/audit?limit=1000")["entries"]
    return {
        "channels": [
            {name: nsqd.channel(TOPIC, CHANNEL).get(name) for name in figures}
            for nsqd in cluster.nsqds
        ],
        "policies": [nsqd.get_json("/policies")["policies"] for nsqd in cluster.nsqds],
        "topics": sorted(cluster.lookupd.get_json("/topics")["topics"]),
        "log_level": admin_under_test.request("GET", "/config/log_level"),
        "done": [entry for entry in audit if entry["outcome"] != "refused"],
    }


def forms(base: str) -> str:
    """A page whose forms submit themselves into frames, in all encodings that a form can have."""
    made = []
    for number, (method, path, fields) in enumerate(REQUESTS):
        for encoding in ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain"):
            inputs = "".join(f'<input name="{k}" value="{v}">' for k, v in fields.items())
            name = f"f{number}-{len(made)}"
            tag = f'<form method="{method if method == "POST" else "GET"}" action="{base}{path}"'
            made.append(
                f'<iframe name="{name}"></iframe>{tag} target="{name}" enctype="{encoding}">'
            )
            made.append(f"{inputs}</form>")
    send = "<script>for (const form of document.forms) form.submit()</script>"
    return f"<!doctype html><title>forms</title><body>{''.join(made)}{send}"


@pytest.mark.parametrize(
    "names", [("localhost", "127.0.0.1"), ("localhost", "localhost")], ids=" to ".join
)
def test_other_sites_change_and_read_nothing(
    browser: Any,
    cluster: Cluster,
    admin_under_test: AdminServer,
    other_site: int,
    names: tuple[str, str],
) -> None:
    """Forms, fetches, beacons, images, scripts, frames and streams change and read nothing."""
    theirs, ours = names
    base, site = f"http://{ours}:{admin_under_test.http_port}", f"http://{theirs}:{other_site}"
    before = state(cluster, admin_under_test)
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method))
    page.goto(f"{site}/")
    said = page.evaluate(SEND, [base, REQUESTS])
    reading = [f"{path}?{urlencode(fields)}" for _, path, fields in REQUESTS if path != "/signout"]
    reading += [f"/live?view={OWN}", "/api/topics", f"/api/v2/log?topic={TOPIC}", "/topics"]
    said += page.evaluate(LOAD, [base, reading])
    OtherSite.forms = {"/forms": forms(base)}
    page.goto(f"{site}/forms")
    page.wait_for_load_state("networkidle")
    action = f"{base}{OWN}"
    OtherSite.forms = {
        "/top": f'<form method="POST" action="{action}"><input name="action" value="pause_channel">'
        "</form><script>document.forms[0].submit()</script>"
    }
    with page.expect_navigation(url=action):
        page.goto(f"{site}/top")
    refused = page.inner_text("body")
    context.close()

    assert asked.count("POST") > 2 * len(REQUESTS)
    assert said == ""
    assert "another site" in refused
    assert state(cluster, admin_under_test) == before
    audit = admin_under_test.get_json("/api/v2/audit?limit=1000&outcome=refused")["entries"]
    assert audit, "nothing has arrived: this test shows nothing"


def test_nsqadmins_own_pages_can_send_the_same_requests(
    browser: Any, cluster: Cluster, admin_under_test: AdminServer
) -> None:
    """A request succeeds from nsqadmin's own page, so those above are refused for their origin."""
    page = browser.new_page()
    base = f"http://127.0.0.1:{admin_under_test.http_port}"
    page.goto(f"{base}/topics")
    before = state(cluster, admin_under_test)
    send = """async ([path, fields]) => {
      const headers = { "HX-Request": "true" };
      const body = new URLSearchParams(fields);
      return (await fetch(path, { method: "POST", headers, body })).status;
    }"""
    status = page.evaluate(send, [OWN, {"action": "pause_channel"}])
    paused = state(cluster, admin_under_test)
    again = page.evaluate(send, [OWN, {"action": "unpause_channel"}])
    page.close()

    assert (status, again) == (200, 200)
    assert paused["channels"] != before["channels"]
    assert json.dumps(paused["done"]).count("pause_channel") == 1
