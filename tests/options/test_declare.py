"""Options: dataclass fields whose metadata describes their flags."""

from __future__ import annotations

from dataclasses import dataclass

from sparq.options.declare import option


@dataclass(frozen=True)
class Options:
    """One option of each form."""

    size: int = option(3, "bytes", least=1, most="limit", live="log")
    limit: int = option(9, "at most", key="size_limit", name="max")
    peers: tuple[str, ...] = option((), "addresses")
    folder: str = option(lambda: "computed", "where")
    token: str = option("", "a secret", secret=True)


def test_defaults_are_those_declared() -> None:
    """Defaults are the declared values; a callable is called for its value."""
    assert Options(3, 9, (), "computed", "") == Options()


def test_a_secret_is_not_in_the_repr() -> None:
    """A secret is not in the repr, since options are logged."""
    text = repr(Options(token="open sesame"))
    assert "sesame" not in text
    assert "folder='computed'" in text
