"""What a verb has to work with: its words and flags, the cluster, and standard output.

Results go to standard output, as a table or as JSON; what is wrong goes to stderr in both forms.
Everything that came from a daemon passes `table` or JSON before a terminal sees it.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.cluster.fleet import Fleet
from sparq.program.flags import flags_of
from sparq.tools.admin.table import table
from sparq.tools.commands.admin import PROGRAM, Request
from sparq.tools.pipes import Output

ADDRESSES: Final = ("lookupd-http-address", "nsqd-http-address", "expect-nodes", "output")
"""Flags that do not hold for one nsqd alone, or must not be given twice."""


@dataclass(slots=True)
class Job:
    """One call of `sparq admin`.

    Attributes:
        request: the verb, its words and its flags.
        fleet: the cluster.
        output: where results go; what is wrong goes to stderr.
        errors: daemons that did not answer, and why.
    """

    request: Request
    fleet: Fleet
    output: Output
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        """The verb."""
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
        """The first word; "" where there is none."""
        return self.words[0] if self.words else ""

    @property
    def channel(self) -> str:
        """The second word; "" where there is none."""
        return self.words[1] if len(self.words) > 1 else ""

    @property
    def what(self) -> str:
        """`topic clicks`, or `channel archive of topic clicks`."""
        return (
            f"channel {self.channel} of topic {self.topic}"
            if self.channel
            else (f"topic {self.topic}")
        )

    async def say(self, *lines: str) -> None:
        """Write lines to standard output."""
        await self.output.write("".join(f"{line}\n" for line in lines).encode())

    async def say_json(self, document: Any) -> None:
        """Write a document to standard output."""
        await self.say(json.dumps(document, ensure_ascii=False))

    async def show(
        self, headings: Sequence[str], rows: Iterable[Mapping[str, Any]], texts: int
    ) -> None:
        """Write rows as a table, or as one document with the errors.

        Args:
            headings: the keys of the rows in their order, as in JSON.
            rows: the cells by key.
            texts: how many of the first columns hold text.
        """
        rows = list(rows)
        if self.options.json:
            await self.say_json({"rows": rows, "errors": self.errors})
        else:
            await self.say(*table(headings, rows, texts))

    def warn(self, text: str) -> None:
        """Write a line to stderr."""
        sys.stderr.write(f"{PROGRAM} {self.verb}: {text}\n")

    def again_at(self, address: str, *, words: Sequence[str] | None = None) -> str:
        """The command line that does the same at one nsqd; a token is not repeated."""
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
        parts.append(f"--nsqd-http-address={address}")
        return " ".join(map(shlex.quote, parts)).replace("'--token=@FILE'", "--token=@FILE")
