"""The command line of `sparq admin`: its verbs, their words and flags.

`sparq.tools.admin` describes what a verb does and how it ends.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from sparq.options.declare import option
from sparq.options.kinds import choice
from sparq.options.units import SECOND
from sparq.program import verbs
from sparq.program.verbs import Verb
from sparq.tools.commands import (
    CLIENT_HELP,
    CLIENT_OPTION,
    LOOKUPD_VARIABLE,
    NSQD_VARIABLE,
    ClusterHttpOptions,
    launch,
)

PROGRAM: Final = "sparq admin"
COMPLETE: Final = "complete"
"""The verb that shell functions call: `sparq admin complete WORDS` completes the last word of a
command line, whose first word is one of sparq's programs."""

FOOT: Final = (
    f"Without an address, the environment variable {LOOKUPD_VARIABLE} or {NSQD_VARIABLE} is used.\n"
)

STATES: Final = ("waiting", "in_flight", "deferred", "finished")
FORMATS: Final = ("jsonl", "csv")
STATE: Final = choice("", *STATES)


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
    format: str = option("jsonl", "output format: jsonl or csv", kind=choice(*FORMATS))
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
class FromNsqadminOptions(AdminOptions):
    """Flags of verbs that ask nsqadmin; `dismiss` has no others."""

    nsqadmin_http_address: str = option("127.0.0.1:4171", "nsqadmin to ask: host:port or URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(FromNsqadminOptions):
    """Flags of `audit`."""

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
        (), CLIENT_HELP.replace("client option", "option of the reading client"), kind=CLIENT_OPTION
    )


