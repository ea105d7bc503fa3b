"""The files that pages carry: read once, compressed once, named with a sum so that they may stay.

An address has the first digits of the file's sha256 (`?v=`): browsers keep it for a year, and ask
for another one as soon as the file is another one.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from aiohttp import web

from sparq.daemon.http import Call, HttpError, taken

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
    """One file: as it is and compressed, its type and the first digits of its sha256."""

    def __init__(self, body: bytes, content_type: str) -> None:
        self.body = body
        self.content_type = content_type
        self.compressed = gzip.compress(body, 9, mtime=0)
        self.version = hashlib.sha256(body).hexdigest()[:12]


class Assets:
    """All files of the folders, by their names."""

    def __init__(self) -> None:
        self._assets: dict[str, Asset] = {}
        root = files("sparq.nsqadmin")
        for folder in FOLDERS:
            for file in root.joinpath(*folder.split("/")).iterdir():
                suffix = "." + file.name.rpartition(".")[2]
                if file.is_file() and suffix in TYPES:
                    self._assets[file.name] = Asset(file.read_bytes(), TYPES[suffix])

    def path(self, name: str) -> str:
        """Where a file is, below the base path."""
        return f"/static/{name}?v={self._assets[name].version}"

    def serve(self, call: Call, name: str = "") -> web.Response:
        """Answer a request for a file, of the path's name or another one.

        Raises:
            HttpError: 404, there is none of this name.
        """
        asset = self._assets.get(name or call.parameters["name"])
        if asset is None:
            raise HttpError(404, "NOT_FOUND")
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
    """The one set of files."""
    return Assets()
