"""Run a verb of `sparq admin`: its words and flags, the cluster, standard output, what to do next.

Results go to standard output, as a table or as JSON; errors go to stderr in both forms. Everything
that came from a daemon passes through `table` or JSON before it reaches a terminal.

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
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from sparq.cluster.actions import IS_BACK
from sparq.cluster.figures import ChannelFigures, TopicFigures
from sparq.cluster.fleet import Fleet, Gathered, Node
from sparq.options.declare import flags_of
from sparq.options.mistakes import suggestion
from sparq.program.verbs import ParsedCommand
from sparq.protocol.names import is_valid_name, one_line, quote
from sparq.tools.admin.verbs import PROGRAM
from sparq.tools.cluster import fleet_of
from sparq.tools.commands import IN_ENVIRONMENT, ToolError, UsageError
from sparq.tools.common import unless_stopped
from sparq.tools.terminal import STDIN, STDOUT, PipeOutput
from sparq.tools.view import table

FUNCTIONS: Final = {
    "list": "listing.list_them",
    "seek": "changes.seek",
    "move": "moving.move",
    "drain": "changes.drain",
    "peek": "messages.peek",
    "find": "messages.find",
    "export": "messages.export",
    "audit": "listing.audit",
    "dismiss": "listing.dismiss",
    "policies": "policies.policies",
    "redrive": "messages.redrive",
    "completion": "completion.completion",
    **dict.fromkeys(("requeue", "finish", "cancel", "copy"), "messages.act"),
}
"""The function of each verb; that of the others is `changes.change`."""

WITHOUT_CLUSTER: Final = ("audit", "dismiss", "completion")

TYPED_BYTES_MAX: Final = 1024
ADDRESSES: Final = ("lookupd-http-address", "nsqd-http-address", "expect-nodes", "output")
"""Flags that do not apply to a single nsqd, or must not be given twice."""

NOT_THERE: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
"""Codes of a daemon that has nothing to change: that is not a failure."""

NO_ROUTE: Final = "it does not support this: Go's nsqd, or an older version (404 NOT_FOUND)"
"""The reason reported for an nsqd that does not know the path."""

_RESPONSE: Final = re.compile(r'got response (\d{3}) ([^"]*?) ("(?:[^"\\]|\\.)*")')
"""How `cluster.upstream` describes an answer with another status than 200."""

UNREACHABLE: Final = (
    *("refused", "no answer in time", "unreachable", "reset", "disconnected", "timed out"),
    *("no route", "not known", "no address", "not resolve"),
)


def has_nothing(reason: str) -> bool:
    """Whether the daemon reports that it has no such topic or channel."""
    return any(code in reason for code in NOT_THERE)


def known(errors: Mapping[str, str]) -> dict[str, str]:
    """Return the errors in words, without those of daemons that only do not have it."""
    return {address: in_words(why) for address, why in errors.items() if not has_nothing(why)}


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


def result_of(is_done: bool, is_failed: bool) -> str:
    """Return the word for an outcome: something was done; something failed."""
    return "failed" if not is_done else "partly" if is_failed else "done"


def _is_unreachable(reason: str) -> bool:
    """Whether the only thing known about the daemon is that it did not answer."""
    return any(words in reason.lower() for words in UNREACHABLE)


@dataclass(slots=True)
class Job:
    """One run of `sparq admin`.

    Attributes:
        verb: the verb of the command line, such as `pause`.
        words: the words after the verb.
        options: the verb's flags.
        fleet: the cluster.
        output: where results go; errors go to stderr.
        errors: the reason for each daemon that did not answer, by address.
    """

    verb: str
    words: tuple[str, ...]
    options: Any
    fleet: Fleet
    output: PipeOutput
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The first word; "" if there is none."""
        return (*self.words, "")[0]

    @property
    def channel(self) -> str:
        """The second word; "" if there is none."""
        return (*self.words, "", "")[1]

    @property
    def what(self) -> str:
        """`topic clicks`, or `channel archive of topic clicks`."""
        return f"{f'channel {self.channel} of ' if self.channel else ''}topic {self.topic}"

    def check_names(self) -> None:
        """Check that topic and channel are names that NSQ allows.

        Raises:
            UsageError: one is not.
        """
        check_name("topic", self.topic)
        if self.channel and self.verb != "tombstone":
            check_name("channel", self.channel)

    async def no_such_node(self, address: str, which: str) -> ToolError:
        """Return the error for an address that names no nsqd, with the nsqds that are known."""
        nodes = await self.fleet.nodes()
        names = ", ".join(node.address for node in nodes.value[:10]) or "none"
        return ToolError(f"{quote(address)} is not an nsqd {which}; known: {names}")

    # Output

    async def say(self, *lines: str) -> None:
        """Write lines to standard output."""
        await self.output.write("".join(f"{line}\n" for line in lines).encode())

    async def say_json(self, document: Any) -> None:
        """Write a JSON document to standard output."""
        await self.say(json.dumps(document, ensure_ascii=False))

    async def show(
        self, headings: Sequence[str], rows: Iterable[Mapping[str, Any]], texts: int
    ) -> None:
        """Write rows as a table, or together with the errors as one JSON document.

        Args:
            headings: the keys of the rows in order, as in JSON.
            rows: the cells by key.
            texts: the number of leading text columns.
        """
        rows = list(rows)
        if self.options.json:
            await self.say_json({"rows": rows, "errors": self.errors})
        else:
            await self.say(*table(headings, rows, texts))

    def warn(self, text: str) -> None:
        """Write a line to stderr."""
        sys.stderr.write(f"{PROGRAM} {self.verb}: {text}\n")

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
        keys = STDIN
        # A name read from a pipe would confirm nothing: a script must say `--yes`.
        if not keys.is_terminal:
            raise ToolError(
                f"{sentence}: not confirmed, nothing was done; use --yes to run it or --dry-run to"
                " preview it"
            )
        sys.stderr.write(f"{sentence}.\nType {name} to confirm: ")
        sys.stderr.flush()
        typed = b""
        while b"\n" not in typed and len(typed) < TYPED_BYTES_MAX and (read := await keys.read()):
            typed += read
        if typed.decode("utf-8", "replace").strip() != name:
            raise ToolError("the name does not match: nothing was done")

    # What to do next

    def next_steps(
        self, errors: Mapping[str, str], *, hint: str = "", words: Sequence[str] | None = None
    ) -> list[str]:
        """Return what to do next, line by line; empty if there are no errors.

        Args:
            errors: why each daemon did not do its part, by address.
            hint: what else to know about an nsqd that is started again.
            words: the words of the command to repeat; None: those of the job.
        """
        lookupds = set(self.fleet.lookupds)
        advised: dict[tuple[str, str], list[str]] = {}
        for address, reason in errors.items():
            kind = "nsqlookupd" if address in lookupds else "nsqd"
            advised.setdefault((kind, _advice(kind, reason)), []).append(address)
        lines = []
        for (kind, advice), addresses in advised.items():
            lines.append(f"{kind} {', '.join(addresses)}: {advice}")
            if kind == "nsqd" and advice.endswith(":"):
                lines.append(f"  {self._again_at(addresses, words)}")
        if hint and any(_is_unreachable(why) for at, why in errors.items() if at not in lookupds):
            lines.append(hint)
        return lines

    def _again_at(self, addresses: Iterable[str], words: Sequence[str] | None) -> str:
        """Return the command line that does the same at these nsqds; it does not repeat a token."""
        options = self.options
        parts = [*PROGRAM.split(), self.verb, *(self.words if words is None else words)]
        for flag in flags_of(type(options)):
            value = getattr(options, flag.field)
            if flag.name in ADDRESSES or value == flag.default:
                continue
            if flag.name == "token":
                parts.append("--token=@FILE")
            elif value is True:
                parts.append(f"--{flag.name}")
            else:
                shown = value if isinstance(value, str) else flag.kind.show(value)
                parts.append(f"--{flag.name}={shown}")
        parts += [f"--nsqd-http-address={address}" for address in addresses]
        return " ".join(map(shlex.quote, parts)).replace("'--token=@FILE'", "--token=@FILE")

    async def report(
        self,
        document: Mapping[str, Any],
        lines: Iterable[str],
        errors: Mapping[str, str],
        *,
        hint: str | None = None,
        words: Sequence[str] | None = None,
    ) -> None:
        """Write an outcome to standard output, with the errors, and what to do next.

        Args:
            document: the outcome for JSON.
            lines: the outcome for a person; with a hint they have the errors already.
            errors: why each daemon did not do its part, by address.
            hint, words: see `next_steps`.
        """
        steps = self.next_steps(errors, hint=hint or "", words=words)
        if self.options.json:
            await self.say_json({**document, "errors": errors, "next": steps})
            return
        wrong = lines_of(errors) if hint is None else []
        steps = ["", "next steps:", *(f"  {step}" for step in steps)] if steps else []
        await self.say(*lines, *wrong, *steps)

    def warn_of_errors(self) -> int:
        """Write to stderr which daemons did not answer and what to do next; return the status."""
        for line in lines_of(self.errors):
            self.warn(line)
        if self.errors:
            self.warn("their data is not shown; next steps:")
        for step in self.next_steps(self.errors):
            self.warn(f"  {step}")
        return int(bool(self.errors))


