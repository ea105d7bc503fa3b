"""Answers compressed for those who take it: texts and JSON, beyond a length where it pays."""

from __future__ import annotations

from aiohttp import web

BYTES_MIN = 1024
TYPES = ("application/json", "application/javascript", "image/svg+xml")
CODINGS = (web.ContentCoding.gzip, web.ContentCoding.deflate)


def compress(response: web.Response, request: web.BaseRequest) -> None:
    """Have an answer compressed that is not yet, if its reader says that it may be."""
    kind = response.content_type
    if not isinstance(response.body, bytes) or len(response.body) < BYTES_MIN:
        return
    if not (kind.startswith("text/") or kind in TYPES) or "Content-Encoding" in response.headers:
        return
    response.headers["Vary"] = "Accept-Encoding"
    accepted = taken(request.headers.get("Accept-Encoding", ""))
    coding = next((coding for coding in CODINGS if coding.value in accepted), None)
    if coding is not None:
        response.enable_compression(coding)


def taken(accepted: str) -> set[str]:
    """The codings that a reader takes, by the header that says so."""
    parts = [part.replace(" ", "").lower().partition(";q=") for part in accepted.split(",")]
    return {name for name, _, weight in parts if not weight or weight.strip("0.") != ""}
