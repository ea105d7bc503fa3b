"""The context of a verb: its words and flags, the cluster, and standard output.

Results go to standard output, as a table or as JSON; errors go to stderr in both forms. Everything
that came from a daemon passes through `table` or JSON before it reaches a terminal.

For each daemon that did not do its part, a sentence and a command say what to do next. Reasons are
those of `sparq.cluster`: the operating system's text about a connection, or the daemon's answer
with its code.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster.actions import IS_BACK
from sparq.cluster.fleet import Fleet
from sparq.program.flags import flags_of
from sparq.program.verbs import ParsedCommand
from sparq.protocol.names import is_valid_name, one_line, quote
from sparq.tools.admin.verbs import PROGRAM
from sparq.tools.command_line import ToolError, UsageError
from sparq.tools.pipes import Input, PipeOutput
from sparq.tools.table import table

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


def in_words(reason: str) -> str:
    """Return a reason on one line: a daemon's error as its message and status, not as its JSON."""
    return "; ".join(_RESPONSE.sub(_response_in_words, reason).splitlines())


def _response_in_words(found: re.Match[str]) -> str:
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


def together(errors: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Return each reason once, with the addresses of all daemons that have it."""
    found: dict[str, list[str]] = {}
    for address, reason in errors.items():
        found.setdefault(in_words(reason), []).append(address)
    return [(addresses, reason) for reason, addresses in found.items()]


def lines_of(errors: Mapping[str, str]) -> list[str]:
    """Return a line for each mistake: the daemons that have it, and what it is."""
    return [f"{', '.join(addresses)}: {reason}" for addresses, reason in together(errors)]


def _is_unreachable(reason: str) -> bool:
    """Whether the only thing known about the daemon is that it did not answer."""
    return any(words in reason.lower() for words in UNREACHABLE)


@dataclass(slots=True)
class Job:
    """One run of `sparq admin`.

    Attributes:
        request: the verb, its words and its flags.
        fleet: the cluster.
        output: where results go; errors go to stderr.
        errors: the reason for each daemon that did not answer, by address.
    """

    request: ParsedCommand
    fleet: Fleet
    output: PipeOutput
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        """The verb of the command line, such as `pause`."""
        return self.request.verb

    @property
    def words(self) -> tuple[str, ...]:
        """The words after the verb."""
        return self.request.words

    @property
    def options(self) -> Any:
        """The verb's flags."""
        return self.request.options

    @property
    def topic(self) -> str:
        """The first word; "" if there is none."""
        return self.words[0] if self.words else ""

    @property
    def channel(self) -> str:
        """The second word; "" if there is none."""
        return self.words[1] if len(self.words) > 1 else ""

    @property
    def what(self) -> str:
        """`topic clicks`, or `channel archive of topic clicks`."""
        return f"{f'channel {self.channel} of ' if self.channel else ''}topic {self.topic}"

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
        keys = Input()
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

    def warn(self, text: str) -> None:
        """Write a line to stderr."""
        sys.stderr.write(f"{PROGRAM} {self.verb}: {text}\n")

    def again_at(self, *addresses: str, words: Sequence[str] | None = None) -> str:
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
                lines.append(f"  {self.again_at(*addresses, words=words)}")
        if hint and any(_is_unreachable(why) for at, why in errors.items() if at not in lookupds):
            lines.append(hint)
        return lines

    async def say_next_steps(
        self, errors: Mapping[str, str], *, hint: str = "", words: Sequence[str] | None = None
    ) -> None:
        """Write what to do next to standard output, if there are errors."""
        if errors:
            await self.say("", "next steps:")
            await self.say(
                *(f"  {step}" for step in self.next_steps(errors, hint=hint, words=words))
            )

    async def say_errors(
        self, errors: Mapping[str, str], *, words: Sequence[str] | None = None
    ) -> None:
        """Write to standard output which daemons could not be asked, and what to do next."""
        await self.say(*lines_of(errors))
        await self.say_next_steps(errors, words=words)

    def warn_of_errors(self) -> int:
        """Write to stderr which daemons did not answer and what to do next; return the status."""
        for line in lines_of(self.errors):
            self.warn(line)
        if self.errors:
            self.warn("their data is not shown; next steps:")
        for step in self.next_steps(self.errors):
            self.warn(f"  {step}")
        return int(bool(self.errors))

    def check_names(self) -> None:
        """Check that topic and channel are names that NSQ allows.

        Raises:
            UsageError: one is not.
        """
        names = {"topic": self.topic}
        if self.channel and self.verb != "tombstone":
            names["channel"] = self.channel
        for kind, name in names.items():
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
