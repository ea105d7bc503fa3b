"""Signing in with real tokens in Chromium: what each token may see and do, and signing out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparq.daemon.access import tokens
from tests.scenarios.admin_pages.browser import Reader
from tests.scenarios.admin_pages.cluster import Cluster
from tests.support.servers import AdminServer

GRANTED = {
    "ann": "administer,bodies",
    "otto": "operate",
    "rita": "read",
}
DELETE_AND_EMPTY = ("Empty…", "Delete…")


@dataclass
class ProtectedAdmin:
    """An nsqadmin that shows nothing without a token, and its tokens."""

    admin: AdminServer
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def protected(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProtectedAdmin]:
    """Tokens of an administrator, an operator and a reader."""
    home = tmp_path_factory.mktemp("guarded")
    made = {name: tokens.make(name, roles) for name, roles in GRANTED.items()}
    file = Path(home) / "tokens"
    file.write_text("\n".join(line for _, line in made.values()))
    file.chmod(0o600)
    flags = (*cluster.admin.flags, f"--token-file={file}", "--default-role=none")
    with AdminServer("sparq.nsqadmin", home, flags) as admin:
        admin.start()
        yield ProtectedAdmin(admin, {name: token for name, (token, _) in made.items()})


@pytest.fixture
def visitor(browser: Any, protected: ProtectedAdmin) -> Iterator[Reader]:
    """A browser that has not signed in; refusals do not count as problems."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    found = Reader(context, protected.admin.url)
    yield found
    context.close()
    assert [each for each in found.problems if "40" not in each] == []


def sign_in(reader: Reader, token: str, path: str = "/signin") -> None:
    """Enter a token in the form."""
    reader.page.goto(reader.url + path)
    if path != "/signin":
        reader.page.locator("main").get_by_role("link", name="Sign in with a token").click()
    reader.page.get_by_label("Token").fill(token)
    reader.page.get_by_role("button", name="Sign in").click()


def signed_in(reader: Reader, token: str) -> None:
    """Sign in, and wait for the first page."""
    sign_in(reader, token)
    reader.page.wait_for_url(f"{reader.url}/")


def test_an_action_after_the_sessions_end_asks_to_sign_in(
    visitor: Reader, protected: ProtectedAdmin, cluster: Cluster
) -> None:
    """After the session has ended, an action changes nothing and a notice asks to sign in."""
    cluster.create("signin.over", "c")
    signed_in(visitor, protected.tokens["otto"])
    visitor.open("/topics/signin.over/c")
    elsewhere = visitor.page.context.request
    assert elsewhere.post(f"{visitor.url}/signout", headers={"HX-Request": "true"}).ok
    visitor.page.get_by_role("button", name="Pause", exact=True).click()
    visitor.page.locator("#ask-pause").get_by_role("button", name="Pause").click()
    visitor.wait_for("Sign in first.", "#result")

    assert visitor.page.locator("#result .notice").count() == 1
    assert visitor.page.locator("#result h1, #result nav").count() == 0
    assert visitor.page.locator("main").count() == 1
    assert {nsqd.channel("signin.over", "c")["paused"] for nsqd in cluster.nsqds} == {False}


def test_an_administrator_signs_in_and_out(
    visitor: Reader, protected: ProtectedAdmin, cluster: Cluster
) -> None:
    """Signing in returns to the requested page; signing out ends the session."""
    cluster.create("signin.admin", "c")
    sign_in(visitor, protected.tokens["ann"], "/topics/signin.admin/c")
    visitor.page.wait_for_url("**/topics/signin.admin/c")
    for name in DELETE_AND_EMPTY:
        assert visitor.page.get_by_role("button", name=name).count() == 1
    visitor.open("/audit")
    assert "sign_in" in visitor.text("#live")
    visitor.open("/messages?topic=orders&channel=shipping")
    assert "A-10" in visitor.page.inner_text("body")
    cookies = visitor.page.context.cookies()
    (session,) = [one for one in cookies if one["name"] != "nsqadmin_tabs"]
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
    assert protected.tokens["ann"] not in str(cookies)

    visitor.page.get_by_role("button", name="Sign out").click()
    visitor.wait_for("Sign in first.")
    assert visitor.page.goto(visitor.url + "/topics").status == 401
    visitor.page.context.add_cookies([session])  # the cookie is not valid any more
    assert visitor.page.goto(visitor.url + "/topics").status == 401
