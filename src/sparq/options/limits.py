"""The limits of nsqd for a connection: flags of nsqd, which the protocol's parser keeps to."""

from dataclasses import dataclass
from typing import Final

from sparq.options.declare import option

SIZE_MAX: Final = (1 << 31) - 1
"""The largest size that the protocol can express: an i32."""

MESSAGE_BYTES_MAX: Final = SIZE_MAX - 30
"""A larger body would not fit into a message frame: its size counts 30 bytes before the body."""


@dataclass(frozen=True, slots=True)
class IdentifyLimits:
    """The limits that nsqd's flags set; the defaults are NSQ's."""

    max_msg_size: int = option(
        1 << 20, "maximum size of a message body, in bytes", least=1, most=MESSAGE_BYTES_MAX
    )
    max_body_size: int = option(
        5 << 20,
        "maximum size of a command body (such as MPUB), in bytes",
        least=1,
        most=SIZE_MAX,
    )
    max_rdy_count: int = option(2_500, "maximum RDY count of a client", least=1)
    max_req_timeout_ms: int = option(
        3_600_000, "maximum delay of a requeued or deferred message", least=0
    )
    msg_timeout_ms: int = option(
        60_000,
        "time a consumer has to finish a message before it is requeued",
        least=1,
        most="max_msg_timeout_ms",
    )
    max_msg_timeout_ms: int = option(
        900_000, "maximum message timeout, including TOUCH extensions", least=1
    )
    heartbeat_interval_ms: int = 30_000
    max_heartbeat_interval_ms: int = option(
        60_000, "maximum heartbeat interval a client may request", least=1
    )
    output_buffer_size: int = 16_384
    max_output_buffer_size: int = option(
        64 << 10, "maximum output buffer size a client may request, in bytes", least=1
    )
    output_buffer_timeout_ms: int = option(
        250,
        "maximum time a message waits in an output buffer (an upper bound: sparq sends at the end"
        " of each event loop iteration)",
        least=0,
        most="max_output_buffer_timeout_ms",
    )
    min_output_buffer_timeout_ms: int = option(
        25,
        "minimum output buffer timeout a client may request",
        least=0,
        most="max_output_buffer_timeout_ms",
    )
    max_output_buffer_timeout_ms: int = option(
        30_000, "maximum output buffer timeout a client may request", least=0
    )
    max_deflate_level: int = option(6, "maximum deflate level a client may request")
    deflate: bool = option(True, "offer deflate compression")
    snappy: bool = option(True, "offer snappy compression")
    # The default is the size of NSQ's read buffer.
    max_line_size: int = option(16 << 10, "maximum length of a command line, in bytes", least=1)
    require_heartbeats: bool = option(False, "refuse clients that disable heartbeats")
    strict_identify: bool = option(
        False,
        "refuse IDENTIFY and AUTH bodies over 64 KiB, and IDENTIFY JSON nested deeper than 20"
        " levels or with numbers over 64 bits",
    )
