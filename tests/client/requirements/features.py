"""The features that users of NSQ's client libraries rely on, whatever the language."""

from typing import Final

from tests.client.requirements import Requirement

LIFE: Final = "test_requirements_consumer.py::"
SOURCES: Final = "test_requirements_sources.py::"
FLOW: Final = "test_requirements_flow.py::"
WIRE: Final = "test_requirements_connection.py::"
LAYERS: Final = "test_layers_with_nsqd.py::"
NSQD: Final = "test_with_nsqd.py::"

REQUIREMENTS: Final = {
    "max-in-flight": Requirement(
        "a configurable bound on messages in flight",
        (FLOW + "test_max_in_flight_is_shared", LIFE + "test_max_in_flight_changes_at_run_time"),
    ),
    "discovery": Requirement(
        "discovery through nsqlookupd, with jitter",
        (NSQD + "test_discovery", SOURCES + "test_losing_any_nsqlookupd_loses_nothing"),
        ("test_discovery.py::test_haste_after_a_loss_or_failure_wanes",),
    ),
    "negotiation": Requirement("features are negotiated", (WIRE + "test_nsqd_learns_who_it_is",)),
    "tls": Requirement("TLS", (LAYERS + "test_publish_and_consume",)),
    "snappy": Requirement("snappy", (LAYERS + "test_publish_and_consume",)),
    "deflate": Requirement("deflate", (LAYERS + "test_publish_and_consume",)),
    "sampling": Requirement("sampling", (LAYERS + "test_requeue_and_sampling_go_through_layers",)),
    "backoff": Requirement("backoff", (FLOW + "test_the_way_into_backoff_and_out",)),
    "redistribution": Requirement(
        "RDY is redistributed",
        (FLOW + "test_seats_go_round", FLOW + "test_an_idle_probe_moves_on"),
    ),
    "max-attempts": Requirement(
        "a bound on attempts", (LIFE + "test_a_message_that_fails_too_often_is_given_up",)
    ),
    "touch": Requirement("touch", (NSQD + "test_requeue_touch_and_timeout",)),
    "heartbeats": Requirement(
        "heartbeats", (WIRE + "test_heartbeats_keep_a_connection_and_silence_ends_it",)
    ),
    "auth": Requirement("AUTH", (LAYERS + "test_publish_and_consume",)),
}
