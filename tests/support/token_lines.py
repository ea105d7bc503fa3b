"""A token file that a test writes and changes, and the access checks that read it."""

from pathlib import Path

from sparq.daemon.access import tokens
from sparq.daemon.access.access import Access


class TokenLines:
    """The lines of a token file, by name. A subclass sets `access` once the file is written."""

    access: Access

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[str, str] = {}

    def add(self, name: str, roles: str, last_day: str = "") -> str:
        """Write a new token's line; returns the token."""
        token, self.lines[name] = tokens.make(name, roles, last_day)
        self.path.write_text("\n".join(self.lines.values()))
        return token

    def change(self, name: str, roles: str = "") -> None:
        """Give a token other roles, or remove it, and read the file again."""
        words = self.lines.pop(name).split()
        if roles:
            self.lines[name] = " ".join([words[0], roles, *words[2:]])
        self.path.write_text("\n".join(self.lines.values()))
        assert self.access.reload()
