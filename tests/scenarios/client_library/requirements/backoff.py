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
        "a failure stops all connections; after the block, one connection probes with RDY 1",
        (
            RDY_AND_BACKOFF + "test_backoff_sends_rdy_0_then_1_then_all",
            DAEMONS + "test_backoff_with_nsqd",
        ),
        (CLIENT_BACKOFF + "test_failed_probes_double_the_block_and_successful_ones_halve_it",),
    ),
    "duration": Requirement(
        "a block lasts multiplier x 2^n, or a random part of it, and max_backoff_duration at most",
        (RDY_AND_BACKOFF + "test_backoff_sends_rdy_0_then_1_then_all",),
        (
            CLIENT_BACKOFF + "test_the_duration_of_a_block_and_the_level_are_bounded",
            CLIENT_BACKOFF + "test_full_jitter_spreads_blocks_from_0_to_the_exponential_duration",
            CLIENT_BACKOFF + "test_a_block_lasts_at_most_the_limit",
        ),
    ),
    "order": Requirement(
        "RDY 0 precedes the REQ; in the probe RDY 0, FIN, a pause, RDY 1, then all RDY and FIN",
        (RDY_AND_BACKOFF + "test_backoff_sends_rdy_0_then_1_then_all",),
        (CLIENT_FLOW + "test_backoff_changes_the_rdy_sent_to_nsqd",),
    ),
    "one-result": Requirement(
        "one result per block counts; results during the block do not",
        (RDY_AND_BACKOFF + "test_one_result_counts_a_block",),
        (CLIENT_BACKOFF + "test_results_during_a_block_change_nothing",),
    ),
    "neutral": Requirement(
        "a requeue without backoff starts no block, but prolongs a running one",
        (RDY_AND_BACKOFF + "test_a_requeue_without_backoff_starts_no_block",),
        (CLIENT_BACKOFF + "test_a_requeue_without_backoff_repeats_a_block_but_never_starts_one",),
    ),
    "off": Requirement(
        "max_backoff_duration 0 switches backoff off",
        (RDY_AND_BACKOFF + "test_backoff_can_be_switched_off",),
        (CLIENT_BACKOFF + "test_zero_switches_backoff_off",),
    ),
    "no-connections": Requirement(
        "backoff continues after the loss of all connections",
        (RDY_AND_BACKOFF + "test_backoff_outlives_the_last_connection",),
    ),
    "lost-probe": Requirement(
        "if the probing connection with RDY 1 is lost, another one probes",
        (RDY_AND_BACKOFF + "test_a_lost_probe_is_replaced",),
        (
            CLIENT_FLOW + "test_a_lost_probe_moves_to_another_connection",
            CLIENT_RDY + "test_probing_gives_rdy_1_to_one_connection",
        ),
    ),
}
