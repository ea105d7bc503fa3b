"""The program `sparq token`: makes, lists and removes the tokens of a token file.

1. `make` prints a new token on standard output, once: the file has only its hash. The roles are
   checked as the daemons check them. `anybody` has no token.
2. The file is replaced as a whole and keeps its mode, owner and group, so a daemon never reads half
   of it. A new file has mode 0600. A file with a mistake is left as it is.
3. A daemon reads the file again at SIGHUP (`systemctl reload nsqd`).
4. Exit status: 1 if nothing was done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from sparq.daemon.access import tokens
from sparq.daemon.access.tokens import ADMINS_FORM, ANYBODY, FORM, ID_LENGTH, NO_HASH, Form, Token
from sparq.daemon.files import sync_folder
from sparq.options.declare import option
from sparq.options.mistakes import shown
from sparq.program import verbs
from sparq.program.flags import exit_after_mistake
from sparq.program.stdout import write_stdout
from sparq.program.verbs import ParsedCommand, Verb

PROGRAM: Final = "sparq token"
FOOT: Final = "docs/access.md describes the roles.\n"
HEADINGS: Final = ("NAME", "ROLES", "ID", "LAST DAY", "")
FILE: Final = "--file=/etc/nsq/tokens"
NEW: Final = ".new"
MODE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """Flags of every verb."""

    file: str = option("", "token file; `make` without it prints the line on stderr")
    nsqadmin: bool = option(False, "the file is nsqadmin's: its roles are for all topics")


VERBS: Final = {
    "make": Verb(
        "NAME ROLES [LAST_DAY]",
        "make a token, print it, and add its line to the file",
        TokenOptions,
        about="Makes a token, prints it once, and adds its line to the file. Roles are separated by"
        " commas; ROLE:PATTERN is for the topics that match. The token is valid to the end of the"
        " last day (UTC).",
        examples=(
            f"make web 'publish:clicks*' {FILE}",
            f"make archive consume:clicks,consume:orders.* 2027-03-31 {FILE}",
            f"make anybody read {FILE}",
        ),
    ),
    "list": Verb(
        "",
        "list the tokens of the file",
        TokenOptions,
        about="Lists the tokens of the file. The id is the beginning of the token's hash.",
        examples=(f"list {FILE}",),
    ),
    "remove": Verb(
        "NAME|ID",
        "remove a token from the file",
        TokenOptions,
        about="Removes a token from the file. If several have the name, give the id of one, as"
        " `list` shows it.",
        examples=(f"remove web {FILE}", f"remove 6e8c0c2c36a1 {FILE}"),
    ),
}


Edit: TypeAlias = Callable[[list[str], Sequence[Token]], list[str]]
"""Gets the lines of a token file, with comments, and its tokens; returns the new lines."""


def change(path: str, form: Form, edit: Edit) -> None:
    """Replace a token file, or create it, with its old mode and owner.

    The new file is locked meanwhile: a second change waits for the end of the first.

    Raises:
        TokenFileError: the daemons would refuse the old or the new file; nothing has changed.
        OSError: it cannot be written, or cannot get the old one's owner.
        ValueError: from `edit`; nothing has changed.
    """
    path = os.path.realpath(path)  # a symbolic link stays one
    new = _locked(path + NEW)
    try:
        exists = os.path.exists(path)
        old = tokens.read_text(path) if exists else ""
        lines = edit(old.splitlines(), tokens.parse(path, old, form).lines)
        text = "".join(f"{line}\n" for line in lines)
        tokens.parse(path, text, form)
        if exists:
            status = os.stat(path)
            os.fchown(new, status.st_uid, status.st_gid)
            os.fchmod(new, stat.S_IMODE(status.st_mode))
        with open(new, "wb", closefd=False) as file:
            file.write(text.encode())
        os.fsync(new)
        os.replace(path + NEW, path)
    except BaseException:
        os.unlink(path + NEW)
        raise
    finally:
        os.close(new)
    sync_folder(path)


def _locked(path: str) -> int:
    """Create and lock an empty file; waits while another process has it."""
    while True:
        # Not with O_EXCL: a change that was killed leaves its file, but not its lock.
        made = os.open(path, os.O_WRONLY | os.O_CREAT, MODE)
        fcntl.flock(made, fcntl.LOCK_EX)
        # The change before this one has renamed or deleted the file that both had opened.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(made), os.stat(path)):
                os.ftruncate(made, 0)
                return made
        os.close(made)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status.

    Raises:
        SystemExit: 0 after `--help` and `--version`, 1 for a mistake.
    """
    words = sys.argv[1:] if arguments is None else arguments
    request = verbs.read(PROGRAM, VERBS, words, TokenOptions, FOOT)
    acts: dict[str, Callable[[ParsedCommand, Form], int]]
    acts = {"make": _make, "list": _list, "remove": _remove}
    form = ADMINS_FORM if request.options.nsqadmin else FORM
    if not request.options.file and request.verb != "make":
        raise _refusal(request, f"--file is required, such as {FILE}")
    try:
        return acts[request.verb](request, form)
    except ValueError as error:
        raise _refusal(request, str(error)) from None
    except OSError as error:
        reason = f"{error.filename or request.options.file}: {error.strerror}"
        raise _refusal(request, f"{reason}: nothing was done") from None


