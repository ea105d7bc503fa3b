"""The checker finds each kind of violation in a history that has only that one."""

from dataclasses import replace

import pytest
from proofs.checker import Verdict, check, lost_commands, total
from proofs.history import ChannelHistory, Command, History, Outcome

CHANNEL = "live"


def key(number: int, publisher: int = 0) -> int:
    return publisher << 32 | number


def history(*events: int, finished: tuple[int, ...] = ()) -> History:
    """Publisher 0: PUB 0 OK, MPUB 1-3 OK, PUB 4 refused, MPUB 5-6 unknown; 1: PUB 0 OK."""
    channel = ChannelHistory()
    for event in events:
        channel.delivered(event)
    channel.finished(list(finished))
    commands = [
        Command(0, 1, Outcome.OK),
        Command(1, 3, Outcome.OK),
        Command(4, 1, Outcome.REFUSED),
        Command(5, 2, Outcome.UNKNOWN),
    ]
    return History(9, {0: commands, 1: [Command(0, 1, Outcome.OK)]}, {CHANNEL: channel})


ALL_ACKNOWLEDGED = (key(0), key(1), key(2), key(3), key(0, publisher=1))
CLEAN = Verdict(
    attempted=8,
    acknowledged=5,
    delivered=5,
    lost=0,
    revived=0,
    ghosts=0,
    corrupt=0,
    refused_yet_delivered=0,
    split=0,
    refused=0,
    returned=0,
    duplicates=0,
    duplicates_bound=0,
)


def verdict(found: History) -> Verdict:
    return check(found)[CHANNEL]


def test_exactly_the_acknowledged_messages_are_no_violation() -> None:
    """No violation is found if exactly the acknowledged messages arrive, each once."""
    found = verdict(history(*ALL_ACKNOWLEDGED, finished=ALL_ACKNOWLEDGED))

    assert found == CLEAN
    assert found.holds


def test_an_unanswered_mpub_may_arrive_or_not() -> None:
    """An unanswered MPUB may arrive as a whole: it counts as revived, and is not a violation."""
    found = verdict(history(*ALL_ACKNOWLEDGED, key(5), key(6)))

    assert found == replace(CLEAN, delivered=7, revived=2)
    assert found.holds


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        (ALL_ACKNOWLEDGED[1:], {"delivered": 4, "lost": 1}),
        ((*ALL_ACKNOWLEDGED, key(7)), {"delivered": 6, "ghosts": 1}),
        ((*ALL_ACKNOWLEDGED, key(0, publisher=2)), {"delivered": 6, "ghosts": 1}),
        ((*ALL_ACKNOWLEDGED, key(4)), {"delivered": 6, "refused_yet_delivered": 1}),
        ((*ALL_ACKNOWLEDGED, key(6)), {"delivered": 6, "revived": 1, "split": 1}),
        ((*ALL_ACKNOWLEDGED, key(2)), {"duplicates": 1}),
    ],
)
def test_each_kind_of_violation_is_found(events: tuple[int, ...], wrong: dict[str, int]) -> None:
    """Lost, invented, refused but delivered, split and duplicated messages have separate counts."""
    found = verdict(history(*events))

    assert found == replace(CLEAN, **wrong)
    assert not found.holds


@pytest.mark.parametrize(
    ("before", "after", "split"),
    [((key(6),), (), 0), ((key(6),), (key(0),), 0), ((), (key(6),), 1), ((key(5),), (key(5),), 1)],
)
def test_a_power_cut_may_lose_a_partly_delivered_mpub(
    before: tuple[int, ...], after: tuple[int, ...], split: int
) -> None:
    """An MPUB is split only if a part of it is delivered after the cut.

    If a part is delivered before the cut and nothing afterwards, the MPUB was not synced, and all
    of it was lost.
    """
    found = history(*ALL_ACKNOWLEDGED, *before)
    channel = found.channels[CHANNEL]
    channel.before_cut = len(channel.events)
    for one in after:
        channel.delivered(one)

    assert verdict(found).split == split


def test_a_delivery_after_an_answered_fin_is_a_violation() -> None:
    """A message that is delivered after its FIN was answered is a violation, whatever the bound."""
    found = history(*ALL_ACKNOWLEDGED, finished=(key(1), key(2)))
    channel = found.channels[CHANNEL]
    channel.in_flight_at_kills = 10
    channel.delivered(key(3))
    assert verdict(found).holds

    channel.delivered(key(2))

    assert verdict(found) == replace(CLEAN, returned=1, duplicates=2, duplicates_bound=10)
    assert not verdict(found).holds


@pytest.mark.parametrize("name", ["corrupt", "refused"])
def test_corrupt_bodies_and_refused_fins_are_violations(name: str) -> None:
    """A corrupt body, or a FIN that was answered with an error, is a violation."""
    found = history(*ALL_ACKNOWLEDGED)
    setattr(found.channels[CHANNEL], name, 1)

    assert verdict(found) == replace(CLEAN, **{name: 1})
    assert not verdict(found).holds


def test_in_flight_and_requeued_messages_may_be_duplicates() -> None:
    """Duplicates are limited to the messages in flight at the kills and the requeued ones."""
    found = history(*ALL_ACKNOWLEDGED, key(2), key(2))
    found.channels[CHANNEL].in_flight_at_kills = 1
    found.channels[CHANNEL].requeued = 1

    assert verdict(found) == replace(CLEAN, duplicates=2, duplicates_bound=2)
    assert verdict(found).holds


def test_totals_are_sums_over_channels() -> None:
    """The counts of all channels are added; those of the publishers are not."""
    found = total([CLEAN, replace(CLEAN, lost=2)])

    assert found == replace(CLEAN, delivered=10, lost=2)
    assert "attempted 8 · acknowledged 5 · delivered 10 · lost 2" in found.line()


def test_an_empty_history_can_be_checked() -> None:
    """A run without messages can be checked, but proves nothing."""
    nothing = check(History(9, {}, {CHANNEL: ChannelHistory()}))[CHANNEL]

    assert nothing == replace(CLEAN, attempted=0, acknowledged=0, delivered=0)
    assert not nothing.holds


def test_commands_with_lost_messages_are_printed() -> None:
    """Each command with lost messages is printed with its publisher and its last kill."""
    found = history(*ALL_ACKNOWLEDGED[:2], *ALL_ACKNOWLEDGED[3:])

    assert ["live: 1 of 3 messages from 1 on, of publisher 0, acknowledged after kill 0"] == list(
        lost_commands(found)
    )
