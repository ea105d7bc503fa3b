"""The routes of a daemon, found by their paths as Go's router finds them.

1. Paths are exact; a part of one that begins with a colon is a parameter, as in
   `/topics/:topic/:channel`, and takes any text that is not empty. Where both fit, a part that is
   written out goes before a parameter.
2. For a path that fits no route `meant` has the one that it was meant to be: but for case, a
   trailing slash, or `//`, `/./` and `/../`. Parameters are never changed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote

if TYPE_CHECKING:
    from sparq.daemon.call import Call

Result: TypeAlias = Any
Handler: TypeAlias = "Callable[[Call], Awaitable[Result] | Result]"
PARAMETER = ":"


class Route(NamedTuple):
    """One endpoint; parts of a path may be parameters, as in `/config/:opt`.

    `plain`: text answers without NSQ's header (/ping). `log`: at INFO. `private`: a GET that a
    token is asked for, as all else that is no GET.
    """

    method: str
    path: str
    handler: Handler
    plain: bool = False
    log: bool = True
    private: bool = False


Methods: TypeAlias = "dict[str, Route]"


class Found(NamedTuple):
    """What a path leads to: its routes by method, and the texts of its parameters."""

    methods: Methods
    parameters: Mapping[str, str]


class Table:
    """All routes of a site, below `base`: "", or a path with a slash before and none behind."""

    def __init__(self, routes: Iterable[Route], base: str = "") -> None:
        self._exact: dict[str, Methods] = {}
        self._open: dict[int, dict[tuple[str, ...], Methods]] = {}
        for route in routes:
            path = (base + route.path).rstrip("/") if route.path == "/" else base + route.path
            parts = tuple(path.split("/"))
            if any(part.startswith(PARAMETER) for part in parts):
                alike = self._open.setdefault(len(parts), {})
                alike.setdefault(parts, {})[route.method] = route
            else:
                self._exact.setdefault(path or "/", {})[route.method] = route
        for length, alike in self._open.items():
            in_order = sorted(alike, key=lambda parts: [one[:1] == PARAMETER for one in parts])
            self._open[length] = {parts: alike[parts] for parts in in_order}
        # Go's router ignores case and trailing slashes when it looks for what was meant.
        self._folded = {_folded(path): path for path in self._exact}

    def find(self, path: str) -> Found | None:
        """What an unescaped path leads to."""
        methods = self._exact.get(path)
        if methods is not None:
            return Found(methods, {})
        parts = path.split("/")
        for pattern, methods in self._open.get(len(parts), {}).items():
            if _fits(pattern, parts):
                return Found(methods, _parameters(pattern, parts))
        return None

    def meant(self, path: str, method: str) -> str | None:
        """The path, escaped, that this one was meant to be, if it answers to the method."""
        # Two slashes at the beginning would stay.
        cleaned = "/" + posixpath.normpath(path).lstrip("/")
        exact = self._folded.get(_folded(cleaned))
        if exact is not None:
            return exact if method in self._exact[exact] else None
        parts = cleaned.split("/")
        for pattern, methods in self._open.get(len(parts), {}).items():
            folded = [
                part if want.startswith(PARAMETER) else part.lower()
                for want, part in zip(pattern, parts, strict=True)
            ]
            if method in methods and _fits(pattern, folded):
                return "/".join(quote(part) for part in folded)
        return None


def _fits(pattern: tuple[str, ...], parts: list[str]) -> bool:
    return all(
        bool(part) if want.startswith(PARAMETER) else want == part
        for want, part in zip(pattern, parts, strict=True)
    )


def _parameters(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str]:
    return {
        want.removeprefix(PARAMETER): part
        for want, part in zip(pattern, parts, strict=True)
        if want.startswith(PARAMETER)
    }


def _folded(path: str) -> str:
    return path.rstrip("/").lower() or "/"
