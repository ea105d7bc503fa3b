"""Changes of a token file: a new file takes the place of the old one.

The new file is locked while a change is made: a second change waits for the end of the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from sparq.daemon.access import tokens
from sparq.daemon.access.tokens import NO_HASH, Form

NEW: Final = ".new"
ID_LENGTH: Final = 12
MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class TokenLine:
    """A token's line: its number in the file, from 1, and its words.

    Attributes:
        id: the beginning of the token's hash; `-` for `anybody`.
        last_day: as in the file; "": it does not expire.
        expires: seconds since the epoch.
    """

    number: int
    name: str
    roles: str
    id: str
    last_day: str
    expires: float

    def is_id(self, text: str) -> bool:
        """Whether a text is the beginning of the id, long enough not to be a guess."""
        return self.id != NO_HASH and text.lower()[:ID_LENGTH] == self.id


class TokenFile:
    """A token file during a change; a context manager.

    Attributes:
        lines: its lines, with comments.
        tokens: its tokens, in the order of the lines.
    """

    def __init__(self, path: str, form: Form, *, changes: bool = True) -> None:
        """`changes`: the file will be replaced, and is created if there is none."""
        self.lines: list[str] = []
        self.tokens: list[TokenLine] = []
        # A symbolic link stays one.
        self._path = os.path.realpath(path)
        self._form = form
        self._changes = changes
        self._new = -1

    def __enter__(self) -> Self:
        """Read the file.

        Raises:
            TokenFileError: the daemons would refuse it.
            OSError: it cannot be changed.
        """
        if self._changes:
            self._new = self._open_new()
        try:
            if not self._changes or os.path.exists(self._path):
                text = tokens.read_text(self._path)
                tokens.parse(self._path, text, self._form)
                self.lines = text.splitlines()
        except BaseException:
            self.__exit__()
            raise
        self.tokens = [
            _line(number, words, self._form)
            for number, line in enumerate(self.lines, 1)
            if (words := tokens.words_of(line))
        ]
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the new file if it has not taken the place of the old one."""
        if self._new >= 0:
            os.close(self._new)
            self._new = -1
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + NEW)

    def _open_new(self) -> int:
        new = self._path + NEW
        while True:
            # Not with O_EXCL: a change that was killed leaves its file, but not its lock.
            made = os.open(new, os.O_WRONLY | os.O_CREAT, MODE)
            fcntl.flock(made, fcntl.LOCK_EX)
            # The change before this one has renamed or deleted the file that both had opened.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(made), os.stat(new)):
                    os.ftruncate(made, 0)
                    return made
            os.close(made)

    def replace(self, lines: Sequence[str]) -> None:
        """Put a file with these lines in the place of the old one, with its mode and owner.

        Raises:
            TokenFileError: the daemons would refuse it; nothing has changed.
            OSError: it cannot be written, or cannot get the old one's owner.
        """
        text = "".join(f"{line}\n" for line in lines)
        tokens.parse(self._path, text, self._form)
        with contextlib.suppress(FileNotFoundError):
            old = os.stat(self._path)
            os.fchown(self._new, old.st_uid, old.st_gid)
            os.fchmod(self._new, stat.S_IMODE(old.st_mode))
        data = memoryview(text.encode())
        while data:
            data = data[os.write(self._new, data) :]
        os.fsync(self._new)
        os.replace(self._path + NEW, self._path)
        os.close(self._new)
        self._new = -1
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _line(number: int, words: Sequence[str], form: Form) -> TokenLine:
    token = tokens.parse_line(words, form)
    beginning = token.digest.hex()[:ID_LENGTH] or NO_HASH
    last_day = words[3] if len(words) == 4 else ""
    return TokenLine(number, token.name, words[1], beginning, last_day, token.expires)
