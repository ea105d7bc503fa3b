"""Run a verb of `sparq admin`: the cluster, what is printed, and what to do next.

Results go to standard output: the lines of a document, or with `--json` the document. Errors of
verbs that only read go to stderr; errors of changes are part of the result. Everything that came
from a daemon passes through `table` or JSON before it reaches a terminal.

For each daemon that did not do its part, a sentence and a command say what to do next. Reasons are
those of `sparq.cluster`: the operating system's text about a connection, or the daemon's answer
with its code. A daemon that only reports that it has no such topic or channel has nothing to do.

A signal stops the verb with status 1; daemons that already got the request may have executed it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from sparq.cluster.actions import IS_BACK, Report
from sparq.cluster.figures import ChannelFigures, TopicFigures
from sparq.cluster.fleet import Fleet, Gathered, Node, UnknownNode
from sparq.options.declare import Flag
from sparq.options.mistakes import suggestion
from sparq.program.verbs import ParsedCommand
from sparq.protocol.names import is_valid_name, one_line, quote
from sparq.tools.admin.verbs import PROGRAM, VERBS, WITHOUT_CLUSTER
from sparq.tools.cluster import fleet_of
from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import unless_stopped
from sparq.tools.terminal import STDIN, STDOUT, Pipe

TYPED_BYTES_MAX: Final = 1024
NOT_REPEATED: Final = ("lookupd-http-address", "nsqd-http-address", "expect-nodes", "output")
"""Flags that do not apply to a single nsqd, or must not be given twice."""

NOT_THERE: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "MESSAGE_NOT_FOUND")
"""Codes of a daemon that has nothing to show or to change: that is not a failure."""

NO_ROUTE: Final = "it does not support this: Go's nsqd, or an older version (404 NOT_FOUND)"
"""The reason reported for an nsqd that does not know the path."""

_RESPONSE: Final = re.compile(r'got response (\d{3}) ([^"]*?) ("(?:[^"\\]|\\.)*")')
"""How `cluster.upstream` describes an answer with another status than 200."""

UNREACHABLE: Final = (
    *("refused", "no answer in time", "unreachable", "reset", "disconnected", "timed out"),
    *("no route", "not known", "no address", "not resolve"),
)
ADVICE: Final = (
    (IS_BACK, "stop these clients, or have them use another topic; then run this again there:"),
    ("401", "it requires a token: run this again with its --token=@FILE:"),
    ("403", "the token needs another role (docs/access.md): run this again with such a token:"),
    (NO_ROUTE, "use sparq's nsqd there, or do without its data"),
    ("503", "its disk or its state prevents this: check GET /ping there, then run this again:"),
    ("", "see its log, then run this again there:"),
)
"""What to do about a reason that contains a text; the first one counts."""


def has_nothing(reason: str) -> bool:
    """Whether the daemon reports that it has no such topic, channel or message."""
    return any(code in reason for code in NOT_THERE)


def known(errors: Mapping[str, str]) -> dict[str, str]:
    """Return the errors in words, without those of daemons that only do not have it."""
    return {address: in_words(why) for address, why in errors.items() if not has_nothing(why)}


def failures(report: Report) -> dict[str, str]:
    """Return why each daemon did not do its part; one that has nothing to change did its part."""
    return known(report.warnings) | known({one.address: one.error for one in report.errors})


def in_words(reason: str) -> str:
    """Return a reason on one line: a daemon's error as its message and status, not as its JSON."""

    def response(found: re.Match[str]) -> str:
        status, phrase, shown = found.groups()
        text = json.loads(shown)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = text
        message = answer.get("message") if isinstance(answer, dict) else answer
        message = one_line(message).strip() if isinstance(message, str) else ""
        if status == "404" and message == "NOT_FOUND":
            return NO_ROUTE
        return f"{message or phrase} ({status})"

    return "; ".join(_RESPONSE.sub(response, reason).splitlines())


def lines_of(errors: Mapping[str, str]) -> list[str]:
    """Return a line for each mistake: the daemons that have it, and what it is."""
    found: dict[str, list[str]] = {}
    for address, reason in errors.items():
        found.setdefault(in_words(reason), []).append(address)
    return [f"{', '.join(addresses)}: {reason}" for reason, addresses in found.items()]


def is_unreachable(reason: str) -> bool:
    """Whether the only thing known about the daemon is that it did not answer."""
    return any(words in reason.lower() for words in UNREACHABLE)


def _advice(kind: str, reason: str) -> str:
    if is_unreachable(reason) and not reason.startswith(IS_BACK):
        return f"start the {kind}, or find out why it cannot be reached; then run this again there:"
    return next(advice for text, advice in ADVICE if text in in_words(reason))


