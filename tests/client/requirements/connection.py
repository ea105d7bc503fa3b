"""One connection: how it begins, what it guards against, how it ends."""

from typing import Final

from tests.client.requirements import Requirement

WIRE: Final = "test_requirements_connection.py::"
LAYERS: Final = "test_layers_with_nsqd.py::"
SCRIPTED: Final = "test_connection.py::"
HANDSHAKE: Final = "test_handshake.py::"

REQUIREMENTS: Final = {
    "identify": Requirement(
        "IDENTIFY tells nsqd every option that concerns it, before anything else",
        (WIRE + "test_nsqd_learns_who_it_is",),
        (SCRIPTED + "test_identify_tells_and_learns",),
    ),
    "negotiation": Requirement(
        "the answer is read and heeded; one that does not negotiate is an nsqd, too",
        (WIRE + "test_nsqd_learns_who_it_is", LAYERS + "test_an_nsqd_without_tls"),
        (
            SCRIPTED + "test_an_nsqd_that_does_not_negotiate",
            HANDSHAKE + "test_compression_that_is_not_granted_is_done_without",
        ),
    ),
    "tls": Requirement(
        "TLS, the host's name verified, with a certificate of its own if there is one",
        (
            LAYERS + "test_publish_and_consume",
            LAYERS + "test_who_cannot_be_trusted_is_refused",
            LAYERS + "test_an_nsqd_that_requires_tls_and_a_certificate",
        ),
        (
            HANDSHAKE + "test_upgrades_come_in_their_order",
            HANDSHAKE + "test_hosts_that_are_named_in_the_certificate",
        ),
    ),
    "compression": Requirement(
        "snappy or deflate, alone and inside TLS",
        (
            LAYERS + "test_publish_and_consume",
            LAYERS + "test_requeue_and_sampling_go_through_layers",
        ),
        (HANDSHAKE + "test_upgrades_come_in_their_order",),
    ),
    "auth": Requirement(
        "AUTH where nsqd asks for it; an error that says so without a secret",
        (LAYERS + "test_publish_and_consume", LAYERS + "test_secrets_that_are_no_good"),
        (
            HANDSHAKE + "test_a_secret_that_is_missing_is_named",
            HANDSHAKE + "test_a_secret_that_is_not_asked_for_is_not_sent",
        ),
    ),
    "heartbeats": Requirement(
        "each heartbeat is answered; a connection on which none comes is given up",
        (WIRE + "test_heartbeats_keep_a_connection_and_silence_ends_it",),
        (
            SCRIPTED + "test_heartbeats_are_answered",
            SCRIPTED + "test_silence_ends_a_connection",
        ),
    ),
    "wrong-port": Requirement(
        "HTTP where nsqd was expected is told as such",
        (WIRE + "test_a_wrong_port_is_explained",),
        (SCRIPTED + "test_what_is_no_nsqd_is_told_apart",),
    ),
    "frame-size": Requirement(
        "a frame above max_msg_size, or of a negative size, ends the connection",
        (
            WIRE + "test_a_frame_that_is_too_large_ends_the_connection",
            WIRE + "test_nonsense_ends_the_connection",
        ),
        (SCRIPTED + "test_what_is_no_nsqd_is_told_apart",),
    ),
    "dial": Requirement(
        "dialling is bounded, and what hinders it is told",
        (WIRE + "test_a_wrong_port_is_explained",),
        (SCRIPTED + "test_dialling_is_bounded",),
    ),
}
