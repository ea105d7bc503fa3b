"""Controls headless Chromium through its DevTools protocol.

The browser uses a temporary profile and resolves no host names, so that requests to other hosts
fail and are recorded.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support.waiting import wait_for

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)


class Tab:
    """One page of the browser, and all events that it has sent."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict] = []

    async def call(self, method: str, **parameters):
        """Send a command and return its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            said = await self._receive()
            if said.get("id") == self._number:
                assert "error" not in said, (method, said)
                return said["result"]

    async def _receive(self) -> dict:
        said = json.loads((await self._socket.receive(ANSWER_SECONDS)).data)
        if "method" in said:
            self.events.append(said)
        return said

    async def event(self, method: str) -> dict:
        """Return the first event of this kind, received earlier or awaited now."""
        while True:
            for event in self.events:
                if event["method"] == method:
                    return event["params"]
            await self._receive()

    def heard(self, *methods: str) -> list[dict]:
        """Return all events of these kinds received so far."""
        return [event["params"] for event in self.events if event["method"] in methods]

    async def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.event("Page.loadEventFired")

    async def resize(self, width: int, height: int = 800, scheme: str = "light", media: str = ""):
        """Emulate a screen of this size with this colour scheme, or a print layout."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", media=media, features=features)

    async def value(self, expression: str):
        """Evaluate a JavaScript expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(key)
        which = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call(
            "Input.dispatchKeyEvent", type="keyDown", **which, **({"text": text} if text else {})
        )
        await self.call("Input.dispatchKeyEvent", type="keyUp", **which)

    async def picture(self, *, whole: bool = True) -> bytes:
        """A screenshot as PNG."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    async def point(self, x: float, y: float) -> None:
        """Move the pointer."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[object]:
        """Everything that went wrong in the page: console, exceptions, failed loads, dialogs."""
        return [
            *self.heard("Runtime.consoleAPICalled"),
            *self.heard("Runtime.exceptionThrown"),
            *self.heard("Log.entryAdded"),
            *self.heard("Network.loadingFailed"),
            *self.heard("Page.javascriptDialogOpening"),
        ]

    def requests(self) -> list[str]:
        """Every URL that the page has requested, except data: URLs."""
        asked = self.heard("Network.requestWillBeSent")
        urls = [request["request"]["url"] for request in asked]
        return [url for url in urls if not url.startswith("data:")]


def chromium() -> str:
    """Return Chromium's path; skip the test if it is not installed."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("needs chromium")


@asynccontextmanager
async def running_tab(profile: Path):
    """Start a browser with one page, and kill it afterwards."""
    process = await asyncio.create_subprocess_exec(
        chromium(),
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await asyncio.to_thread(_port, profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [one for one in await answer.json() if one["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield Tab(socket)
    finally:
        process.kill()
        await process.wait()


def _port(file: Path) -> int:
    """Return the port the browser listens on; it writes the port to a file."""

    def written() -> str:
        text = file.read_text() if file.exists() else ""
        return text if "\n" in text else ""

    return int(wait_for(written, START_SECONDS, every=0.05).split("\n")[0])
