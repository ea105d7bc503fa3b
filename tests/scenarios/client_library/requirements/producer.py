"""A producer: what a publish guarantees, and how failures are contained."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_CONNECTION: Final = "client/test_connection.py::"
CLIENT_DISPATCHER: Final = "client/test_dispatcher.py::"
CLIENT_PRODUCER: Final = "client/test_producer.py::"
CLIENT_PUBLISH: Final = "client/test_publish.py::"
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
            CLIENT_PRODUCER + "test_each_way_to_publish_tells_its_outcome",
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
            CLIENT_CONNECTION + "test_answers_go_to_their_requests",
        ),
    ),
    "cancelled": Requirement(
        "a time-out or a cancelled task leaves no answer to be taken for another's",
        (
            CANCELLED_PUBLISHES + "test_whoever_is_cancelled_disturbs_nobody",
            PRODUCER + "test_time_runs_out",
        ),
        (
            CLIENT_PRODUCER + "test_a_cancelled_publish_leaves_no_stray_answer",
            CLIENT_PRODUCER + "test_a_call_may_have_a_time_of_its_own",
            CLIENT_DISPATCHER + "test_all_attempts_together_have_publish_timeout",
        ),
    ),
    "several": Requirement(
        "several nsqds take turns; where one fails the others are tried, within bounds",
        (PRODUCER + "test_fail_over_and_bounded_retry",),
        (
            CLIENT_DISPATCHER + "test_nsqds_take_turns",
            CLIENT_DISPATCHER + "test_an_unanswered_publish_is_sent_again_and_counted",
            CLIENT_DISPATCHER + "test_attempts_are_bounded",
            CLIENT_DISPATCHER + "test_a_full_disk_is_passed_over",
        ),
    ),
    "discovered": Requirement(
        "nsqds are given, or discovered through nsqlookupd",
        (PRODUCER + "test_discovered_nsqds", DAEMONS + "test_discovery"),
    ),
    "lost": Requirement(
        "a lost connection leaves nobody waiting: each is sent again, or told of its doubt",
        (
            PRODUCER + "test_fail_over_and_bounded_retry",
            PRODUCER + "test_a_connection_cut_in_mid_command",
        ),
        (
            CLIENT_DISPATCHER + "test_another_ones_fault_is_not_counted",
            CLIENT_DISPATCHER + "test_a_connection_that_ends_in_mid_command_is_nobodys_fault",
            CLIENT_DISPATCHER + "test_doubt_is_counted_once",
            CLIENT_DISPATCHER + "test_one_that_makes_nsqd_reset_takes_no_other_with_it",
            CLIENT_CONNECTION + "test_what_was_said_before_a_reset_is_heard",
            CLIENT_PRODUCER + "test_a_lost_connection_keeps_what_was_not_waited_for",
        ),
    ),
    "back-pressure": Requirement(
        "bytes without an OK are bounded: who awaits waits, who does not is told",
        (PRODUCER + "test_back_pressure_by_bytes",),
        (
            CLIENT_DISPATCHER + "test_back_pressure_by_bytes",
            CLIENT_DISPATCHER + "test_nobody_overtakes_those_who_wait",
            CLIENT_PRODUCER + "test_what_waits_is_bounded",
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
            CLIENT_PRODUCER + "test_close_waits_for_what_is_under_way",
            CLIENT_PRODUCER + "test_what_never_gets_through_is_told_too",
        ),
    ),
    "errors": Requirement(
        "each refusal by its code, what it means and what to do; mistakes are found before",
        (PRODUCER + "test_refusals_say_what_they_mean", PRODUCER + "test_errors_of_a_connection"),
        (
            WIRE_ERRORS + "test_every_code_has_a_meaning",
            CLIENT_PUBLISH + "test_mistakes_are_told_by_name",
            CLIENT_DISPATCHER + "test_a_refusal_of_its_own_is_raised_and_harms_no_other",
        ),
    ),
}
