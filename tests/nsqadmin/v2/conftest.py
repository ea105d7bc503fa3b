"""nsqadmin and two nsqds in the test process, and an HTTP client for the v2 API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
from referencing import Registry, Resource

from sparq.nsqadmin.options import NsqadminOptions
from sparq.nsqadmin.server import Nsqadmin
from tests.nsqadmin.nsqds import two_nsqds, write_tokens
from tests.nsqd.daemon import Daemon


@dataclass
class Api:
    """The API of a running nsqadmin; JSON answers are validated against its OpenAPI document."""

    admin: Nsqadmin
    one: Daemon
    two: Daemon
    session: aiohttp.ClientSession
    tokens: dict[str, str]
    document: dict[str, Any] = field(default_factory=dict)
    validated: set[str] = field(default_factory=set)

    @property
    def nodes(self) -> list[str]:
        """The nsqds' addresses."""
        return [f"127.0.0.1:{each.http.port}" for each in (self.one, self.two)]

    async def send(
        self, method: str, path: str, body: Any = None, token: str = "all", **query: Any
    ) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Send a request; return status, body and response."""
        headers = {"Authorization": f"Bearer {self.tokens[token]}"} if token else {}
        url = f"http://127.0.0.1:{self.admin.http_port}/admin/api/v2{path}"
        asked = {name.rstrip("_"): str(value) for name, value in query.items()}
        async with self.session.request(
            method, url, json=body, params=asked, headers=headers
        ) as answer:
            return answer.status, await answer.read(), answer

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        """Send a GET; return its validated answer."""
        return await self._json("GET", path, status, None, query)

    async def post(self, path: str, body: Any, status: int = 200, **query: Any) -> Any:
        """Send a POST; return its validated answer."""
        return await self._json("POST", path, status, body, query)

    async def _json(
        self, method: str, path: str, status: int, body: Any, query: dict[str, Any]
    ) -> Any:
        found, answer, _ = await self.send(method, path, body, **query)
        assert status == found, (path, answer)
        document = json.loads(answer)
        self.validate(method, path, status, document)
        return document

    def validate(self, method: str, path: str, status: int, document: Any) -> None:
        """Validate an answer against the OpenAPI document."""
        pattern = self.pattern(path)
        self.validated.add(f"{method} {pattern}")
        responses = self.document["paths"][pattern][method.lower()]["responses"]
        if status == 502 and "result" in document:
            status = 200  # a report of a failure
        schema = responses[str(status)]["content"]["application/json"]["schema"]
        root = {**self.document, "$schema": "https://json-schema.org/draft/2020-12/schema"}
        registry = Registry().with_resource("urn:api", Resource.from_contents(root))
        bound = json.loads(json.dumps(schema).replace('"#/', '"urn:api#/'))
        jsonschema.Draft202012Validator(bound, registry=registry).validate(document)

    def pattern(self, path: str) -> str:
        """The documented path that matches a path, preferably one with few parameters."""
        parts = f"/api/v2{path}".split("/")

        def fits(pattern: list[str]) -> bool:
            pairs = zip(pattern, parts, strict=False)
            return len(pattern) == len(parts) and all(a in (b, "{") for a, b in pairs)

        documented = self.document["paths"]
        plain = {each: re.sub(r"{\w+}", "{", each).split("/") for each in documented}
        fitting = [each for each, pattern in plain.items() if fits(pattern)]
        return min(fitting, key=lambda each: each.count("{"))


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """nsqadmin below `/admin`, with a token for each role."""
    async with AsyncExitStack() as stack:
        nsqds = await stack.enter_async_context(two_nsqds(tmp_path))
        roles = {"all": "administer,bodies,publish", "operate": "operate", "read": "read"}
        roles |= {"publish": "publish"}
        tokens = write_tokens(tmp_path / "tokens", roles)
        options = NsqadminOptions(
            http_address="127.0.0.1:0",
            nsqd_http_addresses=tuple(f"127.0.0.1:{nsqd.http.port}" for nsqd in nsqds),
            base_path="/admin",
            token_file=str(tmp_path / "tokens"),
            default_role="none",
        )
        admin = Nsqadmin(options)
        await admin.start()
        stack.push_async_callback(admin.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        api = Api(admin, *nsqds, session, tokens)
        _, document, _ = await api.send("GET", "/openapi.json", token="")
        api.document = json.loads(document)
        yield api


async def snapshot_where(api: Api, path: str, condition: Any, **query: Any) -> Any:
    """Request each next snapshot until the condition holds; return the answer."""
    async with asyncio.timeout(20):
        document = await api.get(path, **query)
        while not condition(document):
            document = await api.get(path, after=document["number"], **query)
    return document
