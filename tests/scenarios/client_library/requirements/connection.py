"""One connection: its handshake, its protections, its end."""

from typing import Final

from tests.scenarios.client_library.requirements import Requirement

CLIENT_CONNECTION: Final = "client/test_connection.py::"
CONNECTION: Final = "scenarios/client_library/test_connection.py::"
CLIENT_LAYERS: Final = "scenarios/tls/test_client_layers.py::"
WIRE_CLIENT: Final = "wire/test_client.py::"

REQUIREMENTS: Final = {
    "identify": Requirement(
        "IDENTIFY tells nsqd every option that concerns it, before anything else",
        (CONNECTION + "test_nsqd_applies_the_identify_options",),
        (CLIENT_CONNECTION + "test_identify_sends_the_options_and_keeps_nsqds_facts",),
    ),
    "negotiation": Requirement(
        "the answer is read and heeded; one that does not negotiate is an nsqd, too",
        (
            CONNECTION + "test_nsqd_applies_the_identify_options",
            CLIENT_LAYERS + "test_nothing_is_published_to_an_nsqd_without_tls",
        ),
        (
            CLIENT_CONNECTION + "test_an_nsqd_that_does_not_negotiate",
            WIRE_CLIENT + "test_the_connection_works_if_compression_is_not_granted",
        ),
    ),
    "tls": Requirement(
        "TLS, the host's name verified, with a certificate of its own if there is one",
        (
            CLIENT_LAYERS + "test_publish_and_consume",
            CLIENT_LAYERS + "test_an_untrusted_certificate_is_refused",
            CLIENT_LAYERS + "test_clients_without_a_required_certificate_are_refused",
        ),
        (
            WIRE_CLIENT + "test_upgrades_come_in_their_order",
            WIRE_CLIENT + "test_hosts_named_in_the_certificate_are_accepted",
        ),
    ),
    "compression": Requirement(
        "snappy or deflate, alone and inside TLS",
        (
            CLIENT_LAYERS + "test_publish_and_consume",
            CLIENT_LAYERS + "test_requeue_and_sampling_go_through_layers",
        ),
        (WIRE_CLIENT + "test_upgrades_come_in_their_order",),
    ),
    "auth": Requirement(
        "AUTH where nsqd asks for it; an error that says so without a secret",
        (
            CLIENT_LAYERS + "test_publish_and_consume",
            CLIENT_LAYERS + "test_invalid_secrets_are_reported",
        ),
        (
            WIRE_CLIENT + "test_the_error_for_a_missing_secret_names_the_option",
            WIRE_CLIENT + "test_a_secret_is_sent_only_if_nsqd_requires_it",
        ),
    ),
    "heartbeats": Requirement(
        "each heartbeat is answered; a connection on which none comes is given up",
        (CONNECTION + "test_heartbeats_are_answered_and_silence_reconnects",),
        (
            CLIENT_CONNECTION + "test_heartbeats_are_answered",
            CLIENT_CONNECTION + "test_a_connection_without_data_for_read_timeout_is_closed",
        ),
    ),
    "wrong-port": Requirement(
        "HTTP where nsqd was expected is told as such",
        (CONNECTION + "test_a_wrong_port_is_explained",),
        (CLIENT_CONNECTION + "test_a_server_that_is_no_nsqd_fails_with_the_reason",),
    ),
    "frame-size": Requirement(
        "a frame above max_msg_size, or of a negative size, ends the connection",
        (
            CONNECTION + "test_a_frame_that_is_too_large_ends_the_connection",
            CONNECTION + "test_a_negative_frame_size_ends_the_connection",
        ),
        (CLIENT_CONNECTION + "test_a_server_that_is_no_nsqd_fails_with_the_reason",),
    ),
    "dial": Requirement(
        "dialling is bounded, and what hinders it is told",
        (CONNECTION + "test_a_wrong_port_is_explained",),
        (CLIENT_CONNECTION + "test_connecting_has_a_time_limit",),
    ),
}