def check_name(kind: str, name: str) -> None:
    """Raise UsageError if NSQ does not allow a name."""
    if not is_valid_name(name):
        raise UsageError(f"{quote(name)} is not a valid {kind} name")


def _advice(kind: str, reason: str) -> str:
    if reason.startswith(IS_BACK):
        return "stop these clients, or have them use another topic; then run this again there:"
    if _is_unreachable(reason):
        return f"start the {kind}, or find out why it cannot be reached; then run this again there:"
    if "401" in reason:
        return "it requires a token: run this again with its --token=@FILE:"
    if "403" in reason:
        return "the token needs another role (docs/access.md): run this again with such a token:"
    if in_words(reason) == NO_ROUTE:
        return "use sparq's nsqd there, or do without its data"
    if "503" in reason:
        return "its disk or its state prevents this: check GET /ping there, then run this again:"
    return "see its log, then run this again there:"


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


async def survey(fleet: Fleet, topic: str, channel: str = "") -> Survey:
    """Find out which nsqds have a topic, or a channel of it.

    Raises:
        ToolError: no daemon answered, or none has the topic.
    """
    producers = await producers_of(fleet, topic)
    stats = await fleet.stats(topic, channel, nodes=producers.value)
    having = {
        address: figures
        for address, each in stats.value.items()
        if (figures := each.channel(topic, channel) if channel else each.topic(topic)) is not None
    }
    nodes = {node.address: node for node in producers.value}
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


