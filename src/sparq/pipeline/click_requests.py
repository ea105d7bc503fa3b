"""Request lines of the ordinary form, read a batch at a time: `GET /path?query HTTP/1.1`.

A request is ordinary if it has a method of capital letters, a path that begins with a slash, and
after it nothing or the protocol, with one space between each. Without a protocol there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparq.pipeline.text_spans import (
    QUESTION_MARK,
    Integers,
    Mask,
    Spans,
    Text,
    bytes_table,
    next_place,
    numbered_place,
)

_SLASH, _POINT = b"/."
_CAPITALS = bytes_table(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PROTOCOL = b"HTTP/"
_LONG, _SHORT = len("HTTP/1.1"), len("HTTP/2")


@dataclass(frozen=True, slots=True)
class Requests:
    """The parts of some requests, as stretches of the text, and which are ordinary."""

    method: Spans
    path: Spans
    protocol: Spans
    ordinary: Mask


def read_requests(text: Text, requests: Spans) -> Requests:
    """The parts of some requests; every row must have one."""
    starts, ends = requests.starts, requests.ends
    first = np.searchsorted(text.spaces, starts)
    count = np.searchsorted(text.spaces, ends) - first
    method_ends = np.where(count > 0, numbered_place(text.spaces, first), starts)
    three = count == 2
    path_ends = np.where(three, numbered_place(text.spaces, first + 1), ends)
    path = Spans(method_ends + 1, path_ends)
    protocol = Spans(np.where(three, path_ends + 1, -1), ends)
    method = Spans(starts, method_ends)
    ordinary = (
        ((count == 1) | three)
        & (method_ends > starts)
        & (path_ends > path.starts)
        & text.is_byte(path.starts, _SLASH)
        & (~three | _are_protocols(text, protocol))
    )
    if not ordinary.all():  # what is not ordinary may have stretches that go backwards
        method, path, protocol = (one.only(ordinary) for one in (method, path, protocol))
    ordinary &= text.made_of(method, _CAPITALS)
    return Requests(method, path, protocol, ordinary)


def pages(text: Text, paths: Spans) -> Spans:
    """Paths without their queries."""
    first = next_place(text.places(QUESTION_MARK), paths.starts)
    return Spans(paths.starts, np.minimum(first, paths.ends))


def _are_protocols(text: Text, spans: Spans) -> Mask:
    """Whether a stretch is HTTP/ and a digit, or two with a point between."""
    size = spans.ends - spans.starts
    ok: Mask = (size == _LONG) | (size == _SHORT)
    grid = text.grid(np.where(ok, spans.starts, 0), _SHORT)
    for row, sign in zip(grid, _PROTOCOL, strict=False):
        ok &= row == sign
    ok &= grid[len(_PROTOCOL)] - np.uint8(48) < 10
    long = ok & (size == _LONG)
    ok &= ~long | _ends_in_point_and_digit(text, spans.ends)
    return ok


def _ends_in_point_and_digit(text: Text, ends: Integers) -> Mask:
    point, digit = text.grid(np.maximum(ends - 2, 0), 2)
    found: Mask = (point == _POINT) & (digit - np.uint8(48) < 10)
    return found
