"""A producer: what a publish guarantees, and how failures are contained."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_CONNECTION: Final = "client/test_connection.py::"
CLIENT_DISPATCHER: Final = "client/test_dispatcher.py::"
CLIENT_PRODUCER: Final = "client/test_producer.py::"
DAEMONS: Final = "scenarios/client_library/test_daemons.py::"
PRODUCER: Final = "scenarios/client_library/test_producer.py::"
CANCELLED_PUBLISHES: Final = "scenarios/publishing/test_cancelled_publishes.py::"
WIRE_ERRORS: Final = "wire/test_errors.py::"

REQUIREMENTS: Final = {
    "ways": Requirement(
        "publish, multi-publish and deferred publish, awaited or told to a callback",
        (PRODUCER + "test_all_ways_to_publish",),
        (
            CLIENT_PRODUCER + "test_the_three_ways_to_publish",
            CLIENT_PRODUCER + "test_nowait_publishes_report_their_outcomes_to_callbacks",
        ),
    ),
    "acknowledged": Requirement(
        "a publish has happened when nsqd has said OK",
        (PRODUCER + "test_an_awaited_publish_is_acknowledged",),
        (CLIENT_PRODUCER + "test_publishing_is_pipelined",),
    ),
    "lazy": Requirement(
        "it connects by itself, before the first publish and after a loss",
        (
            PRODUCER + "test_publishing_before_there_is_an_nsqd",
            DAEMONS + "test_kill_9_and_restart",
        ),
        (CLIENT_PRODUCER + "test_the_first_publish_waits_for_nsqd",),
    ),
    "pipelined": Requirement(
        "many tasks share a connection; answers are matched first in, first out",
        (PRODUCER + "test_tasks_share_a_connection",),
        (
            CLIENT_PRODUCER + "test_publishing_is_pipelined",
            CLIENT_CONNECTION + "test_answers_are_matched_to_requests_in_order",
        ),
    ),
    "cancelled": Requirement(
        "a time-out or a cancelled task leaves no answer to be taken for another's",
        (
            CANCELLED_PUBLISHES + "test_cancelled_publishes_do_not_affect_others",
            PRODUCER + "test_a_publish_times_out",
        ),
        (
            CLIENT_PRODUCER + "test_after_a_cancelled_publish_answers_are_still_matched",
            CLIENT_PRODUCER + "test_timeout_seconds_limits_one_publish",
            CLIENT_DISPATCHER + "test_all_attempts_together_have_publish_timeout",
        ),
    ),
    "several": Requirement(
        "several nsqds take turns; where one fails the others are tried, within bounds",
        (PRODUCER + "test_failover_and_bounded_retry",),
        (
            CLIENT_DISPATCHER + "test_publishes_are_spread_evenly_over_two_nsqds",
            CLIENT_DISPATCHER + "test_an_unanswered_publish_is_sent_again_and_counted",
            CLIENT_DISPATCHER + "test_a_publish_is_sent_at_most_publish_attempts_times",
            CLIENT_DISPATCHER + "test_a_publish_that_one_nsqd_cannot_store_goes_to_the_next",
        ),
    ),
    "discovered": Requirement(
        "nsqds are given, or discovered through nsqlookupd",
        (PRODUCER + "test_discovered_nsqds", DAEMONS + "test_discovery"),
    ),
    "lost": Requirement(
        "a lost connection leaves nobody waiting: each is sent again, or told of its doubt",
        (
            PRODUCER + "test_failover_and_bounded_retry",
            PRODUCER + "test_a_connection_cut_in_mid_command",
        ),
        (
            CLIENT_DISPATCHER + "test_attempts_that_other_publishes_ended_do_not_count",
            CLIENT_DISPATCHER + "test_an_error_about_a_partly_read_command_is_no_refusal",
            CLIENT_DISPATCHER + "test_a_send_that_was_not_executed_does_not_count_as_resent",
            CLIENT_DISPATCHER + "test_a_message_that_makes_nsqd_reset_fails_alone",
            CLIENT_CONNECTION + "test_answers_sent_before_a_reset_reach_their_requests",
            CLIENT_PRODUCER + "test_nowait_publishes_are_sent_again_after_a_lost_connection",
        ),
    ),
    "back-pressure": Requirement(
        "bytes without an OK are bounded: who awaits waits, who does not is told",
        (PRODUCER + "test_back_pressure_by_bytes",),
        (
            CLIENT_DISPATCHER + "test_at_most_max_pending_bytes_await_an_answer",
            CLIENT_DISPATCHER + "test_free_bytes_go_to_the_oldest_waiting_publish",
            CLIENT_PRODUCER + "test_publish_nowait_above_max_pending_bytes_raises",
        ),
    ),
    "ping": Requirement(
        "ping says who answers, and why nobody does",
        (PRODUCER + "test_ping",),
    ),
    "stop": Requirement(
        "close waits for what is under way, within bounds, and ends what comes later",
        (PRODUCER + "test_close_waits_for_publishes",),
        (
            CLIENT_PRODUCER + "test_close_waits_for_pending_publishes",
            CLIENT_PRODUCER + "test_callbacks_get_the_error_of_publishes_that_are_never_sent",
        ),
    ),
    "errors": Requirement(
        "each refusal by its code, what it means and what to do; mistakes are found before",
        (
            PRODUCER + "test_a_refusal_has_code_text_and_advice",
            PRODUCER + "test_connection_errors_are_specific",
        ),
        (
            WIRE_ERRORS + "test_every_code_has_a_meaning",
            CLIENT_PRODUCER + "test_errors_for_wrong_arguments_state_what_is_required",
            CLIENT_DISPATCHER + "test_a_refusal_fails_only_its_own_publish",
        ),
    ),
}