WITHOUT_CLUSTER: Final = ("audit", "dismiss", "completion")
IDS: Final = "TOPIC CHANNEL ID...|-"
EVERYWHERE: Final = "at all nsqds that have it"
STAYS: Final = (
    "1.5 s later, the nsqds are asked whether they have it again; if one has, the clients attached"
    " to it there are named, and the exit status is 1."
)
VERBS: Final = {
    "list": Verb(
        "[TOPIC [CHANNEL]]",
        "list topics, channels of a topic, nsqds of a channel",
        ListOptions,
        about="Lists all topics; with a topic its channels; with a channel its figures at each"
        " nsqd. Figures are sums over the nsqds that answered.",
        examples=("list", "list clicks archive --json", "list --nodes"),
        work="listing.list_them",
    ),
    "pause": Verb(
        "TOPIC [CHANNEL]",
        "stop deliveries",
        ChangeOptions,
        about=f"Stops deliveries of a channel, or of a topic to its channels, {EVERYWHERE}."
        " Publishes are still accepted.",
        examples=("pause clicks archive",),
        work="changes.change",
    ),
    "unpause": Verb(
        "TOPIC [CHANNEL]",
        "resume deliveries",
        ChangeOptions,
        about=f"Resumes the deliveries that `pause` stopped, {EVERYWHERE}.",
        examples=("unpause clicks archive",),
        work="changes.change",
    ),
    "empty": Verb(
        "TOPIC [CHANNEL]",
        "drop its messages",
        DangerOptions,
        about="Drops the messages of a channel, or of a topic that has no channel yet,"
        f" {EVERYWHERE}.",
        examples=("empty clicks archive --dry-run", "empty clicks archive --yes"),
        work="changes.change",
    ),
    "delete": Verb(
        "TOPIC [CHANNEL]",
        "delete it and its messages",
        DangerOptions,
        about=f"Deletes a topic or channel with its messages {EVERYWHERE}. {STAYS}",
        examples=("delete clicks", "delete clicks archive --yes"),
        work="changes.change",
    ),
    "create": Verb(
        "TOPIC [CHANNEL]",
        "create it",
        ChangeOptions,
        about="Creates a topic or channel at the nsqlookupds, and a channel also at the nsqds that"
        " have the topic. Without nsqlookupds, creates it at the nsqds.",
        examples=("create clicks archive",),
        work="changes.change",
    ),
    "tombstone": Verb(
        "TOPIC NODE",
        "hide an nsqd from a topic's consumers, delete the topic there",
        DangerOptions,
        about="Hides an nsqd (its HTTP address) from a topic's consumers at the nsqlookupds, and"
        f" deletes the topic there with its messages. {STAYS}",
        examples=("tombstone clicks nsqd-1.example:4151",),
        work="changes.change",
    ),
    "drain": Verb(
        "NODE",
        "refuse publishes at an nsqd, and wait until it is empty",
        DrainOptions,
        about="Makes an nsqd refuse publishes, and waits until its consumers have finished its"
        " messages. The drain goes on if this is interrupted: --undo ends it.",
        examples=("drain nsqd-1.example:4151 --exit", "drain nsqd-1.example:4151 --undo"),
        work="changes.drain",
    ),
    "move": Verb(
        "topic NAME",
        "move a topic from one nsqd to another",
        MoveOptions,
        about="Moves a topic with its channels and their unfinished messages from one nsqd to"
        " another, then deletes it at the source. After an interruption, the same command"
        f" continues. {STAYS}",
        examples=("move topic clicks --from=nsqd-1.example:4151 --to=nsqd-2.example:4151",),
        work="moving.move",
    ),
    "seek": Verb(
        "TOPIC CHANNEL PLACE",
        "move a channel: earliest, latest, -1h, 2026-01-31T08:00, last:100",
        DangerOptions,
        about="Moves a channel in the log: messages are delivered again, or skipped. The place is"
        " earliest, latest, -1h, 2026-01-31T08:00 or last:100.",
        examples=("seek clicks archive -1h --dry-run", "seek clicks archive earliest"),
        work="changes.seek",
    ),
    "peek": Verb(
        "TOPIC [CHANNEL]",
        "show messages without consuming them",
        PeekOptions,
        about="Shows the messages of a channel, or the newest of a topic. They are not consumed,"
        " and their attempts stay as they are.",
        examples=("peek clicks", "peek clicks archive --state=in_flight"),
        work="messages.peek",
    ),
    "find": Verb(
        "TOPIC [CHANNEL]",
        "search for messages",
        FindOptions,
        about="Searches the messages of all nsqds that have the topic.",
        examples=("find clicks --text=error --from=-1h", "find clicks archive --attempts='>=3'"),
        work="messages.find",
    ),
    "export": Verb(
        "TOPIC [CHANNEL]",
        "write messages to a file",
        ExportOptions,
        about="Writes the selected messages of all nsqds as JSON lines or CSV, sorted by time.",
        examples=("export clicks --output=clicks.jsonl", "export clicks archive --format=csv"),
        work="messages.export",
    ),
    "requeue": Verb(
        IDS,
        "deliver messages again now",
        ChangeOptions,
        about="Delivers messages again now, whatever their state in the channel is.",
        examples=(
            "requeue clicks archive 0a1b2c3d4e5f6071",
            "find clicks archive --state=deferred --ids | sparq admin requeue clicks archive -",
        ),
        work="messages.act",
    ),
    "finish": Verb(
        IDS,
        "finish messages without delivering them",
        DangerOptions,
        about="Finishes messages of a channel, which then does not deliver them.",
        examples=("finish clicks archive 0a1b2c3d4e5f6071 --yes",),
        work="messages.act",
    ),
    "cancel": Verb(
        IDS,
        "drop deferred messages",
        DangerOptions,
        about="Drops messages of a channel that are deferred.",
        examples=("cancel clicks archive 0a1b2c3d4e5f6071 --yes",),
        work="messages.act",
    ),
    "copy": Verb(
        "TOPIC ID...|-",
        "publish messages again to the topic --to",
        CopyOptions,
        about="Publishes messages again, to another topic: all of its channels get them.",
        examples=("copy clicks 0a1b2c3d4e5f6071 --to=clicks.test",),
        work="messages.act",
    ),
    "redrive": Verb(
        "TOPIC [CHANNEL [ID...|-]]",
        "send dead letters that wait in a channel (default: redrive) back to where they came from",
        RedriveOptions,
        about="Sends dead letters back to the topic and channel that they came from: all that wait"
        " in a channel of the dead-letter topic (default: redrive), or those with these ids.",
        examples=("redrive clicks.dead --dry-run", "redrive clicks.dead --rate=100"),
        work="messages.redrive",
    ),
    "policies": Verb(
        "[show TOPIC [CHANNEL]|export|apply FILE|-|drop]",
        "show or change settings of topics and channels by pattern",
        DangerOptions,
        about="Lists the policies; shows the settings in force for a topic or channel; writes the"
        " policies as TOML; replaces or drops those that were set at run time.",
        examples=("policies show clicks archive", "policies apply policies.toml --dry-run"),
        work="policies.policies",
    ),
    "audit": Verb(
        "",
        "list actions taken through nsqadmin",
        AuditOptions,
        about="Lists the actions in nsqadmin's audit log, newest first. --token is then one of"
        " nsqadmin's tokens.",
        examples=("audit --user=ann --topic=clicks",),
        work="listing.audit",
    ),
    "dismiss": Verb(
        "NODE",
        "have nsqadmin no longer show an nsqd that is gone",
        FromNsqadminOptions,
        about="Has nsqadmin no longer show an nsqd (its HTTP address) that is gone, until it"
        " answers again. --token is then one of nsqadmin's tokens.",
        examples=("dismiss nsqd-1.example:4151",),
        work="listing.dismiss",
    ),
    "completion": Verb(
        "bash|zsh|fish",
        "print a shell script that completes words of all programs",
        AdminOptions,
        about="Prints a script that completes the words and flags of all programs, and the names"
        " of topics, channels and nodes, in a shell.",
        examples=("completion bash > /etc/bash_completion.d/sparq",),
        work="completion.completion",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return the exit status.

    Raises:
        SystemExit: 0 after `--help` and `--version`, 1 for a mistake.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [COMPLETE]:
        return int(import_module("sparq.tools.admin.completion").start(words[1:]))
    request = verbs.read(PROGRAM, VERBS, words, AdminOptions, FOOT)
    return launch(f"{PROGRAM} {request.verb}", "sparq.tools.admin.job", request)
