"""The books of the suspects: one finding a visitor and reason, whatever the order of things."""

import random

import pyarrow as pa

from sparq.pipeline import findings
from sparq.pipeline.findings import CLICK_SCHEMA, FindingBooks
from sparq.pipeline.visits import (
    BARE,
    BURST,
    DECLARED,
    PAGE,
    RESOURCE,
    UNDECLARED,
    VISIT_GAP_S,
)

START = 1_000_000


def click(second, *, who="u", kind=PAGE, page=None, robot=None):
    return {
        "visitor": who,
        "address": f"address of {who}",
        "user_agent": f"agent of {who}",
        "robot": robot,
        "second": START + second,
        "kind": kind,
        "page": page or f"/{second}",
        "id": f"{second:08x}{abs(hash((who, kind))) % 2**32:08x}",
    }


def apply(books, batch, rows, newest):
    table = pa.Table.from_pylist(rows, CLICK_SCHEMA)
    told = books.apply(batch, table, {name: START + second for name, second in newest.items()})
    return said(told)


def said(told):
    return [
        (row["visitor"], row["reason"], row["revision"], row["amount"]) for row in told.to_pylist()
    ]


def test_a_finding_is_told_when_it_has_doubled_and_at_the_end():
    """Not with every click of a robot."""
    books = FindingBooks()
    told = [apply(books, batch, [click(batch, robot="bot")], {"a": batch}) for batch in range(7)]

    assert [one[0][2:] for one in told if one] == [(1, 1), (2, 2), (3, 4)]
    assert said(books.close()) == [("u", DECLARED, 4, 7)]
    assert said(books.close()) == []


def test_no_visit_is_judged_before_the_slower_nsqd_is_past_it():
    """The stylesheet that clears a visitor may lie on the nsqd that lags."""
    bare = [click(second) for second in range(0, 700, 100)]
    books = FindingBooks()
    apply(books, 0, [*bare, click(0, who="other")], {"a": 700, "b": 0})
    for batch in (1, 2, 3):
        assert apply(books, batch, [], {"a": 10_000 * batch}) == []
    late = click(50, kind=RESOURCE)

    assert apply(books, 4, [late], {"b": 700}) == []
    assert apply(books, 5, [], {"b": 20_000}) == []
    assert said(books.close()) == []


def test_a_visit_that_is_over_is_judged_and_forgotten():
    """Once the watermark lies half an hour behind its last click."""
    books = FindingBooks()
    rows = [click(second) for second in range(0, 700, 100)]

    assert apply(books, 0, rows, {"a": 600}) == []
    assert apply(books, 1, [click(600 + VISIT_GAP_S - 1, who="v")], {"a": 599 + VISIT_GAP_S}) == []
    assert apply(books, 2, [], {"a": 600 + VISIT_GAP_S}) == [("u", BARE, 1, 7)]
    assert set(books.tables()["clicks"]["visitor"].to_pylist()) == {"v"}


def test_a_burst_is_told_at_once():
    """More clicks can only confirm it."""
    rows = [click(at % 5, page=f"/{at}") for at in range(40)]

    assert ("u", BURST, 1, 40) in apply(FindingBooks(), 0, rows, {"a": 0})


def test_declared_robots_are_not_asked_for_resources():
    """They have said what they are."""
    books = FindingBooks()
    apply(books, 0, [click(second, robot="bot") for second in range(0, 3000, 100)], {"a": 3000})

    assert {reason for _, reason, *_ in said(books.close())} <= {DECLARED}
    assert books.counts()[BARE] == books.counts()[UNDECLARED] == 0


def day():
    """Clicks of a day, by time: robots, people, a flood, bare visits."""
    rng = random.Random(4)
    rows = []
    for number in range(60):
        who, at = f"v{number}", rng.randrange(0, 80_000)
        bare, robot = number % 3 == 0, "bot" if number % 7 == 0 else None
        for _ in range(rng.randrange(1, 30)):
            at += rng.randrange(1, 200) if number % 11 else 0
            rows.append(click(at, who=who, page=f"/{rng.randrange(9)}", robot=robot))
            if not bare:
                rows.append(click(at, who=who, kind=RESOURCE, robot=robot))
    return sorted(rows, key=lambda row: row["second"])


def final(batches):
    """Reason and amount of each finding after these batches of (nsqd, rows)."""
    books = FindingBooks()
    for batch, parts in enumerate(batches):
        newest = {name: max(r["second"] for r in rows) - START for name, rows in parts if rows}
        apply(books, batch, [row for _, rows in parts for row in rows], newest)
        books = FindingBooks(books.tables(), books.books())  # as after a restart
    books.close()
    table = books.tables()["findings"]
    return {(row["visitor"], row["reason"], row["amount"]) for row in table.to_pylist()}


def test_findings_do_not_depend_on_batches_nor_on_lag():
    """Batches of any size, restarts between all of them, one nsqd three batches behind."""
    rows = day()
    expected = final([[("a", rows)]])
    halves = rows[::2], rows[1::2]
    steps = [[half[at : at + 50] for at in range(0, len(half), 50)] for half in halves]
    lagging = [[], [], [], *steps[1]]
    first = [[row for row in rows[:20]]]
    behind = [
        [("a", one), ("b", other)]
        for one, other in zip(
            [*steps[0], *[[]] * (len(lagging) - len(steps[0]))], lagging, strict=True
        )
    ]
    # Both nsqds have been heard of before one falls behind.
    behind[0] = [("a", steps[0][0]), ("b", steps[1][0][:1])]
    steps[1][0].pop(0)

    assert first
    assert len({reason for _, reason, _ in expected}) >= 3
    assert final([[("a", rows[at : at + 37])] for at in range(0, len(rows), 37)]) == expected
    assert final(behind) == expected


def test_memory_is_bounded(monkeypatch):
    """The oldest clicks and findings go first."""
    monkeypatch.setattr(findings, "CLICKS_MAX", 50)
    monkeypatch.setattr(findings, "FINDINGS_MAX", 20)
    books = FindingBooks()
    for batch in range(10):
        rows = [click(batch * 10 + n, who=f"{batch}-{n}", robot="bot") for n in range(10)]
        apply(books, batch, rows, {"a": 0})

    assert books.tables()["clicks"].num_rows <= 50
    assert books.tables()["findings"].num_rows <= 20