# Running a verb


async def serve(request: ParsedCommand, stop: asyncio.Event, output: PipeOutput = STDOUT) -> int:
    """Run the verb until it is done or the event is set; return the exit status.

    Raises:
        UsageError, ToolError: nothing was done.
    """
    module, function = FUNCTIONS.get(request.verb, "changes.change").split(".")
    act: Callable[[Job], Awaitable[int]] = getattr(
        import_module(f"sparq.tools.admin.{module}"), function
    )
    options = request.options
    nsqds, lookupds = options.nsqd_http_addresses, options.lookupd_http_addresses
    if request.verb not in WITHOUT_CLUSTER:
        if not any(nsqds) and not any(lookupds):
            raise UsageError(
                f"--lookupd-http-address or --nsqd-http-address required {IN_ENVIRONMENT}"
            )
        if any(nsqds) and any(lookupds):
            raise UsageError("use --lookupd-http-address or --nsqd-http-address, not both")
    async with fleet_of(options) as fleet:
        job = Job(request.verb, request.words, options, fleet, output)
        status = await unless_stopped(act(job), stop)
        if status is None:
            raise ToolError("stopped by a signal: some daemons may already have done their part")
        expected = 0 if request.verb in WITHOUT_CLUSTER else options.expect_nodes
        if not expected:
            return status
        found = await fleet.nodes()
        answered = [node.address for node in found.value if node.address not in found.errors]
        if len(answered) >= expected:
            return status
        names = ", ".join(answered) or "none"
        job.warn(
            f"found {len(answered)} of {expected} expected nsqds ({names}): start the others, then"
            " run this again"
        )
        return 1
