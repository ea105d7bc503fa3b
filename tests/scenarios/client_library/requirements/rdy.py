"""RDY: how max_in_flight is divided among connections."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_FLOW: Final = "client/test_flow.py::"
CLIENT_RDY: Final = "client/test_rdy.py::"
DAEMONS: Final = "scenarios/client_library/test_daemons.py::"
RDY_AND_BACKOFF: Final = "scenarios/client_library/test_rdy_and_backoff.py::"
RDY_LIMIT: Final = "scenarios/client_library/test_rdy_limit.py::"

REQUIREMENTS: Final = {
    "share": Requirement(
        "each connection gets max_in_flight / connections immediately; the total is never exceeded",
        (RDY_AND_BACKOFF + "test_max_in_flight_is_shared", DAEMONS + "test_discovery"),
        (
            RDY_LIMIT + "test_rdy_never_exceeds_max_in_flight",
            CLIENT_RDY + "test_max_in_flight_is_shared_evenly_and_completely",
        ),
    ),
    "max-rdy-count": Requirement(
        "no connection has more than its nsqd allows",
        (RDY_AND_BACKOFF + "test_no_connection_has_more_than_its_nsqd_allows",),
        (
            CLIENT_RDY + "test_no_connection_gets_more_than_its_nsqd_allows",
            CLIENT_RDY + "test_rdy_above_one_connections_limit_goes_to_the_others",
        ),
    ),
    "what-is-left": Requirement(
        "an increase is limited to what is left, and completed as messages are answered",
        (RDY_AND_BACKOFF + "test_a_new_connection_gets_rdy_as_responses_arrive",),
        (
            CLIENT_FLOW + "test_a_new_connection_gets_rdy_as_messages_are_answered",
            CLIENT_RDY + "test_rdy_moves_only_as_messages_in_flight_are_answered",
        ),
    ),
    "changes-only": Requirement(
        "RDY is sent only when it changes",
        (RDY_AND_BACKOFF + "test_unchanged_rdy_is_not_sent_again",),
        (CLIENT_RDY + "test_rdy_is_sent_only_when_it_changes",),
    ),
    "loss": Requirement(
        "the RDY of a lost connection goes to the others",
        (RDY_AND_BACKOFF + "test_max_in_flight_is_shared",),
        (CLIENT_FLOW + "test_rdy_is_shared_and_redistributed",),
    ),
    "redistribution": Requirement(
        "with more connections than max_in_flight, idle or long-served ones pass RDY on",
        (RDY_AND_BACKOFF + "test_an_idle_connection_passes_its_rdy_on",),
        (
            CLIENT_FLOW + "test_with_fewer_messages_than_connections_nsqds_get_rdy_in_turn",
            CLIENT_RDY + "test_idle_connections_pass_on_their_rdy_in_turn",
            CLIENT_RDY + "test_a_busy_connection_passes_on_its_rdy_after_hold_timeout",
        ),
    ),
    "redistribution-in-backoff": Requirement(
        "in backoff, the single RDY 1 moves between connections, too",
        (RDY_AND_BACKOFF + "test_an_idle_probe_moves_on",),
    ),
}
