"""Static files: their HTTP headers, and the unchanged third-party files."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

import sparq
from sparq.daemon.http import Call
from sparq.nsqadmin.pages.rendering import asset_path, serve_asset

ROOT = Path(__file__).parents[3]
VENDOR = Path(sparq.__file__).parent / "nsqadmin" / "static" / "vendor"
LIST = json.loads((VENDOR / "list.json").read_text(encoding="utf-8"))
LOCK = json.loads((ROOT / "locks" / "web" / "package-lock.json").read_text(encoding="utf-8"))
MANIFEST = json.loads((ROOT / "locks" / "web" / "package.json").read_text(encoding="utf-8"))


def test_every_file_has_its_listed_checksum() -> None:
    """Each file has the listed sha256, and no unlisted file exists."""
    listed = {name: total for package in LIST for name, total in package["sha256"].items()}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "list.json"
    }

    assert listed == found


@pytest.mark.parametrize("package", LIST, ids=lambda package: package["name"])
def test_each_package_matches_the_lock_file(package: dict) -> None:
    """Version, npm's checksum and licence are those in the lock file."""
    locked = LOCK["packages"][f"node_modules/{package['name']}"]

    assert locked["version"] == package["version"] == MANIFEST["dependencies"][package["name"]]
    assert locked["integrity"] == package["npm_integrity"]
    assert locked["license"] == package["license"]
    assert any(name.endswith(".LICENSE.txt") for name in package["sha256"])


def request_file(path: str, **headers: str) -> web.Response:
    """Request a file; return the answer."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    call = Call(make_mocked_request("GET", path, sent))
    call.parameters = {"name": path.partition("?")[0].removeprefix("/static/")}
    return serve_asset(call)


def test_a_file_is_cached_under_its_url_with_hash() -> None:
    """A URL with the right hash is cached for a year; others are revalidated (304)."""
    path = asset_path("icon.svg")
    named, other = request_file(path), request_file("/static/icon.svg?v=old")
    same = request_file("/static/icon.svg", If_None_Match=named.headers["ETag"])

    assert "public, max-age=31536000, immutable" == named.headers["Cache-Control"]
    assert ("no-cache", "image/svg+xml") == (
        *(other.headers["Cache-Control"], other.headers["Content-Type"]),
    )
    assert named.body == other.body
    assert (304, None) == (same.status, same.body)


def test_files_are_compressed_for_clients_that_accept_gzip() -> None:
    """Clients that accept gzip get the same file compressed; Vary keeps caches correct."""
    plain, packed = (
        request_file("/static/icon.svg"),
        request_file("/static/icon.svg", Accept_Encoding="gzip"),
    )

    assert "Content-Encoding" not in plain.headers
    assert "gzip" == packed.headers["Content-Encoding"]
    assert plain.body == gzip.decompress(bytes(packed.body))
    assert "Accept-Encoding" == plain.headers["Vary"]


@pytest.mark.parametrize("name", ["", "list.html", "../options.py", "templates/base.html"])
def test_only_static_files_are_served(name: str) -> None:
    """Names are looked up in a table, not as paths; any other name gets Go's 404, as text."""
    answer = request_file(f"/static/{name}")
    assert (404, "NOT_FOUND", "text/plain") == (answer.status, answer.text, answer.content_type)
