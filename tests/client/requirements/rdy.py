"""RDY: how max_in_flight is shared among connections."""

from typing import Final

from tests.client.requirements import Requirement

FLOW: Final = "test_requirements_flow.py::"
SCRIPTED: Final = "test_flow.py::"
PURE: Final = "test_rdy.py::"

REQUIREMENTS: Final = {
    "share": Requirement(
        "each connection has max_in_flight / connections, at once; the total is never exceeded",
        (FLOW + "test_max_in_flight_is_shared", "test_with_nsqd.py::test_discovery"),
        (
            "test_rdy_machine.py::test_rdy_never_exceeds_max_in_flight",
            PURE + "test_the_share_is_even_and_nothing_is_left_over",
        ),
    ),
    "max-rdy-count": Requirement(
        "no connection has more than its nsqd allows",
        (FLOW + "test_no_connection_has_more_than_its_nsqd_allows",),
        (
            PURE + "test_no_connection_gets_more_than_its_nsqd_allows",
            PURE + "test_what_one_may_not_have_goes_to_the_others",
        ),
    ),
    "what-is-left": Requirement(
        "a raise is cut to what is left, and made up for as soon as there is more",
        (FLOW + "test_a_newcomer_gets_what_is_left",),
        (
            SCRIPTED + "test_a_newcomer_gets_its_share_as_messages_are_answered",
            PURE + "test_messages_in_flight_are_paid_for_before_rdy_moves",
        ),
    ),
    "changes-only": Requirement(
        "RDY is sent when it changes only",
        (FLOW + "test_rdy_is_sent_when_it_changes_only",),
        (PURE + "test_rdy_is_sent_only_when_it_changes",),
    ),
    "loss": Requirement(
        "what a lost connection had goes to the others",
        (FLOW + "test_max_in_flight_is_shared",),
        (SCRIPTED + "test_rdy_is_shared_and_redistributed",),
    ),
    "redistribution": Requirement(
        "with more connections than max_in_flight, who is idle or has had RDY for long yields it",
        (FLOW + "test_seats_go_round",),
        (
            SCRIPTED + "test_fewer_messages_than_connections",
            PURE + "test_seats_go_round_among_more_connections_than_messages",
            PURE + "test_a_busy_connection_keeps_its_seat_only_so_long",
        ),
    ),
    "redistribution-in-backoff": Requirement(
        "in backoff the one RDY 1 goes round, too",
        (FLOW + "test_an_idle_probe_moves_on",),
    ),
}
