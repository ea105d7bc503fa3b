"""What a topic has come to since the broker last looked: lists, taken at the turn's end.

A topic calls nobody above it. What its commands and works make possible for others stands here, and
`Broker.end_turn` does each thing once.
"""

from __future__ import annotations

from typing import NamedTuple

from sparq.broker.books import Ended
from sparq.broker.publishing import Answered
from sparq.log.disk import DiskError
from sparq.log.task import Work

Change = tuple[str, str, str | None]
"""("created" | "deleted", topic, channel or None)."""


class Failure(NamedTuple):
    """The disk has refused something: a note for the operator, and the reason."""

    note: str
    error: DiskError


class Outcome:
    """What one topic has come to.

    Attributes:
        works: disk work to hand out.
        answers: publishes that are kept or refused.
        replies: who has waited for the ledger, and why it cannot be written; None: it is.
        changes: channels that have come or gone.
        notes: what an operator should read.
        failures: what the disk has refused.
        has_recovered: whether the disk has taken something.
        journals_ended: commits have shown that nothing is added to journals up to this number.
    """

    __slots__ = (
        "answers",
        "changes",
        "failures",
        "has_recovered",
        "journals_ended",
        "notes",
        "replies",
        "works",
    )

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.answers: list[Answered] = []
        self.replies: Ended = []
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.failures: list[Failure] = []
        self.has_recovered = False
        self.journals_ended = 0

    def fail(self, note: str, error: DiskError) -> None:
        """The disk has refused something."""
        self.failures.append(Failure(note, error))
