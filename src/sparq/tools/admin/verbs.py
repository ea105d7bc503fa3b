"""The command line of `sparq admin`: its verbs, their words and flags.

`sparq.tools.admin` describes what a verb does and how it ends. Words and flags may be mixed. After
`--` all arguments are words, because a topic's name may begin with a dash.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple

from sparq.program import command_line, flags, mistakes
from sparq.program.flag_types import choice
from sparq.program.flags import HELP, VERSION
from sparq.program.stdout import version_line, write_stdout
from sparq.protocol.durations import SECOND
from sparq.protocol.option import option
from sparq.tools.command_line import (
    CLIENT_OPTION,
    LOOKUPD_VARIABLE,
    NSQD_VARIABLE,
    ClusterHttpOptions,
    launch,
    refuse,
    with_environment,
)

PROGRAM: Final = "sparq admin"
COMPLETE: Final = "complete"
"""The verb that shell functions call: `sparq admin complete WORDS` completes the last word."""

STATE: Final = choice("", "waiting", "in_flight", "deferred", "finished")
FORMAT: Final = choice("jsonl", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ClusterHttpOptions):
    """Flags of every verb: which cluster to use, and how to ask it."""

    json: bool = option(False, "print JSON instead of a table")
    expect_nodes: int = option(
        0, "exit with status 1 if fewer than N nsqds are found (0: any number)", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions(AdminOptions):
    """Flags of `list`."""

    nodes: bool = option(False, "list the nsqds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(AdminOptions):
    """Flags of verbs that change something."""

    dry_run: bool = option(False, "show what would be done, and do nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class DangerOptions(ChangeOptions):
    """Flags of verbs that lose messages."""

    yes: bool = option(False, "skip the confirmation prompt; required without a terminal")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekOptions(AdminOptions):
    """Flags of `peek`."""

    state: str = option("", "waiting, in_flight or deferred (default: waiting)", kind=STATE)
    limit: int = option(10, "maximum number of messages to show", least=1, most=10_000)
    start: str = option(
        "",
        "without a channel: place to start at, as in seek (default: the newest messages)",
        name="from",
    )
    body_bytes: int = option(4096, "maximum bytes of each body to show", least=0, most=1_048_576)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions(AdminOptions):
    """Flags that select messages; a message must match all of them."""

    text: str = option("", "only messages whose body contains this text")
    where: str = option(
        "", """only JSON bodies with this value: 'user.id = "7"', 'status >= 500'"""
    )
    attempts: str = option("", "of a channel: number of delivery attempts: 3, '>=3'")
    state: str = option("", "of a channel: waiting, in_flight, deferred or finished", kind=STATE)
    start: str = option("", "start at this place, as in seek", name="from")
    end: str = option("", "stop before this place, as in seek", name="to")
    body_bytes: int = option(65_536, "maximum bytes of each body to show", least=0, most=1_048_576)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindOptions(SearchOptions):
    """Flags of `find`."""

    id: str = option("", "only the message with this id")
    ids: bool = option(False, "print only ids, as input for requeue, finish, cancel and copy")
    limit: int = option(50, "maximum number of messages to find", least=1, most=100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(SearchOptions):
    """Flags of `export`."""

    body_bytes: int = option(
        1_048_576, "maximum bytes of each body to write", least=0, most=1_048_576
    )
    format: str = option("jsonl", "output format: jsonl or csv", kind=FORMAT)
    output: str = option("", "new file to write to (default: standard output)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions(ChangeOptions):
    """Flags of `copy`."""

    to: str = option("", "topic to copy to")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveOptions(ChangeOptions):
    """Flags of `redrive`."""

    rate: int = option(0, "maximum letters per second over all nsqds (0: no limit)", least=0)
    limit: int = option(0, "maximum letters to send back (0: all waiting at the start)", least=0)
    to_all: bool = option(
        False, "send them to all channels of their topic, not only to the one they came from"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(AdminOptions):
    """Flags of `audit`."""

    nsqadmin_http_address: str = option(
        "127.0.0.1:4171", "nsqadmin that keeps the audit log: host:port or URL"
    )
    limit: int = option(50, "maximum number of entries to show, newest first", least=1, most=10_000)
    user: str = option("", "only actions of this user")
    action: str = option("", "only this action, such as delete_channel")
    topic: str = option("", "only actions on this topic")
    outcome: str = option("", "only this outcome: done, partly, failed or refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions(AdminOptions):
    """Flags of `drain`."""

    exit: bool = option(False, "have the nsqd exit once nothing is left")
    undo: bool = option(False, "end the drain: have the nsqd accept publishes again")
    timeout_ns: int = option(0, "how long to wait until nothing is left (0s: no limit)", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions(AdminOptions):
    """Flags of `move`."""

    source: str = option("", "nsqd to move it from: HOST:PORT of its HTTP", name="from")
    target: str = option("", "nsqd to move it to: HOST:PORT of its HTTP", name="to")
    wait_ns: int = option(
        10 * SECOND, "time for consumers to finish messages before the rest is moved", least=0
    )
    consumer_opt: tuple[str, ...] = option(
        (), "option of the reading client: key,value, or key alone for true", kind=CLIENT_OPTION
    )


class Verb(NamedTuple):
    """A verb: the words after it, what it does, its flags, and the allowed number of words."""

    words: str
    text: str
    options: type[AdminOptions]
    least: int
    most: int = 2


MANY: Final = sys.maxsize
IDS: Final = "TOPIC CHANNEL ID...|-"
VERBS: Final = {
    "list": Verb(
        "[TOPIC [CHANNEL]]", "list topics, channels of a topic, nsqds of a channel", ListOptions, 0
    ),
    "pause": Verb("TOPIC [CHANNEL]", "stop deliveries", ChangeOptions, 1),
    "unpause": Verb("TOPIC [CHANNEL]", "resume deliveries", ChangeOptions, 1),
    "empty": Verb("TOPIC [CHANNEL]", "drop its messages", DangerOptions, 1),
    "delete": Verb("TOPIC [CHANNEL]", "delete it and its messages", DangerOptions, 1),
    "create": Verb("TOPIC [CHANNEL]", "create it", ChangeOptions, 1),
    "tombstone": Verb(
        "TOPIC NODE",
        "hide an nsqd from a topic's consumers, delete the topic there",
        DangerOptions,
        2,
    ),
    "drain": Verb(
        "NODE", "refuse publishes at an nsqd, and wait until it is empty", DrainOptions, 1, 1
    ),
    "move": Verb("topic NAME", "move a topic from one nsqd to another", MoveOptions, 2),
    "seek": Verb(
        "TOPIC CHANNEL PLACE",
        "move a channel: earliest, latest, -1h, 2026-01-31T08:00, last:100",
        DangerOptions,
        3,
        3,
    ),
    "peek": Verb("TOPIC [CHANNEL]", "show messages without consuming them", PeekOptions, 1),
    "find": Verb("TOPIC [CHANNEL]", "search for messages", FindOptions, 1),
    "export": Verb("TOPIC [CHANNEL]", "write messages to a file", ExportOptions, 1),
    "requeue": Verb(IDS, "deliver messages again now", ChangeOptions, 3, MANY),
    "finish": Verb(IDS, "finish messages without delivering them", DangerOptions, 3, MANY),
    "cancel": Verb(IDS, "drop deferred messages", DangerOptions, 3, MANY),
    "copy": Verb("TOPIC ID...|-", "publish messages again to the topic --to", CopyOptions, 2, MANY),
    "redrive": Verb(
        "TOPIC [CHANNEL [ID...|-]]",
        "send dead letters that wait in a channel (default: redrive) back to where they came from",
        RedriveOptions,
        1,
        MANY,
    ),
    "policies": Verb(
        "[show TOPIC [CHANNEL]|export|apply FILE|-|drop]",
        "show or change settings of topics and channels by pattern",
        DangerOptions,
        0,
        3,
    ),
    "audit": Verb("", "list actions taken through nsqadmin", AuditOptions, 0, 0),
    "completion": Verb(
        "bash|zsh|fish", "print a shell script that completes names", AdminOptions, 1, 1
    ),
}


class ParsedCommand(NamedTuple):
    """A parsed command line."""

    verb: str
    words: tuple[str, ...]
    options: Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [COMPLETE]:
        return launch("sparq.tools.admin.completion", words[1:])
    name = words[0] if words else "--help"
    if name.lstrip("-") in ("help", "h") or name.lstrip("-") == "version":
        is_version = name.lstrip("-") == "version"
        text = f"{version_line(PROGRAM)}\n" if is_version else overview()
        raise SystemExit(0 if write_stdout(text) else 1)
    if name not in VERBS:
        near = mistakes.suggestion(name, VERBS) or f": use {mistakes.one_of(VERBS)}"
        refuse(PROGRAM, f"there is no verb {mistakes.shown(name)}{near}")
    return launch("sparq.tools.admin.main", read(name, words[1:]))


def read(name: str, arguments: Sequence[str]) -> ParsedCommand:
    """Parse a verb's command line. Raises SystemExit: 0 after ``--help``, 1 for a mistake."""
    verb, program = VERBS[name], f"{PROGRAM} {name}"
    known = [*flags.flags_of(verb.options), HELP, VERSION]
    try:
        words, given = separated(program, arguments, known)
    except mistakes.Mistake as error:
        refuse(program, str(error))
    if "--help=true" in given:
        page = import_module("sparq.program.help_page").page(f"{program} {verb.words}", known)
        raise SystemExit(0 if write_stdout(page) else 1)
    options = flags.parse(
        verb.options, program, lambda: version_line(program), given, takes_file=False
    )
    if not verb.least <= len(words) <= verb.most:
        given_words = " ".join(map(mistakes.shown, words[:5])) or "nothing"
        refuse(program, f"takes {verb.words or 'no words'}, not {given_words}")
    return ParsedCommand(name, tuple(words), with_environment(options))


