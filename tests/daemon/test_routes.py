"""Paths are matched to routes as in Go's router: exact, with parameters, or corrected."""

from __future__ import annotations

import pytest

from sparq.daemon.routes import Route, RouteTable

PATHS = [
    "/",
    "/topics",
    "/topics/:topic",
    "/topics/:topic/:channel",
    "/topics/:topic/messages",
    "/config/:opt",
    "/nodes/:node/stats",
]


def table(base: str = "") -> RouteTable:
    return RouteTable([Route("GET", path, lambda _call: None) for path in PATHS], base)


@pytest.mark.parametrize(
    ("path", "route", "parameters"),
    [
        ("/", "/", {}),
        ("/topics", "/topics", {}),
        ("/topics/a", "/topics/:topic", {"topic": "a"}),
        ("/topics/..", "/topics/:topic", {"topic": ".."}),
        ("/topics/a#ephemeral", "/topics/:topic", {"topic": "a#ephemeral"}),
        ("/topics/a/b", "/topics/:topic/:channel", {"topic": "a", "channel": "b"}),
        ("/topics/a/messages", "/topics/:topic/messages", {"topic": "a"}),
        ("/nodes/[::1]:4151/stats", "/nodes/:node/stats", {"node": "[::1]:4151"}),
    ],
)
def test_a_path_finds_its_route_and_parameters(
    path: str, route: str, parameters: dict[str, str]
) -> None:
    """A path finds its route and parameters; a literal part takes precedence over a parameter."""
    for base in ("", "/nsq/admin"):
        found = table(base).find(base + path if path != "/" else base or "/")
        assert found is not None
        assert (route, parameters) == (found.methods["GET"].path, found.parameters)


@pytest.mark.parametrize(
    "path", ["", "/topic", "/topics/", "/topics//b", "/topics/a/b/c", "/nodes/a", "/nodes//stats"]
)
def test_other_paths_match_no_route(path: str) -> None:
    """Other paths match no route: a parameter is never empty and contains no slash."""
    assert table().find(path) is None
    assert table("/x").find("/topics") is None


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/topics/", "/topics"),
        ("/TOPICS", "/topics"),
        ("//topics//", "/topics"),
        ("/x/../topics", "/topics"),
        ("/Topics/Ab/", "/topics/Ab"),
        ("/topics/a b/c%", "/topics/a%20b/c%25"),
        ("/NODES/n:1/Stats/", "/nodes/n%3A1/stats"),
        ("/nope", None),
        ("/nodes/a", None),
    ],
)
def test_meant_corrects_case_slashes_and_dots(path: str, meant: str | None) -> None:
    """``meant`` corrects case, slashes and dots; parameters stay the same, escaped."""
    assert meant == table().meant(path, "GET")
    assert table().meant(path, "POST") is None
    if meant:
        assert "/b" + meant == table("/b").meant("/B" + path, "GET")
