"""nsqadmin in the test process, for two real nsqds with a policy file and a fake Go nsqd."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin
from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.nsqds import two_nsqds, write_tokens
from tests.nsqd.daemon import Daemon

FILE = '[[policies]]\ntopic = "t*"\nmax_channel_lag_bytes = 5000000\n'


@dataclass
class Site:
    """nsqadmin, two nsqds with a policy file, and a fake of Go's nsqd."""

    admin: Nsqadmin
    nsqds: tuple[Daemon, Daemon]
    fake: FakeNode
    session: aiohttp.ClientSession
    tokens: dict[str, str]

    @property
    def nodes(self) -> list[str]:
        return [f"127.0.0.1:{nsqd.http.port}" for nsqd in self.nsqds]

    async def get(self, path: str, token: str = "ann") -> str:
        """Get a page as HTML; its status must be 200."""
        status, text = await self.ask("GET", path, token=token)
        assert 200 == status, (path, text)
        return text

    async def post(self, token: str = "ann", **fields: str) -> tuple[int, str]:
        """Send a form of the policies page as htmx does."""
        return await self.ask("POST", "/policies", fields, token)

    async def ask(
        self, method: str, path: str, fields: Any = None, token: str = "ann"
    ) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.tokens[token]}", "Accept": "text/html"}
        headers |= {"HX-Request": "true", "User-Agent": "Mozilla/5.0"}
        url = f"http://127.0.0.1:{self.admin.http_port}{path}"
        async with self.session.request(method, url, data=fields, headers=headers) as answer:
            return answer.status, await answer.text()

    async def run_time_topics(self) -> list[list[str]]:
        """The topics of the policies that were set at run time, at each nsqd."""
        answers = [await nsqd.ask("GET", "/policies") for nsqd in self.nsqds]
        return [[one["topic"] for one in json.loads(each)["policies"]] for _, each in answers]

    async def audited(self) -> list[dict[str, Any]]:
        return (await self.admin.services.audit.page()).entries


def words(text: str) -> str:
    """The text of a page without tags, with single blanks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        file = tmp_path / "policies.toml"
        file.write_text(FILE)
        nsqds = await stack.enter_async_context(two_nsqds(tmp_path, policies=str(file)))
        for nsqd in nsqds:
            await nsqd.post("/topic/create?topic=free")
        fake = await stack.enter_async_context(FakeNode())
        fake.missing = {"/policies"}
        roles = {"ann": "administer,bodies,publish", "op": "operate", "eve": "read"}
        tokens = write_tokens(tmp_path / "tokens", roles)
        options = NsqadminOptions(
            http_address="127.0.0.1:0",
            nsqd_http_addresses=(*(f"127.0.0.1:{n.http.port}" for n in nsqds), fake.http),
            token_file=str(tmp_path / "tokens"),
        )
        admin = Nsqadmin(options)
        await admin.start()
        stack.push_async_callback(admin.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Site(admin, nsqds, fake, session, tokens)
