"""Daemons that get all their options from a table of flags with checks of their effects.

A `Row` is a flag with a value and a check of its effect in a running daemon. One daemon gets all
rows of a group, so that a few starts check many flags. That a key of a file has the same effect as
its flag is tested with the reader of both (tests/program/test_flags.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.servers import NsqdServer, free_port, start_first

Places: TypeAlias = Mapping[str, str]
"""Values of the words in braces: `{tcp}`, `{http}`, `{https}`, `{data}` and `{name}` are those of a
daemon, the others those of the module.
"""


class FlagServer(NsqdServer):
    """A daemon that gets its addresses from the rows, too, and that may refuse plain HTTP.

    `helpers` are objects that the module's checks share, such as an authd that records its
    requests.
    """

    def __init__(self, module: str, folder: Path, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self.places: dict[str, str] = {}
        self.helpers: dict[str, Any] = {}
        super().__init__(module, folder, ())

    def choose_ports(self) -> None:
        """Choose free ports, and set the values of the words in braces."""
        super().choose_ports()
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        https = f"127.0.0.1:{free_port()}"
        self.places.update(
            tcp=self.tcp, http=self.http, https=https, data=str(data), name="nsqd.example"
        )

    def address_flags(self) -> tuple[str, ...]:
        """Return all flags; those of the rows, and its addresses."""
        own = ("--tcp-address={tcp}", "--http-address={http}")
        given = [word for row in self.rows for word in row.words(self.places)]
        return (*(text(flag, self.places) for flag in own), *given)

    def answers(self) -> bool:
        """Whether it answers ``/ping``, even if only with 403."""
        with contextlib.suppress(OSError):
            return self.request("GET", "/ping")[0] in (200, 403)
        return False


Check: TypeAlias = Callable[[FlagServer], None]


@dataclass(frozen=True)
class Row:
    """A flag, its value, and a check of its effect."""

    flag: str
    value: Any
    check: Check

    def words(self, places: Places) -> list[str]:
        """Return the flag for a command line; for a list, one flag per value."""
        values = self.value if isinstance(self.value, list) else [self.value]
        return [f"--{self.flag}={text(value, places)}" for value in values]


def text(value: Any, places: Places) -> str:
    """Return a value in its command-line form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    found = str(value)
    for name, place in places.items():
        found = found.replace(f"{{{name}}}", place)
    return found


class FlagDaemons:
    """The daemons of a test module: one per group, started on first use."""

    def __init__(self, module: str, folder: Path, groups: Mapping[str, list[Row]]) -> None:
        self.places: dict[str, str] = {}
        self.helpers: dict[str, Any] = {}
        self._module = module
        self._folder = folder
        self._groups = groups
        self._running: dict[str, FlagServer] = {}

    def server(self, group: str) -> FlagServer:
        """Return the running daemon of a group."""
        if group not in self._running:
            folder = self._folder / group.replace(" ", "-")
            folder.mkdir()
            server = FlagServer(self._module, folder, self._groups[group])
            server.places.update(self.places)
            server.helpers = self.helpers
            start_first(server)
            self._running[group] = server
        return self._running[group]

    def close(self) -> None:
        """Stop all daemons."""
        for server in self._running.values():
            server.close()


@contextlib.contextmanager
def flag_daemons(
    module: str, folder: Path, groups: Mapping[str, list[Row]]
) -> Iterator[FlagDaemons]:
    """Provide the daemons of a module, and stop them afterwards."""
    daemons = FlagDaemons(module, folder, groups)
    try:
        yield daemons
    finally:
        daemons.close()


def each_row(groups: Mapping[str, list[Row]]) -> pytest.MarkDecorator:
    """Parametrise a test with each row of each group: (group, row)."""
    cases = [
        pytest.param(group, row, id=row.flag) for group, rows in groups.items() for row in rows
    ]
    return pytest.mark.parametrize(("group", "row"), cases)
