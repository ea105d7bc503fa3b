"""Makes GUARANTEES.md: each promise with its proofs and their latest results.

`page` is a pure function from results to text. results.json keeps the results of all proofs, each
with the date and commit of its own run, so that one proof can run again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proofs.outcome import Outcome
from proofs.promises import FOREWORD, NOT_PROMISED, PROMISES, Promise

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "proofs" / "results.json"
PAGE = ROOT / "GUARANTEES.md"


@dataclass(frozen=True, slots=True)
class Result:
    """An outcome, with the date and commit of its run."""

    outcome: Outcome
    date: str
    commit: str

    @property
    def state(self) -> str:
        """The outcome in words: holds, FAILED, or skipped with the reason."""
        if self.outcome.skipped:
            return f"skipped: {self.outcome.skipped}"
        return "holds" if self.outcome.held else "**FAILED**"


@dataclass(slots=True)
class Book:
    """The latest results of all proofs.

    Attributes:
        machine: facts about the machine of the last run, by name.
        results: the results, by name of the proof.
    """

    machine: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)


def read() -> Book:
    """Return the book that `write` has stored, or an empty one."""
    if not RESULTS.exists():
        return Book()
    found = json.loads(RESULTS.read_text())
    return Book(found["machine"], {name: parse(row) for name, row in found["results"].items()})


def parse(row: Mapping[str, Any]) -> Result:
    """Return a result from its row in results.json."""
    return Result(parse_outcome(row["outcome"]), row["date"], row["commit"])


def parse_outcome(row: Mapping[str, Any]) -> Outcome:
    """Return an outcome from the JSON that `outcome.run` writes with --json."""
    return Outcome(**{**row, "promises": tuple(row["promises"])})


def write(book: Book) -> None:
    """Store the book in results.json."""
    RESULTS.write_text(json.dumps(asdict(book), indent=1, ensure_ascii=False) + "\n")


def page(book: Book, verbs: Iterable[str]) -> str:
    """Return the text of GUARANTEES.md."""
    parts = [
        "# What sparq guarantees",
        "sparq's promises, each with the latest results of its proofs. `make proofs` writes this "
        "page from `proofs/promises.py` and runs the proofs in the same folder. Each proof shows "
        "the command that repeats it.",
        FOREWORD,
        "## The promises",
        *(section(promise, book) for promise in PROMISES),
        "## Not promised",
        "\n".join(f"- {text}" for text in NOT_PROMISED),
        "## The proofs",
        "A control is the same proof with one safeguard of nsqd switched off. It must find "
        "violations; if it finds none, the proof counts as failed.",
        *(proof(verb, book.results.get(verb)) for verb in verbs),
        "## The machine of the last run",
        "\n".join(f"- {name}: {value}" for name, value in book.machine.items()),
    ]
    return "\n\n".join(parts) + "\n"


def section(promise: Promise, book: Book) -> str:
    """Return a promise, the results of its first proof that has any, and links to the others."""
    lines = [f"**{promise.name} {promise.title}.** {promise.text}", ""]
    known = [verb for verb in promise.proofs if verb in book.results]
    shown = [verb for verb in known if book.results[verb].outcome.figures]
    if shown:
        first = book.results[shown[0]]
        lines += [f"> [`make {shown[0]}`](#{shown[0]}): {first.state}. {first.outcome.figures}", ""]
    others = [verb for verb in promise.proofs if verb not in shown[:1]]
    if others:
        lines.append(("Also " if shown else "") + ", ".join(mention(verb, book) for verb in others))
    return "\n".join(lines).rstrip()


def mention(verb: str, book: Book) -> str:
    """Return a link to a proof, with its state."""
    result = book.results.get(verb)
    return f"[`make {verb}`](#{verb}) ({result.state if result else 'not run yet'})"


def proof(verb: str, result: Result | None) -> str:
    """Return a proof's section: its results, its control and the command that repeats it."""
    return "\n".join([f"### {verb}", "", *proof_lines(result)])


def proof_lines(result: Result | None) -> Iterator[str]:
    if result is None:
        yield "- not run yet"
        return
    outcome = result.outcome
    yield f"- {' '.join(outcome.promises)}: {result.state}"
    if outcome.figures:
        yield f"- {outcome.figures}"
    if outcome.control:
        yield f"- control: {outcome.control}"
    when = f"{result.date}, commit {result.commit}, {outcome.seconds:,.0f} s"
    yield f"- `{outcome.repeat}` ({when})" if outcome.repeat else f"- {when}"