class Job:
    """One run of `sparq admin`.

    Attributes:
        request: the command line.
        words: the words after the verb.
        options: the verb's flags.
        fleet: the cluster.
        output: where results go; errors go to stderr.
        topic, channel: the first two words; "" if there are fewer.
        errors: the reason for each daemon that did not answer, by address.
    """

    def __init__(self, request: ParsedCommand, fleet: Fleet, output: Pipe) -> None:
        self.request, self.fleet, self.output = request, fleet, output
        self.words, self.options = request.words, request.options
        self.topic, self.channel, *_ = (*self.words, "", "")
        self.errors: dict[str, str] = {}

    @property
    def what(self) -> str:
        """`topic clicks`, or `channel archive of topic clicks`."""
        return f"{f'channel {self.channel} of ' if self.channel else ''}topic {self.topic}"

    def check_names(self) -> None:
        """Check that topic and channel are names that NSQ allows. Raises UsageError: one is not."""
        for kind, name in (("topic", self.topic), ("channel", self.channel)):
            if (name or kind == "topic") and not is_valid_name(name):
                raise UsageError(f"{quote(name)} is not a valid {kind} name")

    async def no_such_node(self, address: str, which: str) -> ToolError:
        """Return the error for an address that names no nsqd, with the nsqds that are known."""
        nodes = await self.fleet.nodes()
        names = ", ".join(node.address for node in nodes.value[:10]) or "none"
        return ToolError(f"{quote(address)} is not an nsqd {which}; known: {names}")

    # Output

    async def say(self, *lines: str) -> None:
        """Write lines to standard output."""
        await self.output.write("".join(f"{line}\n" for line in lines).encode())

    def warn(self, text: str) -> None:
        """Write a line to stderr."""
        sys.stderr.write(f"{PROGRAM} {self.request.verb}: {text}\n")

    async def show(self, document: Mapping[str, Any], *lines: str) -> int:
        """Print what was found, and which daemons did not answer; return the exit status.

        Args:
            document: what to print with `--json`, without the errors.
            lines: what to print otherwise.
        """
        if self.options.json:
            lines = (json.dumps({**document, "errors": self.errors}, ensure_ascii=False),)
        await self.say(*lines)
        return self.warn_of_errors()

    def warn_of_errors(self) -> int:
        """Write to stderr which daemons did not answer and what to do next; return the status."""
        for line in lines_of(self.errors):
            self.warn(line)
        if self.errors:
            self.warn("their data is not shown; next steps:")
        for step in self._next_steps(self.errors):
            self.warn(f"  {step}")
        return int(bool(self.errors))

    async def report(
        self,
        document: Mapping[str, Any],
        lines: Iterable[str],
        errors: Mapping[str, str],
        *,
        is_done: bool = True,
        is_whole: bool = True,
        hint: str = "",
        words: Sequence[str] | None = None,
    ) -> int:
        """Print the outcome of a change, its errors and what to do next; return the exit status.

        Args:
            document: the outcome, besides what all changes have in common.
            lines: the outcome for a person.
            errors: why each daemon did not do its part, by address.
            is_done: whether anything was done.
            is_whole: whether nothing else is left undone.
            hint: what else to know about an nsqd that is started again.
            words: the words of the command to repeat; None: those of the job.
        """
        steps = self._next_steps(errors, self.words if words is None else words)
        lookupds = self.fleet.lookupds
        if any(is_unreachable(why) for at, why in errors.items() if at not in lookupds) and hint:
            steps.append(hint)
        result = "failed" if not is_done else "partly" if errors or not is_whole else "done"
        whole = {
            **{"verb": self.request.verb, "topic": self.topic, "channel": self.channel},
            **{"dry_run": bool(self.options.dry_run), "result": result},
            **document,
            **{"errors": errors, "next": steps},
        }
        if self.options.json:
            await self.say(json.dumps(whole, ensure_ascii=False))
        else:
            next_steps = ["", "next steps:", *(f"  {step}" for step in steps)] if steps else []
            await self.say(*lines, *lines_of(errors), *next_steps)
        return int(result != "done")

    async def confirm(self, name: str, sentence: str) -> None:
        """Ask for a name to be typed before something is lost; `--yes` skips that.

        Args:
            name: the name to type.
            sentence: what would be lost.

        Raises:
            ToolError: another name was typed, or standard input is not a terminal.
        """
        if self.options.yes:
            return
        # A name read from a pipe would confirm nothing: a script must say `--yes`.
        if not STDIN.is_terminal:
            raise ToolError(
                f"{sentence}: not confirmed, nothing was done; use --yes to run it or --dry-run to"
                " preview it"
            )
        sys.stderr.write(f"{sentence}.\nType {name} to confirm: ")
        sys.stderr.flush()
        typed = b""
        while b"\n" not in typed and len(typed) < TYPED_BYTES_MAX and (read := await STDIN.read()):
            typed += read
        if typed.decode("utf-8", "replace").strip() != name:
            raise ToolError("the name does not match: nothing was done")

    def _next_steps(self, errors: Mapping[str, str], words: Sequence[str] = ()) -> list[str]:
        """Return what to do next, line by line; empty if there are no errors."""
        advised: dict[tuple[str, str], list[str]] = {}
        for address, reason in errors.items():
            kind = "nsqlookupd" if address in self.fleet.lookupds else "nsqd"
            advised.setdefault((kind, _advice(kind, reason)), []).append(address)
        lines = []
        for (kind, advice), addresses in advised.items():
            lines.append(f"{kind} {', '.join(addresses)}: {advice}")
            if kind == "nsqd" and advice.endswith(":"):
                # The command line that does the same there.
                parts = [*PROGRAM.split(), self.request.verb, *(words or self.words)]
                parts += [given_flag(*each) for each in self.request.given]
                parts += [f"--nsqd-http-address={address}" for address in addresses]
                again = " ".join(shlex.quote(part) for part in parts if part)
                lines.append(f"  {again.replace(shlex.quote(TOKEN), TOKEN)}")
        return lines


