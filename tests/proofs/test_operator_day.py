"""An operator's day: a short one, and each finding fails the proof."""

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import pytest
from proofs.operator_day import CHANNELS, Findings, prove
from proofs.operator_day_parts.book import Answer, Book, ChannelFigures, Extra, Kind
from proofs.operator_day_parts.figures import Comparison
from proofs.operator_day_parts.intruders import ACTIONS, Attempts
from proofs.operator_day_parts.tables import grid, printed
from proofs.outcome import Plan

from sparq.client import Message
from sparq.nsqd.rights import RIGHTS

NODE, OTHER = "127.0.0.1:1", "127.0.0.1:2"
PLACE = ("t", "c")


@pytest.mark.timeout(300)
def test_a_short_day_has_no_violation() -> None:
    """All steps are done once; nothing comes back, and all figures are the script's own."""
    found = prove(Plan(seed=38, count=5 * len(CHANNELS), control=False))

    assert found.held, found
    assert "handled more often than delivered 0" in found.figures
    assert "unauthorised effects 0, allowed but without effect 0" in found.figures
    assert "came back 0" in found.figures
    assert "own count 0" in found.figures


def test_each_finding_fails_the_proof() -> None:
    """Each kind of violation is one, and so is a day on which nothing was compared."""

    def day(**more: object) -> Findings:
        return Findings(acknowledged=1, figures=Comparison(compared=1), **more)

    assert day().holds
    assert not Findings(acknowledged=1).holds
    assert not Findings(figures=Comparison(compared=1)).holds
    assert not day(twice=["x"]).holds
    assert not day(differing=["x"]).holds
    assert not day(came_back=["x"]).holds
    for name in ("unauthorised", "without_effect"):
        assert not day(attempts=Attempts(1, **{name: ["x"]})).holds
    wrong = Findings(acknowledged=1, figures=Comparison(1, ["x"]))
    assert not wrong.holds
    assert ["x"] == [*wrong.details()]


def test_a_comparison_finds_other_and_missing_figures() -> None:
    """A figure that is another one, or missing, differs; further ones of a row do not matter."""
    found = Comparison()
    found.check("here", {"depth": 1, "messages": 2, "clients": 0}, {"depth": 1, "messages": 3})
    found.check_names("names", ["a", "b"], ["b", "a"])
    found.check_state("here", ["ok", "behind"], {"state": "behind"})
    found.check_lag("here", float("inf"), {"lag_seconds": 0.0})
    found.check_lag("here", time.time() - 20, {"lag_seconds": 21.0})

    assert 7 == found.compared
    assert ["here: messages 3, own count 2", "here: clients missing, own count 0"] == found.wrong
    found.check_state("here", ["ok"], {"state": "stuck"})
    found.check_lag("here", float("inf"), {"lag_seconds": 0.5})
    found.check_lag("here", time.time() - 20, {"lag_seconds": 2.0})
    found.check_lag("here", time.time() - 20, {"lag_seconds": None})
    assert 6 == len(found.wrong)


def test_tables_are_read_as_people_see_them() -> None:
    """A page's first table and a printed one are read by their headings; titles are exact."""
    page = """<table><thead><tr><th><a href="?sort">Topic</a></th><th>Messages</th></tr></thead>
      <tbody><tr><th><a href="/topics/t">t</a> <span>paused</span></th>
      <td title="12,345"><span>12k</span></td></tr></tbody></table>
      <table><tbody><tr><th><a href="/other">other</a></th></tr></tbody></table>"""

    assert {"/topics/t": {"Topic": "tpaused", "Messages": "12,345"}} == grid(page)
    text = "TOPIC  IN FLIGHT  STATE\nt          1,234  stuck, topic paused\n"
    assert [{"TOPIC": "t", "IN FLIGHT": "1,234", "STATE": "stuck, topic paused"}] == printed(text)


def delivery(number: int, attempts: int, kind: Kind = Kind.PLAIN, node: str = NODE) -> Message:
    """A delivery of the message with this number."""
    id_ = b"%016x" % number
    body = b"%d %s" % (number, kind.value)
    responder = SimpleNamespace(address=node)
    return Message(cast(asyncio.Protocol, responder), float("inf"), (0, attempts, id_, body))


def book_with(*kinds: Kind) -> Book:
    """A book with a message of each kind, numbered from 1, published to one node."""
    book = Book([NODE, OTHER])
    book.channels["t"] = ["c"]
    for number, kind in enumerate(kinds, 1):
        book.published("t", number, kind, NODE, deferred=False)
    return book


def test_the_book_counts_answers_and_timeouts() -> None:
    """What waits, what is in flight, deferred, requeued and timed out follows from deliveries."""
    book = book_with(Kind.PLAIN, Kind.AGAIN, Kind.LATE, Kind.HELD, Kind.LATER, Kind.PLAIN)
    answers = (
        (1, 1, Answer.FINISHED),
        *((2, 1, Answer.REQUEUED), (2, 2, Answer.FINISHED)),
        *((3, 1, Answer.NONE), (3, 2, Answer.FINISHED)),
        (4, 1, Answer.NONE),
        (5, 1, Answer.PUT_OFF),
    )
    for number, attempts, answer in answers:
        message = delivery(number, attempts)
        book.answered(PLACE, message, book.delivered(PLACE, message)[0], answer)

    figures = book.figures(NODE)["t"]
    counts = {"depth": 1, "in_flight": 1, "deferred": 1, "requeued": 2, "timed_out": 1}
    expected = ChannelFigures(6, **counts, oldest_at=book.posts["t"][6].at)
    assert (6, 0, expected) == (figures.messages, figures.depth, figures.channels["c"])
    assert {} == book.figures(OTHER)
    assert [] == book.twice
    assert {4, 5, 6} == book.unfinished(PLACE)


def test_the_book_finds_what_is_handled_too_often() -> None:
    """The same attempt twice is one delivery too many, and so is one after the FIN."""
    book = book_with(Kind.AGAIN, Kind.PLAIN)
    for number, attempts, answer in (
        *((1, 1, Answer.REQUEUED), (1, 1, Answer.FINISHED)),
        *((2, 1, Answer.FINISHED), (2, 2, Answer.FINISHED)),
    ):
        message = delivery(number, attempts)
        book.answered(PLACE, message, book.delivered(PLACE, message)[0], answer)

    assert 2 == len(book.twice)
    assert 0 == book.ghosts() == book.finished_twice()
    book.answered(PLACE, delivery(9, 1), 9, Answer.FINISHED)
    assert 1 == book.ghosts()


def test_the_book_keeps_lives_and_extra_messages_apart() -> None:
    """After a restart counters begin at 0; what was published for one channel counts there."""
    book = book_with(Kind.PLAIN, Kind.PLAIN)
    book.channels["t"].append("d")
    book.extras.append(Extra(NODE, 1, "t", "c", 3))
    now = book.figures(NODE)["t"]
    assert (5, 5, 2) == (now.messages, now.channels["c"].messages, now.channels["d"].messages)
    assert (5, 2) == (now.channels["c"].depth, now.channels["d"].depth)

    book.lives[NODE] += 1
    later = book.figures(NODE)["t"]
    assert (0, 0, 5) == (later.messages, later.channels["c"].messages, later.channels["c"].depth)


def test_the_actions_are_routes_of_nsqd() -> None:
    """Each action of the intruders is a route; the roles are from the page, not from the code."""
    routes = {(each.method, each.path.partition("?")[0]) for each in ACTIONS}

    assert {(method, path.replace("/log_level", "/:opt")) for method, path in routes} <= {*RIGHTS}
