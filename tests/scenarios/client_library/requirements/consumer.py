"""A consumer: its messages, its start and stop, and the sources of its nsqds."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_CONNECTION: Final = "client/test_connection.py::"
CLIENT_CONSUMER: Final = "client/test_consumer.py::"
CLIENT_DISCOVERY: Final = "client/test_discovery.py::"
CLIENT_FLOW: Final = "client/test_flow.py::"
CLIENT_HANDLING: Final = "client/test_handling.py::"
CLIENT_MESSAGE: Final = "client/test_message.py::"
CLIENT_POOL: Final = "client/test_pool.py::"
CLIENT_SUBSCRIPTION: Final = "client/test_subscription.py::"
PROTOCOL_LOOKUP: Final = "protocol/test_lookup.py::"
CONSUMER: Final = "scenarios/client_library/test_consumer.py::"
DAEMONS: Final = "scenarios/client_library/test_daemons.py::"
NSQD_SOURCES: Final = "scenarios/client_library/test_nsqd_sources.py::"

REQUIREMENTS: Final = {
    "names": Requirement(
        "names of topic and channel are checked when the consumer is created",
        (CONSUMER + "test_valid_names_are_those_that_nsqd_accepts",),
        (
            CLIENT_CONSUMER + "test_wrong_values_raise_in_the_constructor",
            CLIENT_CONSUMER + "test_wrong_types_raise_in_the_constructor",
        ),
    ),
    "handler": Requirement(
        "a handler that returns finishes, one that raises requeues; concurrency is limited",
        (CONSUMER + "test_the_handlers_outcome_is_the_response",),
        (
            CLIENT_HANDLING + "test_a_handlers_outcome_finishes_or_requeues_its_message",
            CLIENT_HANDLING + "test_at_most_concurrency_handlers_run_at_a_time",
        ),
    ),
    "auto-response": Requirement(
        "a handler can respond itself, later or not at all",
        (CONSUMER + "test_the_handlers_outcome_is_the_response",),
        (CLIENT_HANDLING + "test_a_handlers_outcome_finishes_or_requeues_its_message",),
    ),
    "message": Requirement(
        "a message has id, body, timestamp, attempts and its nsqd's address",
        (
            CONSUMER + "test_a_message_has_nsqds_fields",
            DAEMONS + "test_published_messages_arrive_in_order",
        ),
        (CLIENT_CONSUMER + "test_messages_arrive_in_order_and_are_finished_together",),
    ),
    "once": Requirement(
        "a message can be responded to only once",
        (CONSUMER + "test_a_message_has_nsqds_fields",),
        (CLIENT_MESSAGE + "test_a_message_is_answered_once",),
    ),
    "requeue-delay": Requirement(
        "the default delay is default_requeue_delay x attempts, at most max_requeue_delay",
        (CONSUMER + "test_the_delay_of_a_requeue",),
        (CLIENT_SUBSCRIPTION + "test_the_default_delay_of_a_requeue_grows_with_attempts",),
    ),
    "touch": Requirement(
        "TOUCH gives a message more time",
        (DAEMONS + "test_requeue_touch_and_timeout",),
        (CLIENT_SUBSCRIPTION + "test_touch_keeps_a_message_from_expiring",),
    ),
    "max-attempts": Requirement(
        "a message delivered more than max_attempts times goes to a callback and is finished",
        (CONSUMER + "test_a_message_that_fails_too_often_is_given_up",),
        (CLIENT_CONSUMER + "test_a_message_above_max_attempts_is_given_up",),
    ),
    "refusals": Requirement(
        "refused FIN, REQ and TOUCH are counted, without backoff; other errors reconnect",
        (CONSUMER + "test_refused_responses_are_harmless_and_other_errors_reconnect",),
        (CLIENT_CONNECTION + "test_refused_responses_are_counted_and_answer_no_request",),
    ),
    "figures": Requirement(
        "counters of received, finished and requeued messages and of connections",
        (CONSUMER + "test_counters_and_starvation",),
    ),
    "starved": Requirement(
        "is_starved: in flight is 85 % of a connection's RDY or more",
        (CONSUMER + "test_counters_and_starvation",),
    ),
    "max-in-flight": Requirement(
        "max_in_flight can be changed at run time; 0 pauses",
        (CONSUMER + "test_max_in_flight_changes_at_run_time",),
        (CLIENT_FLOW + "test_rdy_is_shared_and_redistributed",),
    ),
    "stop": Requirement(
        "stop sends CLS, waits for handlers, requeues other messages, and disconnects",
        (
            CONSUMER + "test_stop_lets_handlers_finish",
            DAEMONS + "test_stop_requeues_for_the_next_consumer_immediately",
        ),
        (
            CLIENT_CONSUMER + "test_leaving_the_block_requeues_waiting_messages_after_cls",
            CLIENT_CONSUMER + "test_stop_lets_the_handler_process_every_arrived_message",
        ),
    ),
    "stop-bounded": Requirement(
        "stop takes at most stop_timeout, and no time without connections",
        (CONSUMER + "test_stop_is_bounded",),
        (CLIENT_CONSUMER + "test_stop_waits_at_most_stop_timeout_for_a_handler",),
    ),
    "given": Requirement(
        "a configured nsqd is always reconnected after a loss",
        (
            NSQD_SOURCES + "test_a_configured_nsqd_is_reconnected",
            DAEMONS + "test_kill_9_and_restart",
        ),
        (CLIENT_POOL + "test_an_address_is_retried_with_growing_bounded_delays",),
    ),
    "log": Requirement(
        "connection events are logged, by loggers whose level can be set",
        (NSQD_SOURCES + "test_a_configured_nsqd_is_reconnected",),
        (CLIENT_POOL + "test_a_loss_is_reported_and_logged_once",),
    ),
    "nsqds-change": Requirement(
        "nsqds can be added and removed at run time",
        (NSQD_SOURCES + "test_nsqds_are_added_and_removed_at_run_time",),
        (
            CLIENT_FLOW + "test_a_connection_that_is_left_passes_on_its_rdy",
            CLIENT_FLOW + "test_leaving_a_connection_takes_at_most_stop_timeout",
            CLIENT_POOL + "test_a_removed_address_is_not_connected_until_it_is_added_again",
        ),
    ),
    "nsqlookupds-change": Requirement(
        "nsqlookupds can be added and removed at run time, except the last source",
        (NSQD_SOURCES + "test_nsqlookupds_are_added_and_removed_at_run_time",),
        (CLIENT_DISCOVERY + "test_nsqlookupds_can_be_added_and_removed",),
    ),
    "lookupd-address": Requirement(
        "an nsqlookupd is host:port or a URL, whose path and query are kept; /lookup by default",
        (NSQD_SOURCES + "test_an_nsqlookupd_address_is_host_port_or_url",),
        (PROTOCOL_LOOKUP + "test_the_url_of_a_lookup",),
    ),
    "lookupd-secret": Requirement(
        "each lookup sends the secret if configured",
        (NSQD_SOURCES + "test_an_nsqlookupd_address_is_host_port_or_url",),
        (CLIENT_DISCOVERY + "test_only_a_verified_https_nsqlookupd_gets_the_secret",),
    ),
    "poll": Requirement(
        "nsqlookupd is polled immediately, after a random delay, then at each interval",
        (NSQD_SOURCES + "test_an_nsqlookupd_address_is_host_port_or_url",),
        (CLIENT_DISCOVERY + "test_waits_after_hasten_grow_up_to_the_interval",),
    ),
    "poll-all": Requirement(
        "an nsqlookupd that fails or hangs does not prevent lookups at the others",
        (NSQD_SOURCES + "test_losing_any_nsqlookupd_loses_nothing",),
        (
            CLIENT_DISCOVERY + "test_answers_are_merged_and_a_failed_nsqlookupd_keeps_its_last",
            CLIENT_DISCOVERY + "test_an_nsqlookupd_that_hangs_does_not_delay_the_others",
        ),
    ),
    "producers": Requirement(
        "new nsqds are connected, IPv6 in brackets; both forms of the response are read",
        (DAEMONS + "test_discovery",),
        (
            PROTOCOL_LOOKUP + "test_both_forms_of_the_answer_are_read",
            CLIENT_DISCOVERY + "test_an_unknown_topic_is_no_failure",
        ),
    ),
    "vanished": Requirement(
        "an nsqd that is no longer listed keeps its connection until it is lost",
        (NSQD_SOURCES + "test_an_unlisted_nsqd_keeps_its_connection",),
        (CLIENT_POOL + "test_a_listed_address_that_vanishes_is_kept_until_it_is_lost",),
    ),
    "recheck": Requirement(
        "a lost connection triggers an early poll of the nsqlookupds",
        (NSQD_SOURCES + "test_a_lost_connection_triggers_an_early_poll",),
        (CLIENT_DISCOVERY + "test_a_recheck_leads_to_an_early_query",),
    ),
    "filter": Requirement(
        "a discovery filter selects the listed nsqds to connect to",
        (NSQD_SOURCES + "test_the_discovery_filter_selects_addresses",),
        (CLIENT_DISCOVERY + "test_only_nsqds_that_the_filter_returns_are_used",),
    ),
    "p16": Requirement(
        "losing any nsqlookupd, or restarting all, loses nothing; a new topic is found in time",
        (NSQD_SOURCES + "test_losing_any_nsqlookupd_loses_nothing",),
    ),
}
