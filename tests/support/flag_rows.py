"""Daemons that get all their options in one form: on the command line, or in a TOML file.

A `Row` is a flag with a value and a check of its effect in a running daemon. One daemon gets all
rows of a group, once in each form, so that a few starts check many flags.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from sparq.options.declare import flags_of
from tests.support.servers import NsqdServer, free_port, start_first

FORMS = ("command line", "TOML")

Places: TypeAlias = Mapping[str, str]
"""Values of the words in braces: `{tcp}`, `{http}`, `{https}`, `{data}` and `{name}` are those of a
daemon, the others those of the module.
"""


class FlagServer(NsqdServer):
    """A daemon that gets its addresses from the rows, too, and that may refuse plain HTTP.

    `helpers` are objects that the module's checks share, such as an authd that records its
    requests.
    """

    def __init__(self, module: str, folder: Path, rows: Iterable[Row], form: str) -> None:
        self.rows = tuple(rows)
        self.form = form
        self.places: dict[str, str] = {}
        self.helpers: dict[str, Any] = {}
        super().__init__(module, folder, ())

    def choose_ports(self) -> None:
        """Choose free ports, and set the values of the words in braces."""
        super().choose_ports()
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        name = "line.example" if self.form == "command line" else "file.example"
        https = f"127.0.0.1:{free_port()}"
        self.places.update(tcp=self.tcp, http=self.http, https=https, data=str(data), name=name)

    def address_flags(self) -> tuple[str, ...]:
        """Return all flags, or the one that names the file."""
        if self.form == "command line":
            return tuple(word for row in self.rows for word in row.words(self.places))
        config = self.folder / "options.toml"
        config.write_text("".join(row.line(self.places) for row in self.rows))
        return (f"-config={config}",)

    def answers(self) -> bool:
        """Whether it answers ``/ping``, even if only with 403."""
        with contextlib.suppress(OSError):
            return self.request("GET", "/ping")[0] in (200, 403)
        return False


Check: TypeAlias = Callable[[FlagServer], None]


@dataclass(frozen=True)
class Row:
    """A flag, its value, and a check of its effect.

    Attributes:
        key: its key in the file, if that is not the flag's name with underscores.
        toml: its value in the file, if it differs from the one on the command line.
    """

    flag: str
    value: Any
    check: Check
    key: str = ""
    toml: Any = None

    def words(self, places: Places) -> list[str]:
        """Return the flag for a command line; for a list, one flag per value."""
        values = self.value if isinstance(self.value, list) else [self.value]
        return [f"--{self.flag}={text(value, places)}" for value in values]

    def line(self, places: Places) -> str:
        """Return the option's line in a file."""
        value = self.value if self.toml is None else self.toml
        key = self.key or self.flag.replace("-", "_")
        if isinstance(value, list):
            value = [text(one, places) if isinstance(one, str) else one for one in value]
        elif isinstance(value, str):
            value = text(value, places)
        return f"{key} = {json.dumps(value)}\n"


def text(value: Any, places: Places) -> str:
    """Return a value in its command-line form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    found = str(value)
    for name, place in places.items():
        found = found.replace(f"{{{name}}}", place)
    return found


class FlagDaemons:
    """The daemons of a test module: one per group and form, started on first use."""

    def __init__(self, module: str, folder: Path, groups: Mapping[str, list[Row]]) -> None:
        self.places: dict[str, str] = {}
        self.helpers: dict[str, Any] = {}
        self._module = module
        self._folder = folder
        self._groups = groups
        self._running: dict[tuple[str, str], FlagServer] = {}

    def server(self, group: str, form: str) -> FlagServer:
        """Return the running daemon of a group and form."""
        if (group, form) not in self._running:
            folder = self._folder / f"{group} {form}".replace(" ", "-")
            folder.mkdir()
            server = FlagServer(self._module, folder, self._groups[group], form)
            server.places.update(self.places)
            server.helpers = self.helpers
            start_first(server)
            self._running[group, form] = server
        return self._running[group, form]

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
    """Parametrise a test with each row of each group in both forms: (group, form, row)."""
    cases = [
        pytest.param(group, form, row, id=f"{row.flag}, {form}")
        for group, rows in groups.items()
        for row in rows
        for form in FORMS
    ]
    return pytest.mark.parametrize(("group", "form", "row"), cases)


def assert_keys_are_right(options_class: type, groups: Mapping[str, list[Row]]) -> None:
    """Assert that the table's keys are those of the options; a file would ignore other keys."""
    keys = {flag.name: flag.key for flag in flags_of(options_class)}
    for rows in groups.values():
        for row in rows:
            assert keys[row.flag] == (row.key or row.flag.replace("-", "_"))
