"""Interactive shells on a pseudo-terminal: keys are typed, and the edited line is read."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

SECONDS_MAX: Final = 30.0
TAB, SHOW = b"\t", b"\x18"

PROGRAMS: Final = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
# Ctrl-X writes the edited line to a file and clears it.
PREPARED: Final = {
    "bash": r"""
        eval "$(sparq admin completion bash)"
        __show() {
            printf %s "$READLINE_LINE" > "$LINE.part"; mv "$LINE.part" "$LINE"
            READLINE_LINE= READLINE_POINT=0
        }
        bind -x '"\C-x": __show'
    """,
    "zsh": r"""
        autoload -U compinit; compinit -u -D
        eval "$(sparq admin completion zsh)"
        __show() { print -rn -- "$BUFFER" > "$LINE.part"; mv "$LINE.part" "$LINE"; BUFFER= }
        zle -N __show; bindkey '^X' __show
    """,
    "fish": r"""
        sparq admin completion fish | source
        function __show
            commandline > "$LINE.part"; mv "$LINE.part" "$LINE"; commandline ""
        end
        bind \cx __show
    """,
}
# Makes standard input the controlling terminal, as a terminal emulator does for its shell.
LEAD: Final = (
    "import fcntl, os, sys, termios;"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


class Shell:
    """A shell with the completion of `sparq admin`; a context manager ends it."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._line = folder / "line"
        script = folder / "prepared"
        script.write_text(f"{PREPARED[name]}\n")
        self._terminal, side = os.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        own = {
            "HOME": str(folder),
            "TERM": "xterm",
            "LINE": str(self._line),
            "INPUTRC": "/dev/null",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", LEAD, *PROGRAMS[name]],
            stdin=side,
            stdout=side,
            stderr=side,
            env={**environment, **own},
            start_new_session=True,
        )
        os.close(side)
        self._said = b""
        self._type(f"source {script}; echo IS  READY\n".encode())
        self._wait(lambda: b"IS READY" in self._said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def completed(self, text: str) -> str:
        """Return the edited line after typing this and Tab."""
        self._line.unlink(missing_ok=True)
        self._type(text.encode() + TAB + SHOW)
        self._wait(self._line.exists)
        return self._line.read_text().removesuffix("\n")

    def _type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not is_so():
            assert time.monotonic() < deadline, self._said[-2000:].decode(errors="replace")
            if select.select([self._terminal], [], [], 0.02)[0]:
                self._said += os.read(self._terminal, 65_536)
