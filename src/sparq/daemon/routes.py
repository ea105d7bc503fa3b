"""The routes of a daemon, looked up by path as in Go's router.

1. Paths are exact. A part that begins with a colon is a parameter, as in
   `/topics/:topic/:channel`, and matches any text that is not empty. If both match, a literal part
   takes precedence over a parameter.
2. For a path that matches no route, `meant` returns the intended one: a path that differs only in
   case, in a trailing slash, or in `//`, `/./` and `/../`. Parameters are never changed.
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
    """One endpoint; parts of its path may be parameters, as in `/config/:opt`.

    `plain`: answer as text without NSQ's header (/ping). `log`: log requests at INFO. `private`: a
    GET that needs the token, like all requests other than GET.
    """

    method: str
    path: str
    handler: Handler
    plain: bool = False
    log: bool = True
    private: bool = False


Methods: TypeAlias = "dict[str, Route]"


class RouteMatch(NamedTuple):
    """The result of a look-up: the path's routes by method, and the values of its parameters."""

    methods: Methods
    parameters: Mapping[str, str]


class RouteTable:
    """All routes of a site, below `base`: "", or a path with a leading and no trailing slash."""

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
            # False sorts before True: at each part, a literal comes before a parameter (rule 1).
            in_order = sorted(alike, key=lambda parts: [one[:1] == PARAMETER for one in parts])
            self._open[length] = {parts: alike[parts] for parts in in_order}
        # Go's router ignores case and trailing slashes when it looks for the intended path.
        self._folded = {_folded(path): path for path in self._exact}

    def find(self, path: str) -> RouteMatch | None:
        """Look up an unescaped path; None: no route matches."""
        methods = self._exact.get(path)
        if methods is not None:
            return RouteMatch(methods, {})
        parts = path.split("/")
        for pattern, methods in self._open.get(len(parts), {}).items():
            if _fits(pattern, parts):
                return RouteMatch(methods, _parameters(pattern, parts))
        return None

    def meant(self, path: str, method: str) -> str | None:
        """Return the intended path, escaped, if it has a route for the method (rule 2)."""
        # `normpath` would keep two leading slashes.
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
