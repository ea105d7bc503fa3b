"""Static files of the pages: read and compressed once, with a hash in the address for caching.

An address has the first digits of the file's sha256 (`?v=`). Browsers cache the file for a year. If
the file changes, so does its address, and browsers fetch it again.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from aiohttp import web

from sparq.daemon.http import Call, taken

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}
YEAR_SECONDS: Final = 365 * 86_400
FOLDERS: Final = ("static", "static/vendor")


class Asset:
    """One file: its body, uncompressed and compressed, its type, and the start of its sha256."""

    def __init__(self, body: bytes, content_type: str) -> None:
        self.body = body
        self.content_type = content_type
        # mtime=0: the same file has the same bytes in every process.
        self.compressed = gzip.compress(body, 9, mtime=0)
        self.version = hashlib.sha256(body).hexdigest()[:12]


class Assets:
    """All static files, by name."""

    def __init__(self) -> None:
        self._assets: dict[str, Asset] = {}
        root = files("sparq.nsqadmin")
        for folder in FOLDERS:
            for file in root.joinpath(*folder.split("/")).iterdir():
                suffix = "." + file.name.rpartition(".")[2]
                if file.is_file() and suffix in TYPES:
                    self._assets[file.name] = Asset(file.read_bytes(), TYPES[suffix])

    def path(self, name: str) -> str:
        """Path of a file, below the base path, with its hash."""
        return f"/static/{name}?v={self._assets[name].version}"

    def serve(self, call: Call, name: str = "") -> web.Response:
        """Answer a request for the file `name`; "": the file named in the path.

        Without a file of this name, the answer is Go's: 404 and its code as text.
        """
        asset = self._assets.get(name or call.parameters["name"])
        if asset is None:
            return web.Response(status=404, text="NOT_FOUND")
        is_named = call.query.get("v") == asset.version
        kept = f"public, max-age={YEAR_SECONDS}, immutable"
        headers = {
            "Content-Type": asset.content_type,
            "Cache-Control": kept if is_named else "no-cache",
            "ETag": f'"{asset.version}"',
            "Vary": "Accept-Encoding",
        }
        if call.request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        if "gzip" in taken(call.request.headers.get("Accept-Encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return web.Response(body=asset.compressed, headers=headers)
        return web.Response(body=asset.body, headers=headers)


@cache
def assets() -> Assets:
    """The static files, loaded once."""
    return Assets()
