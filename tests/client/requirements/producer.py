"""A producer: what a publish promises, and whom it may trouble."""

from typing import Final

from tests.client.requirements import Requirement

NSQD: Final = "test_requirements_producer.py::"
SCRIPTED: Final = "test_producer.py::"
NOWAIT: Final = "test_publish_nowait.py::"

REQUIREMENTS: Final = {
    "ways": Requirement(
        "publish, multi-publish and deferred publish, awaited or told to a callback",
        (NSQD + "test_all_ways_to_publish",),
        (
            SCRIPTED + "test_the_three_ways_to_publish",
            NOWAIT + "test_each_way_to_publish_tells_its_outcome",
        ),
    ),
    "acknowledged": Requirement(
        "a publish has happened when nsqd has said OK",
        (NSQD + "test_an_awaited_publish_is_acknowledged",),
        (SCRIPTED + "test_publishing_is_pipelined",),
    ),
    "lazy": Requirement(
        "it connects by itself, before the first publish and after a loss",
        (
            NSQD + "test_publishing_before_there_is_an_nsqd",
            "test_with_nsqd.py::test_kill_9_and_restart",
        ),
        (SCRIPTED + "test_the_first_publish_waits_for_nsqd",),
    ),
    "pipelined": Requirement(
        "many tasks share a connection; answers are matched first in, first out",
        (NSQD + "test_tasks_share_a_connection",),
        (
            SCRIPTED + "test_publishing_is_pipelined",
            "test_connection.py::test_answers_go_to_their_requests",
        ),
    ),
    "cancelled": Requirement(
        "a time-out or a cancelled task leaves no answer to be taken for another's",
        (
            "test_cancelled_publishes.py::test_whoever_is_cancelled_disturbs_nobody",
            NSQD + "test_time_runs_out",
        ),
        (
            SCRIPTED + "test_a_cancelled_publish_leaves_no_stray_answer",
            SCRIPTED + "test_a_call_may_have_a_time_of_its_own",
            SCRIPTED + "test_all_attempts_together_have_publish_timeout",
        ),
    ),
    "several": Requirement(
        "several nsqds take turns; where one fails the others are tried, within bounds",
        (NSQD + "test_fail_over_and_bounded_retry",),
        (
            SCRIPTED + "test_nsqds_take_turns",
            SCRIPTED + "test_an_unanswered_publish_is_sent_again_and_counted",
            SCRIPTED + "test_attempts_are_bounded",
            SCRIPTED + "test_a_full_disk_is_passed_over",
        ),
    ),
    "discovered": Requirement(
        "nsqds are given, or discovered through nsqlookupd",
        (NSQD + "test_discovered_nsqds", "test_with_nsqd.py::test_discovery"),
    ),
    "lost": Requirement(
        "a lost connection leaves nobody waiting: each is sent again, or told of its doubt",
        (
            NSQD + "test_fail_over_and_bounded_retry",
            NSQD + "test_a_connection_cut_in_mid_command",
        ),
        (
            SCRIPTED + "test_another_ones_fault_is_not_counted",
            SCRIPTED + "test_a_connection_that_ends_in_mid_command_is_nobodys_fault",
            SCRIPTED + "test_doubt_is_counted_once",
            SCRIPTED + "test_one_that_makes_nsqd_reset_takes_no_other_with_it",
            "test_connection.py::test_what_was_said_before_a_reset_is_heard",
            NOWAIT + "test_a_lost_connection_keeps_what_was_not_waited_for",
        ),
    ),
    "back-pressure": Requirement(
        "bytes without an OK are bounded: who awaits waits, who does not is told",
        (NSQD + "test_back_pressure_by_bytes",),
        (
            SCRIPTED + "test_back_pressure_by_bytes",
            SCRIPTED + "test_nobody_overtakes_those_who_wait",
            NOWAIT + "test_what_waits_is_bounded",
        ),
    ),
    "ping": Requirement(
        "ping says who answers, and why nobody does",
        (NSQD + "test_ping",),
    ),
    "stop": Requirement(
        "close waits for what is under way, within bounds, and ends what comes later",
        (NSQD + "test_close_waits_for_publishes",),
        (
            SCRIPTED + "test_close_waits_for_what_is_under_way",
            NOWAIT + "test_what_never_gets_through_is_told_too",
        ),
    ),
    "errors": Requirement(
        "each refusal by its code, what it means and what to do; mistakes are found before",
        (NSQD + "test_refusals_say_what_they_mean", NSQD + "test_errors_of_a_connection"),
        (
            "../wire/test_errors.py::test_every_code_has_a_meaning",
            "test_publish.py::test_mistakes_are_told_by_name",
            SCRIPTED + "test_a_refusal_of_its_own_is_raised_and_harms_no_other",
        ),
    ),
}
