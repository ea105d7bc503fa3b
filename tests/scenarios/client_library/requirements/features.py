"""The features that users of NSQ's client libraries in any language rely on."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_DISCOVERY: Final = "client/test_discovery.py::"
CONNECTION: Final = "scenarios/client_library/test_connection.py::"
CONSUMER: Final = "scenarios/client_library/test_consumer.py::"
DAEMONS: Final = "scenarios/client_library/test_daemons.py::"
NSQD_SOURCES: Final = "scenarios/client_library/test_nsqd_sources.py::"
RDY_AND_BACKOFF: Final = "scenarios/client_library/test_rdy_and_backoff.py::"
CLIENT_LAYERS: Final = "scenarios/tls/test_client_layers.py::"

REQUIREMENTS: Final = {
    "max-in-flight": Requirement(
        "a configurable limit of messages in flight",
        (
            RDY_AND_BACKOFF + "test_max_in_flight_is_shared",
            CONSUMER + "test_max_in_flight_changes_at_run_time",
        ),
    ),
    "discovery": Requirement(
        "discovery through nsqlookupd, with jitter",
        (DAEMONS + "test_discovery", NSQD_SOURCES + "test_losing_any_nsqlookupd_loses_nothing"),
        (CLIENT_DISCOVERY + "test_waits_after_hasten_grow_up_to_the_interval",),
    ),
    "negotiation": Requirement(
        "features are negotiated", (CONNECTION + "test_nsqd_applies_the_identify_options",)
    ),
    "tls": Requirement("TLS", (CLIENT_LAYERS + "test_publish_and_consume",)),
    "snappy": Requirement("snappy", (CLIENT_LAYERS + "test_publish_and_consume",)),
    "deflate": Requirement("deflate", (CLIENT_LAYERS + "test_publish_and_consume",)),
    "sampling": Requirement(
        "sampling", (CLIENT_LAYERS + "test_requeue_and_sampling_go_through_layers",)
    ),
    "backoff": Requirement(
        "backoff", (RDY_AND_BACKOFF + "test_backoff_sends_rdy_0_then_1_then_all",)
    ),
    "redistribution": Requirement(
        "RDY is redistributed",
        (
            RDY_AND_BACKOFF + "test_an_idle_connection_passes_its_rdy_on",
            RDY_AND_BACKOFF + "test_an_idle_probe_moves_on",
        ),
    ),
    "max-attempts": Requirement(
        "a limit of attempts", (CONSUMER + "test_a_message_that_fails_too_often_is_given_up",)
    ),
    "touch": Requirement("touch", (DAEMONS + "test_requeue_touch_and_timeout",)),
    "heartbeats": Requirement(
        "heartbeats", (CONNECTION + "test_heartbeats_are_answered_and_silence_reconnects",)
    ),
    "auth": Requirement("AUTH", (CLIENT_LAYERS + "test_publish_and_consume",)),
}