def _refusal(request: ParsedCommand, sentence: str) -> SystemExit:
    return exit_after_mistake(f"{PROGRAM} {request.verb}", sentence, is_daemon=False)


def _make(request: ParsedCommand, form: Form) -> int:
    name, roles, last_day = (*request.words, "")[:3]
    path = request.options.file
    if last_day and tokens.end_of(last_day) <= time.time():
        raise ValueError(f"{last_day} has passed")
    if name == ANYBODY and not form.is_whole:
        token, line = "", " ".join([name, roles, NO_HASH, *request.words[2:]])
        tokens.parse_line(line.split(), form)
    else:
        token, line = tokens.make(name, roles, last_day, form=form)
    if path:
        change(path, form, lambda lines, _: [*lines, line])
    else:
        sys.stderr.write(f"{line}\n")
    if token and not write_stdout(f"{token}\n"):
        sys.stderr.write(f"{PROGRAM} make: the token is lost: remove its line, and make another\n")
        return 1
    if path:
        sys.stderr.write(f"added {name} to {path}: reload the daemons that use it (SIGHUP)\n")
    return 0


def _list(request: ParsedCommand, form: Form) -> int:
    now = time.time()
    rows = [
        (
            *(one.name, one.words[1], one.id, (*one.words, "")[3]),
            "" if now < one.expires else "expired",
        )
        for one in tokens.read(request.options.file, form).lines
    ]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (HEADINGS, *rows)
    )
    return int(not write_stdout("".join(f"{line}\n" for line in lines)))


def _remove(request: ParsedCommand, form: Form) -> int:
    wanted, path = request.words[0], request.options.file
    # A text is an id if it is long enough not to be a guess.
    beginning = wanted.lower()[:ID_LENGTH]
    removed = ""

    def edit(lines: list[str], known: Sequence[Token]) -> list[str]:
        nonlocal removed
        found = [one for one in known if wanted == one.name or (one.digest and beginning == one.id)]
        if not found:
            names = ", ".join(dict.fromkeys(one.name for one in known)) or "none"
            raise ValueError(f"no token {shown(wanted)} in {path}: it has {names}")
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise ValueError(f"{len(found)} tokens {wanted}: use the id of one ({ids})")
        removed, at = found[0].name, found[0].number
        return [line for number, line in enumerate(lines, 1) if number != at]

    change(path, form, edit)
    sys.stderr.write(f"removed {removed} from {path}: reload the daemons that use it (SIGHUP)\n")
    return 0
