"""Every option of a consumer, producer and their connections, with its default and range.

1. Names and defaults are those of go-nsq, which the documentation of NSQ explains; durations are
   seconds, as floats, and sizes are bytes. What go-nsq does not have is said where it stands.
2. A ``Config`` is checked when it is made and never changes: an error names option and limits.
3. What only nsqd can judge (its own upper limits) is left to nsqd, which answers IDENTIFY.
4. TLS, compression and AUTH have options of their own (`layer_options`), which are part of these.
5. The same options come from keyword arguments, a mapping, a TOML file, or text as on a command
   line (`option_values`): whatever the way, the same is checked.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from sparq.client.address import parse_local
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


def _user_agent() -> str:
    return f"sparq/{SPARQ_VERSION}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LayerOptions):
    """Options of a consumer or producer; see ``RANGES`` for what each may be.

    Those of TLS, compression and AUTH are explained in ``LayerOptions``.

    Attributes:
        dial_timeout: seconds for connecting and for nsqd's answer to IDENTIFY.
        read_timeout: a connection on which nothing arrives for so long is given up.
        write_timeout: one whose nsqd takes nothing of what is sent for so long is given up. 10 s,
            where go-nsq has 1: behind a disk that stalls nsqd may read nothing for longer, and
            each publish under way would then be sent twice. With several nsqds it is also the
            longest that a publish waits for an answer before another nsqd is asked as well.
        local_addr: where connections to nsqds come from: ``host`` or ``host:port``; "": anywhere.
        lookupd_poll_interval: seconds between two rounds of questions to all nsqlookupds.
        lookupd_poll_jitter: the first round after the start waits up to this part of the interval.
        lookupd_poll_timeout: seconds for one nsqlookupd's answer.
        max_reconnect_delay: upper bound of the exponential delay between two attempts to connect
            to one nsqd (not in go-nsq, where it is fixed).
        max_requeue_delay: upper bound of the delay of a requeue whose delay is not given.
        default_requeue_delay: that delay is this times the message's attempts.
        backoff_strategy: "exponential" or "full_jitter".
        max_backoff_duration: upper bound of one backoff block; 0: there is no backoff.
        backoff_multiplier: the n-th block lasts this times 2^n seconds.
        max_attempts: a message delivered more often is given up: finished unseen; 0: never.
        low_rdy_idle_timeout: with fewer messages in flight than connections, one that gets no
            message for so long hands its RDY to another.
        low_rdy_timeout: the same for one that has had RDY for so long.
        rdy_redistribute_interval: seconds between two looks at who has RDY.
        client_id: shown by nsqd; the short host name.
        hostname: shown by nsqd.
        user_agent: shown by nsqd.
        topology_region: where this client is; a topology-aware nsqd serves its own region first.
        topology_zone: the same for the zone.
        heartbeat_interval: seconds between nsqd's heartbeats, at most ``read_timeout``.
        sample_rate: per cent of the messages to receive; 0: all.
        output_buffer_size: bytes that nsqd buffers for this connection; -1: none; 0: its default.
        output_buffer_timeout: seconds that it may hold them back; -1: no timer; 0: its default.
        max_in_flight: messages that a consumer may have unanswered, over all connections.
        msg_timeout: seconds after which nsqd delivers an unanswered message again; 0: its default.
        max_msg_size: a larger frame ends the connection; 0: 64 MiB (go-nsq has no limit then).
        stop_timeout: seconds that ``stop`` and ``close`` wait for what is in hand (go-nsq: 30).
        publish_timeout: seconds that one publish may take with all its attempts, waiting for a
            connection included (not in go-nsq).
        publish_attempts: how often one publish is sent at most, sends not counted that nsqd did not
            execute for another's fault (not in go-nsq).
        max_pending_bytes: bodies that may await nsqd's OK; a publish beyond waits (not in go-nsq).
        tls_config: speak TLS as this context says, in place of the options of the files.
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
        """Fill in what this host is called, then check every option.

        Raises:
            TypeError: an option has a value of another type than its default.
            ValueError: an option is out of its range, or a file cannot be used.
        """
        host = socket.gethostname()
        defaults = (("hostname", host), ("client_id", host.partition(".")[0]))
        for name, default in (*defaults, ("user_agent", _user_agent())):
            if getattr(self, name) == "":
                object.__setattr__(self, name, default)
        if self.tls_config is not None:
            self._take_tls_config(self.tls_config)
        LayerOptions.__post_init__(self)  # slots leave no way to super()
        for field in fields(self):
            if field.name != "tls_config":
                check_option(field.name, field.default, getattr(self, field.name), RANGES)
        if self.local_addr:
            _check_local(self.local_addr)
        if self.backoff_strategy not in STRATEGIES:
            raise ValueError(f"backoff_strategy is one of {STRATEGIES}: {self.backoff_strategy!r}")
        if self.heartbeat_interval > self.read_timeout:
            raise ValueError(
                f"heartbeat_interval {self.heartbeat_interval} is above read_timeout "
                f"{self.read_timeout}: the connection would be given up between two heartbeats"
            )

    @classmethod
    def of(cls, base: Config | None, options: Mapping[str, Any]) -> Config:
        """The ``base`` (or the defaults) with some options replaced.

        Raises:
            TypeError: there is no option of a name given, or its type is another; or the base is
                no ``Config``.
            ValueError: an option is out of its range.
        """
        if base is not None and not isinstance(base, cls):
            kind = type(base).__name__
            raise TypeError(f"config takes a Config, not {kind} (see Config.from_mapping)")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(options.keys() - known):
            raise TypeError("; ".join(unknown_option(name, known) for name in unknown))
        return replace(base or cls(), **options)

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any], base: Config | None = None) -> Config:
        """The ``base`` (or the defaults) with options as TOML, JSON or a program has them.

        In a name ``-`` and ``_`` are the same. A duration is a number of seconds, or text with
        its unit: ``0.25`` or ``"250ms"``.

        Raises:
            ValueError: there is no such option, or its value is not valid; the error names it.
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
        """The ``base`` (or the defaults) with the options of a TOML file, as in ``from_mapping``.

        Args:
            path: the file.
            table: where in it the options stand: ``"nsq"`` for ``[nsq]``, ``"tool.nsq"`` for
                ``[tool.nsq]``; "": at its top.
            base: options to start from.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no TOML, has no such table, or an option in it is not valid; the
                error names file and option.
        """
        options = read_table(path, table)
        try:
            return cls.from_mapping(options, base)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_text(cls, options: Mapping[str, str], base: Config | None = None) -> Config:
        """The ``base`` (or the defaults) with options as people write them, as go-nsq's ``Set``.

        In a name ``-`` and ``_`` are the same. A duration is ``250ms`` or ``1m30s``; a bare number
        is milliseconds.

        Raises:
            ValueError: there is no such option, or its value cannot be read or is out of range.
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
        """How TLS is spoken: as ``tls_config`` says where that is given, else as the files do.

        Raises:
            ValueError: a file cannot be used; or ``tls_config`` asks for the name of a host where
                there is none.
        """
        if self.tls_config is None:
            return LayerOptions.tls_context(self, check_host=check_host)
        if self.tls_config.check_hostname and not check_host:
            raise ValueError(
                "tls_config checks the name of a host, and a unix socket has none: "
                "set check_hostname = False in it"
            )
        return self.tls_config

    def _take_tls_config(self, context: object) -> None:
        """A given context asks for TLS by itself, and leaves nothing to say to the other options.

        Raises:
            TypeError: it is none.
            ValueError: another option says how TLS is spoken, too.
        """
        if not isinstance(context, ssl.SSLContext):
            raise TypeError(f"tls_config takes SSLContext, not {type(context).__name__}")
        defaults = self._defaults()
        for name in TLS_OPTIONS:
            if getattr(self, name) != defaults[name]:
                raise ValueError(
                    f"{name} and tls_config exclude each other: put it into the context"
                )
        object.__setattr__(self, "tls_v1", True)

    def identify(self) -> dict[str, Any]:
        """What IDENTIFY tells nsqd; durations as the milliseconds of the wire."""
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
            "dead_letter_envelopes": True,  # a consumer opens them: see Message.letter
        }


def milliseconds(seconds: float) -> int:
    """A duration as the wire has it; -1 stays -1 ("off") and nothing above 0 becomes 0."""
    if seconds <= 0:
        return -1 if seconds < 0 else 0
    return max(1, round(seconds * 1000))


def _check_local(address: str) -> None:
    try:
        parse_local(address)
    except ValueError as error:
        raise ValueError(f"local_addr: {error}") from None
