"""The options of consumers, producers and their connections, with defaults and ranges.

1. Names and defaults are those of go-nsq, as explained in NSQ's documentation; durations are
   seconds, as floats, and sizes are bytes. Options that go-nsq does not have are marked.
2. A ``Config`` is checked when it is made and never changes. Errors name the option and its limits.
3. nsqd checks its own upper limits and reports them in its answer to IDENTIFY.
4. The options for TLS, compression and AUTH are defined in `layer_options`; ``Config`` includes
   them.
5. Options come from keyword arguments, a mapping, a TOML file, or text as on a command line
   (`option_values`). The checks are the same for all of these.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from sparq.client.arguments import parse_local
from sparq.client.layer_options import LAYER_RANGES, LayerOptions, check_option
from sparq.client.option_values import (
    near_option,
    option_name,
    read_table,
    read_text,
    read_value,
    unknown_option,
)
from sparq.protocol.identify import SPARQ_VERSION

MINUTE: Final = 60.0
HOUR: Final = 3600.0

RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "dial_timeout": (0.001, 5 * MINUTE),
    "read_timeout": (0.1, 5 * MINUTE),
    "write_timeout": (0.1, 5 * MINUTE),
    "lookupd_poll_interval": (0.01, 5 * MINUTE),
    "lookupd_poll_jitter": (0, 1),
    "lookupd_poll_timeout": (0.01, 5 * MINUTE),
    "max_reconnect_delay": (0.01, 5 * MINUTE),
    "max_requeue_delay": (0, HOUR),
    "default_requeue_delay": (0, HOUR),
    "max_backoff_duration": (0, HOUR),
    "backoff_multiplier": (0, HOUR),
    "max_attempts": (0, 65_535),
    "low_rdy_idle_timeout": (1, 5 * MINUTE),
    "low_rdy_timeout": (1, 5 * MINUTE),
    "rdy_redistribute_interval": (0.001, 5),
    "heartbeat_interval": (1, 5 * MINUTE),
    "sample_rate": (0, 99),
    "output_buffer_size": (-1, 2**31 - 1),
    "output_buffer_timeout": (-1, HOUR),
    "max_in_flight": (0, 2**31 - 1),
    "msg_timeout": (0, HOUR),
    "max_msg_size": (0, 2**31 - 1),
    "stop_timeout": (0, HOUR),
    "publish_timeout": (0.001, HOUR),
    "publish_attempts": (1, 1000),
    "max_pending_bytes": (1, 2**40),
    **LAYER_RANGES,
}
STRATEGIES: Final = ("exponential", "full_jitter")
TLS_OPTIONS: Final = (
    *("tls_root_ca_file", "tls_cert", "tls_key"),
    *("tls_insecure_skip_verify", "tls_min_version"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LayerOptions):
    """Options of a consumer or producer; see ``RANGES`` for the allowed values.

    The options for TLS, compression and AUTH are documented in ``LayerOptions``.

    Attributes:
        dial_timeout: timeout in seconds for connecting to nsqd.
        read_timeout: seconds without any received data after which a connection is closed.
        write_timeout: seconds without progress in sending after which a connection is closed.
            10 s, where go-nsq has 1: nsqd may stop reading for longer than that while its disk
            stalls, and each pending publish would then be sent twice. With several nsqds it is
            also the longest that a publish waits for an answer before it is sent to another nsqd
            as well.
        local_addr: local address of connections to nsqds: ``host`` or ``host:port``; "": any.
        lookupd_poll_interval: seconds between two queries to each nsqlookupd.
        lookupd_poll_jitter: largest random delay of the second query, as a fraction of the
            interval.
        lookupd_poll_timeout: timeout in seconds for one nsqlookupd's answer.
        max_reconnect_delay: upper limit in seconds of the exponential delay between two attempts
            to connect to an nsqd (not in go-nsq, where the delay is fixed).
        max_requeue_delay: upper limit in seconds of the default requeue delay.
        default_requeue_delay: seconds; a requeue without a delay uses this times the message's
            attempts.
        backoff_strategy: "exponential" or "full_jitter".
        max_backoff_duration: upper limit in seconds of one backoff block; 0: no backoff.
        backoff_multiplier: seconds; a block at backoff level n lasts this times 2^n.
        max_attempts: a message delivered more often than this is finished without being handled,
            unless ``on_giving_up`` or ``dead_letter`` is set; 0: no limit.
        low_rdy_idle_timeout: when ``max_in_flight`` is below the number of connections, a
            connection that has received no message for this many seconds passes its RDY to
            another.
        low_rdy_timeout: the same for a connection that has had RDY for this many seconds.
        rdy_redistribute_interval: seconds between two checks of how RDY is distributed.
        client_id: shown by nsqd; default: the short host name.
        hostname: shown by nsqd; default: the host name.
        user_agent: shown by nsqd; default: sparq and its version.
        topology_region: this client's region; a topology-aware nsqd serves its own region first.
        topology_zone: the same for the zone.
        heartbeat_interval: seconds between nsqd's heartbeats, at most ``read_timeout``.
        sample_rate: percentage of the messages to receive; 0: all.
        output_buffer_size: bytes that nsqd buffers for this connection; -1: no buffer; 0: nsqd's
            default.
        output_buffer_timeout: seconds after which nsqd sends a buffer that is not full; -1: no
            timer; 0: nsqd's default.
        max_in_flight: maximum number of messages in flight, over all connections of a consumer.
        msg_timeout: seconds after which nsqd redelivers a message without a response; 0: nsqd's
            default.
        max_msg_size: maximum frame size in bytes; a larger frame ends the connection; 0: 64 MiB
            (go-nsq: no limit).
        stop_timeout: seconds that ``stop`` and ``close`` wait for messages in flight and pending
            publishes (go-nsq: 30).
        publish_timeout: seconds that one publish may take, including all attempts and the wait
            for a connection (not in go-nsq).
        publish_attempts: maximum number of sends of one publish. A send that nsqd did not execute,
            because another command failed or because it is draining, does not count (not in
            go-nsq).
        max_pending_bytes: maximum number of bytes per nsqd sent and not yet acknowledged; further
            publishes wait (not in go-nsq).
        tls_config: SSL context to use in place of the ``tls_`` options; implies ``tls_v1``.
    """

    dial_timeout: float = 1.0
    read_timeout: float = MINUTE
    write_timeout: float = 10.0
    local_addr: str = ""
    lookupd_poll_interval: float = MINUTE
    lookupd_poll_jitter: float = 0.3
    lookupd_poll_timeout: float = MINUTE
    max_reconnect_delay: float = 15.0
    max_requeue_delay: float = 15 * MINUTE
    default_requeue_delay: float = 90.0
    backoff_strategy: str = "exponential"
    max_backoff_duration: float = 2 * MINUTE
    backoff_multiplier: float = 1.0
    max_attempts: int = 5
    low_rdy_idle_timeout: float = 10.0
    low_rdy_timeout: float = 30.0
    rdy_redistribute_interval: float = 5.0
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    heartbeat_interval: float = 30.0
    sample_rate: int = 0
    output_buffer_size: int = 16_384
    output_buffer_timeout: float = 0.25
    max_in_flight: int = 1
    msg_timeout: float = 0.0
    max_msg_size: int = 0
    stop_timeout: float = 30.0
    publish_timeout: float = 30.0
    publish_attempts: int = 5
    max_pending_bytes: int = 16 * 1024 * 1024
    tls_config: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Fill in the host name, client id and user agent, then check every option.

        Raises:
            TypeError: an option has a value of another type than its default.
            ValueError: an option is out of its range, or a file cannot be used.
        """
        host = socket.gethostname()
        defaults = (("hostname", host), ("client_id", host.partition(".")[0]))
        for name, default in (*defaults, ("user_agent", f"sparq/{SPARQ_VERSION}")):
            if getattr(self, name) == "":
                object.__setattr__(self, name, default)
        if self.tls_config is not None:
            self._take_tls_config(self.tls_config)
        LayerOptions.__post_init__(self)  # super() does not work with slots=True
        for field in fields(self):
            if field.name != "tls_config":
                check_option(field.name, field.default, getattr(self, field.name), RANGES)
        if self.local_addr:
            try:
                parse_local(self.local_addr)
            except ValueError as error:
                raise ValueError(f"local_addr: {error}") from None
        if self.backoff_strategy not in STRATEGIES:
            known = " or ".join(STRATEGIES)
            raise ValueError(f"backoff_strategy must be {known}, not {self.backoff_strategy!r}")
        if self.heartbeat_interval > self.read_timeout:
            raise ValueError(
                f"heartbeat_interval {self.heartbeat_interval} is above read_timeout "
                f"{self.read_timeout}: lower it, or connections will time out between heartbeats"
            )

    @classmethod
    def of(cls, base: Config | None, options: Mapping[str, Any]) -> Config:
        """Return ``base`` (or the defaults) with some options replaced.

        Raises:
            TypeError: an option does not exist or has the wrong type, or ``base`` is not a
                ``Config``.
            ValueError: an option is out of its range.
        """
        if base is not None and not isinstance(base, cls):
            kind = type(base).__name__
            raise TypeError(f"config must be a Config, not {kind} (see Config.from_mapping)")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(options.keys() - known):
            raise TypeError("; ".join(unknown_option(name, known) for name in unknown))
        return replace(base or cls(), **options)

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any], base: Config | None = None) -> Config:
        """Return ``base`` (or the defaults) with options from TOML, JSON or a dict.

        Names may use ``-`` or ``_``. A duration is a number of seconds or text with a unit:
        ``0.25`` or ``"250ms"``.

        Raises:
            ValueError: an option does not exist, is given twice, or its value is not valid; the
                error names the option.
        """
        defaults = cls._defaults()
        values = {}
        for given, value in options.items():
            if (name := option_name(given)) not in defaults:
                raise ValueError(unknown_option(given, defaults))
            if name in values:
                raise ValueError(f"option {name} is given twice")
            values[name] = read_value(name, defaults[name], value)
        try:
            return cls.of(base, values)
        except TypeError as error:
            raise ValueError(str(error)) from None

    @classmethod
    def load(cls, path: str | Path, table: str = "", base: Config | None = None) -> Config:
        """Return ``base`` (or the defaults) with options from a TOML file.

        Names and values are read as by ``from_mapping``.

        Args:
            path: the file.
            table: the table that holds the options: ``"nsq"`` for ``[nsq]``, ``"tool.nsq"`` for
                ``[tool.nsq]``; "": the top level.
            base: base options.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not TOML, the table is missing, or an option is not valid; the
                error names the file and the option.
        """
        options = read_table(path, table)
        try:
            return cls.from_mapping(options, base)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_text(cls, options: Mapping[str, str], base: Config | None = None) -> Config:
        """Return ``base`` (or the defaults) with options given as text, as in go-nsq's ``Set``.

        Names may use ``-`` or ``_``. A duration is text such as ``250ms`` or ``1m30s``; a bare
        number is milliseconds.

        Raises:
            ValueError: an option does not exist, or its value cannot be read or is out of range.
        """
        defaults = cls._defaults()
        values = {}
        for given, text in options.items():
            if (name := option_name(given)) not in defaults:
                raise ValueError(f"invalid option {given}{near_option(given, defaults)}")
            values[name] = read_text(name, defaults[name], text)
        return cls.of(base, values)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {field.name: field.default for field in fields(cls)}

    def tls_context(self, *, check_host: bool = True) -> ssl.SSLContext:
        """Return the SSL context: ``tls_config`` if given, else one made from the other options.

        Raises:
            ValueError: a file cannot be used; or ``tls_config`` checks the host name and the
                connection is a unix socket, which has none.
        """
        if self.tls_config is None:
            return LayerOptions.tls_context(self, check_host=check_host)
        if self.tls_config.check_hostname and not check_host:
            raise ValueError(
                "tls_config checks the host name, and a unix socket has none: "
                "set its check_hostname to False"
            )
        return self.tls_config

    def _take_tls_config(self, context: object) -> None:
        """Turn TLS on for a given context, and reject the TLS options that it replaces.

        Raises:
            TypeError: it is not an ``SSLContext``.
            ValueError: another TLS option is set as well.
        """
        if not isinstance(context, ssl.SSLContext):
            raise TypeError(f"tls_config must be an SSLContext, not {type(context).__name__}")
        defaults = self._defaults()
        for name in TLS_OPTIONS:
            if getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"{name} and tls_config cannot be combined: set it in the SSL context"
                )
        object.__setattr__(self, "tls_v1", True)

    def identify(self) -> dict[str, Any]:
        """Return the body of IDENTIFY; durations are in milliseconds."""
        return {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": milliseconds(self.heartbeat_interval),
            "sample_rate": self.sample_rate,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": milliseconds(self.output_buffer_timeout),
            "msg_timeout": milliseconds(self.msg_timeout),
            "topology_region": self.topology_region,
            "topology_zone": self.topology_zone,
            "dead_letter_envelopes": True,  # see Message.letter, which holds the history
        }


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds; negative: -1 ("off"); above 0: at least 1."""
    if seconds <= 0:
        return -1 if seconds < 0 else 0
    return max(1, round(seconds * 1000))
