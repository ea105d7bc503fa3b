"""Backoff: how a consumer steps back when its messages fail."""

from typing import Final

from tests.client.requirements import Requirement

FLOW: Final = "test_requirements_flow.py::"
SCRIPTED: Final = "test_flow.py::"
PURE: Final = "test_backoff.py::"

REQUIREMENTS: Final = {
    "block": Requirement(
        "a failure stops all connections; after the block one has RDY 1 and tests the waters",
        (FLOW + "test_the_way_into_backoff_and_out", "test_with_nsqd.py::test_backoff_with_nsqd"),
        (PURE + "test_the_way_down_and_up",),
    ),
    "duration": Requirement(
        "a block lasts multiplier x 2^n, or a random part of it, and max_backoff_duration at most",
        (FLOW + "test_the_way_into_backoff_and_out",),
        (
            PURE + "test_blocks_are_bounded_and_so_is_the_way_back",
            PURE + "test_full_jitter_spreads_over_the_whole_block",
            PURE + "test_a_limit_below_the_first_block_shortens_it",
        ),
    ),
    "order": Requirement(
        "RDY 0 precedes the REQ; in the probe RDY 0, FIN, a pause, RDY 1, then all RDY and FIN",
        (FLOW + "test_the_way_into_backoff_and_out",),
        (SCRIPTED + "test_backoff_as_nsqd_sees_it",),
    ),
    "one-result": Requirement(
        "one result counts a block, what comes during the block does not",
        (FLOW + "test_one_result_counts_a_block",),
        (PURE + "test_one_result_counts_a_block",),
    ),
    "neutral": Requirement(
        "a requeue without backoff begins none, and prolongs one",
        (FLOW + "test_a_requeue_without_backoff_is_neutral",),
        (PURE + "test_neutral_answers_prolong_but_never_begin",),
    ),
    "off": Requirement(
        "max_backoff_duration 0 switches it off",
        (FLOW + "test_backoff_can_be_switched_off",),
        (PURE + "test_zero_switches_backoff_off",),
    ),
    "no-connections": Requirement(
        "it goes on over the loss of all connections",
        (FLOW + "test_backoff_outlives_the_last_connection",),
    ),
    "lost-probe": Requirement(
        "a lost connection with RDY 1 is replaced by another",
        (FLOW + "test_a_lost_probe_is_replaced",),
        (
            SCRIPTED + "test_a_lost_probe_moves_to_another_connection",
            "test_rdy.py::test_probing_gives_one_message_to_one_connection",
        ),
    ),
}
