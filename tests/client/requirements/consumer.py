"""A consumer: its messages, its life, and where its nsqds come from."""

from typing import Final

from tests.client.requirements import Requirement

LIFE: Final = "test_requirements_consumer.py::"
SOURCES: Final = "test_requirements_sources.py::"
SCRIPTED: Final = "test_consumer.py::"
MISUSED: Final = "test_consumer_misused.py::"
HANDLING: Final = "test_handling.py::"
DISCOVERY: Final = "test_discovery.py::"
NSQD: Final = "test_with_nsqd.py::"
QUESTIONS: Final = "../protocol/test_lookup.py::"

REQUIREMENTS: Final = {
    "names": Requirement(
        "names of topic and channel are checked where the consumer is made",
        (LIFE + "test_names_are_valid_that_nsqd_takes",),
        (MISUSED + "test_mistakes_are_told_at_once", MISUSED + "test_wrong_types_are_told_at_once"),
    ),
    "handler": Requirement(
        "a handler that returns finishes, one that raises requeues, so many at a time",
        (LIFE + "test_the_handler_decides",),
        (HANDLING + "test_handler_answers_by_outcome", HANDLING + "test_handler_concurrency"),
    ),
    "auto-response": Requirement(
        "a handler may answer itself, later or not at all",
        (LIFE + "test_the_handler_decides",),
        (HANDLING + "test_handler_answers_by_outcome",),
    ),
    "message": Requirement(
        "a message has id, body, timestamp, attempts and its nsqd's address",
        (LIFE + "test_a_message_is_what_nsqd_has", NSQD + "test_what_is_published_is_received"),
        (SCRIPTED + "test_iteration",),
    ),
    "once": Requirement(
        "it is answered for once",
        (LIFE + "test_a_message_is_what_nsqd_has",),
        (SCRIPTED + "test_a_message_is_answered_once",),
    ),
    "requeue-delay": Requirement(
        "a requeue without a delay has default_requeue_delay x attempts, at most max_requeue_delay",
        (LIFE + "test_the_delay_of_a_requeue",),
        (SCRIPTED + "test_the_default_delay_of_a_requeue_grows_with_attempts",),
    ),
    "touch": Requirement(
        "TOUCH gives a message more time",
        (NSQD + "test_requeue_touch_and_timeout",),
        (SCRIPTED + "test_touch_keeps_a_message_from_expiring",),
    ),
    "max-attempts": Requirement(
        "delivered more than max_attempts times it goes to a callback, and is finished",
        (LIFE + "test_a_message_that_fails_too_often_is_given_up",),
        (SCRIPTED + "test_max_attempts",),
    ),
    "refusals": Requirement(
        "refused FIN, REQ and TOUCH are noted, without backoff; other errors end the connection",
        (LIFE + "test_refused_answers_cost_nothing_and_other_errors_the_connection",),
        ("test_connection.py::test_refused_responses_are_counted_and_disturb_nobody",),
    ),
    "figures": Requirement(
        "what was received, finished and requeued, and the connections, are there to read",
        (LIFE + "test_figures_and_starvation",),
    ),
    "starved": Requirement(
        "is_starved: in flight is 85 % of a connection's RDY or more",
        (LIFE + "test_figures_and_starvation",),
    ),
    "max-in-flight": Requirement(
        "max_in_flight can be changed at run time; 0 pauses",
        (LIFE + "test_max_in_flight_changes_at_run_time",),
        ("test_flow.py::test_rdy_is_shared_and_redistributed",),
    ),
    "stop": Requirement(
        "stop: CLS, what is in hand is answered, the connections end; handlers drain",
        (
            LIFE + "test_stop_lets_handlers_finish",
            NSQD + "test_what_stop_gives_back_the_next_consumer_has_at_once",
        ),
        (
            SCRIPTED + "test_leaving_the_block_gives_back_what_was_not_handed_out",
            SCRIPTED + "test_stop_lets_handlers_finish_what_is_here",
        ),
    ),
    "stop-bounded": Requirement(
        "stop takes stop_timeout at most, and no time without connections",
        (LIFE + "test_stop_is_bounded",),
        (SCRIPTED + "test_stop_is_bounded",),
    ),
    "given": Requirement(
        "the address of a given nsqd is kept: it is connected again whenever it is lost",
        (SOURCES + "test_a_given_nsqd_is_connected_again", NSQD + "test_kill_9_and_restart"),
        ("test_pool.py::test_connects_again_with_growing_bounded_delays",),
    ),
    "log": Requirement(
        "what happens to connections is logged, under names whose level can be set",
        (SOURCES + "test_a_given_nsqd_is_connected_again",),
        ("test_pool.py::test_a_loss_is_told_and_said_once",),
    ),
    "nsqds-change": Requirement(
        "nsqds can be added and left at run time",
        (SOURCES + "test_nsqds_come_and_go_at_run_time",),
        (
            "test_flow.py::test_a_connection_is_left_while_the_others_go_on",
            "test_flow.py::test_a_connection_with_hanging_messages_is_left_in_time",
            "test_pool.py::test_what_is_removed_is_left_alone_until_it_is_added_again",
        ),
    ),
    "nsqlookupds-change": Requirement(
        "nsqlookupds can be added and left at run time, but for the last source",
        (SOURCES + "test_nsqlookupds_come_and_go_at_run_time",),
        (DISCOVERY + "test_which_are_asked_may_change",),
    ),
    "lookupd-address": Requirement(
        "an nsqlookupd is host:port or a URL, whose path and query are kept; /lookup by default",
        (SOURCES + "test_an_nsqlookupd_may_be_given_in_many_forms",),
        (QUESTIONS + "test_the_question",),
    ),
    "lookupd-secret": Requirement(
        "the secret goes with each question, if wanted",
        (SOURCES + "test_an_nsqlookupd_may_be_given_in_many_forms",),
        (DISCOVERY + "test_https_and_the_secret",),
    ),
    "poll": Requirement(
        "asked at once, after a random part of the jitter, then each interval",
        (SOURCES + "test_an_nsqlookupd_may_be_given_in_many_forms",),
        (DISCOVERY + "test_haste_after_a_loss_or_failure_wanes",),
    ),
    "poll-all": Requirement(
        "an nsqlookupd that fails or hangs hinders nothing: the others are asked",
        (SOURCES + "test_losing_any_nsqlookupd_loses_nothing",),
        (
            DISCOVERY + "test_answers_are_united_and_a_lost_nsqlookupd_loses_nothing",
            DISCOVERY + "test_one_that_hangs_delays_none",
        ),
    ),
    "producers": Requirement(
        "new producers are connected, IPv6 in brackets; both forms of the answer are read",
        (NSQD + "test_discovery",),
        (
            QUESTIONS + "test_both_forms_of_the_answer_are_read",
            DISCOVERY + "test_a_topic_that_is_not_known_yet_is_no_failure",
        ),
    ),
    "vanished": Requirement(
        "a producer that is listed no more keeps its connection until that is lost",
        (SOURCES + "test_an_nsqd_that_is_listed_no_more_keeps_its_connection",),
        ("test_pool.py::test_a_listed_address_that_vanishes_is_kept_until_it_is_lost",),
    ),
    "recheck": Requirement(
        "a lost connection makes the nsqlookupds be asked soon",
        (SOURCES + "test_a_lost_connection_hastens_the_next_question",),
        (DISCOVERY + "test_a_recheck_asks_sooner",),
    ),
    "filter": Requirement(
        "a discovery filter decides which of the listed nsqds are connected",
        (SOURCES + "test_the_filter_decides_whom_to_connect_to",),
        (DISCOVERY + "test_the_filter_decides",),
    ),
    "p16": Requirement(
        "losing any nsqlookupd, or restarting all, loses nothing; a new topic is found in time",
        (SOURCES + "test_losing_any_nsqlookupd_loses_nothing",),
    ),
}