TOKEN: Final = "--token=@FILE"  # noqa: S105 - no token, but the place of one


def given_flag(flag: Flag, text: str) -> str:
    """Return a flag of the command line for another one; "": it does not belong there."""
    if flag.name in NOT_REPEATED:
        return ""
    # A token is not repeated.
    if flag.name == "token":
        return TOKEN
    return f"--{flag.name}" if text == flag.kind.bare else f"--{flag.name}={text}"


# Which nsqds have a topic or channel


@dataclass(slots=True)
class Survey:
    """The result of asking nsqlookupds and nsqds, before anything is changed.

    Attributes:
        having: the figures of the topic or channel, by the address of its nsqd.
        nodes: the nsqds that have the topic according to nsqlookupd, by address.
        errors: the reason for each daemon that did not answer, by address.
    """

    having: Mapping[str, TopicFigures | ChannelFigures]
    nodes: dict[str, Node]
    errors: dict[str, str]


async def survey(fleet: Fleet, topic: str, channel: str = "", at: str = "") -> Survey:
    """Find out which nsqds have a topic, or a channel of it; with ``at`` only about this nsqd.

    Raises:
        ToolError: no daemon answered, or none has the topic.
        UnknownNode: the nsqd ``at`` is not among those that have the topic.
    """
    producers = await producers_of(fleet, topic)
    nodes = {node.address: node for node in producers.value if at in ("", node.address)}
    if at and not nodes:
        raise UnknownNode(at)
    stats = await fleet.stats(topic, channel, nodes=[*nodes.values()])
    having = {
        address: figures
        for address, each in stats.value.items()
        if (figures := each.channel(topic, channel) if channel else each.topic(topic)) is not None
    }
    return Survey(having, nodes, known(producers.errors) | known(stats.errors))


async def producers_of(fleet: Fleet, topic: str) -> Gathered[list[Node]]:
    """Return the nsqds that have a topic. Raises ToolError: no daemon answered, or none has it."""
    producers = await fleet.producers(topic)
    if not producers.failed:
        return producers
    asked = producers.asked
    if known(producers.errors) or not producers.errors:
        text = "; ".join(lines_of(producers.errors)) or "none is known"
        raise ToolError(f"no {asked} answered ({text}): start one, or name another")
    names = (await fleet.topics()).value
    raise ToolError(f"no {asked} knows the topic {topic}{suggestion(topic, names)}")


async def serve(request: ParsedCommand, stop: asyncio.Event, output: Pipe = STDOUT) -> int:
    """Run the verb until it is done or the event is set; return the exit status.

    Raises:
        UsageError, ToolError: nothing was done.
    """
    module, name = VERBS[request.verb].work.split(".")
    act: Callable[[Job], Awaitable[int]] = getattr(
        import_module(f"sparq.tools.admin.{module}"), name
    )
    options = request.options
    needs_cluster = request.verb not in WITHOUT_CLUSTER
    async with fleet_of(options, is_required=needs_cluster) as fleet:
        job = Job(request, fleet, output)
        status = await unless_stopped(act(job), stop)
        if status is None:
            raise ToolError("stopped by a signal: some daemons may already have done their part")
        if not needs_cluster or not options.expect_nodes:
            return status
        found = await fleet.nodes()
        answered = [node.address for node in found.value if node.address not in found.errors]
        if len(answered) >= options.expect_nodes:
            return status
        names = ", ".join(answered) or "none"
        job.warn(
            f"found {len(answered)} of {options.expect_nodes} expected nsqds ({names}): start the"
            " others, then run this again"
        )
        return 1
