"""Backoff: how a consumer reduces its load when messages fail."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_BACKOFF: Final = "client/test_backoff.py::"
CLIENT_FLOW: Final = "client/test_flow.py::"
CLIENT_RDY: Final = "client/test_rdy.py::"
DAEMONS: Final = "scenarios/client_library/test_daemons.py::"
RDY_AND_BACKOFF: Final = "scenarios/client_library/test_rdy_and_backoff.py::"

REQUIREMENTS: Final = {
    "block": Requirement(
        "a failure stops all connections; after the block one has RDY 1 and tests the waters",
        (RDY_AND_BACKOFF + "test_the_way_into_backoff_and_out", DAEMONS + "test_backoff_with_nsqd"),
        (CLIENT_BACKOFF + "test_the_way_down_and_up",),
    ),
    "duration": Requirement(
        "a block lasts multiplier x 2^n, or a random part of it, and max_backoff_duration at most",
        (RDY_AND_BACKOFF + "test_the_way_into_backoff_and_out",),
        (
            CLIENT_BACKOFF + "test_blocks_are_bounded_and_so_is_the_way_back",
            CLIENT_BACKOFF + "test_full_jitter_spreads_over_the_whole_block",
            CLIENT_BACKOFF + "test_a_limit_below_the_first_block_shortens_it",
        ),
    ),
    "order": Requirement(
        "RDY 0 precedes the REQ; in the probe RDY 0, FIN, a pause, RDY 1, then all RDY and FIN",
        (RDY_AND_BACKOFF + "test_the_way_into_backoff_and_out",),
        (CLIENT_FLOW + "test_backoff_as_nsqd_sees_it",),
    ),
    "one-result": Requirement(
        "one result counts a block, what comes during the block does not",
        (RDY_AND_BACKOFF + "test_one_result_counts_a_block",),
        (CLIENT_BACKOFF + "test_one_result_counts_a_block",),
    ),
    "neutral": Requirement(
        "a requeue without backoff begins none, and prolongs one",
        (RDY_AND_BACKOFF + "test_a_requeue_without_backoff_is_neutral",),
        (CLIENT_BACKOFF + "test_neutral_answers_prolong_but_never_begin",),
    ),
    "off": Requirement(
        "max_backoff_duration 0 switches it off",
        (RDY_AND_BACKOFF + "test_backoff_can_be_switched_off",),
        (CLIENT_BACKOFF + "test_zero_switches_backoff_off",),
    ),
    "no-connections": Requirement(
        "it goes on over the loss of all connections",
        (RDY_AND_BACKOFF + "test_backoff_outlives_the_last_connection",),
    ),
    "lost-probe": Requirement(
        "a lost connection with RDY 1 is replaced by another",
        (RDY_AND_BACKOFF + "test_a_lost_probe_is_replaced",),
        (
            CLIENT_FLOW + "test_a_lost_probe_moves_to_another_connection",
            CLIENT_RDY + "test_probing_gives_one_message_to_one_connection",
        ),
    ),
}