def separated(
    program: str, arguments: Sequence[str], known: Sequence[flags.Flag]
) -> tuple[list[str], list[str]]:
    """Split a command line that mixes words and flags into words and flags with their values.

    Raises:
        Mistake: a flag is unknown, or has no value.
    """
    by_name = {flag.name: flag for flag in known}
    words: list[str] = []
    given: list[str] = []
    rest = list(arguments)
    while rest:
        if rest[0] == "--":
            return words + rest[1:], given
        if _is_word(rest[0]):
            words.append(rest.pop(0))
            continue
        flag = by_name.get(rest[0].lstrip("-"))
        size = 1 if flag is None or flag.kind.bare else 2
        found = command_line.split(program, rest[:size], by_name)
        given += [f"--{each.name}={text}" for each, text in found.texts]
        rest = rest[size:]
    return words, given


def _is_word(text: str) -> bool:
    """Whether a text is not a flag; places such as -1h are none, nor is - for standard input."""
    return not text.startswith("-") or text == "-" or text[1:2].isdigit()


def overview() -> str:
    """Return the page that `sparq admin --help` prints."""
    page = import_module("sparq.program.help_page").page
    usages = {name: f"{name} {verb.words}".rstrip() for name, verb in VERBS.items()}
    width = max(map(len, usages.values()))
    verbs = "".join(f"  {usages[name].ljust(width)}  {verb.text}\n" for name, verb in VERBS.items())
    common = page(f"{PROGRAM} VERB", [*flags.flags_of(AdminOptions), HELP, VERSION])
    return (
        f"{common}\nverbs (sparq admin VERB --help lists the flags of a verb):\n{verbs}\n"
        f"Without an address, the environment variable {LOOKUPD_VARIABLE} or {NSQD_VARIABLE}"
        " is used.\n"
    )
