"""The options of consumers, producers and their connections, with defaults and ranges.

1. Names and defaults are those of go-nsq, as explained in NSQ's documentation; durations are
   seconds, as floats, and sizes are bytes. Options that go-nsq does not have are marked.
2. A ``Config`` is checked when it is made and never changes. Errors name the option and its limits.
3. nsqd checks its own upper limits and reports them in its answer to IDENTIFY.
4. The options for TLS, compression and AUTH are defined in `layer_options`; ``Config`` includes
   them.
5. Options come from keyword arguments, a mapping, a TOML file, or text as on a command line. The
   checks are the same for all of these.
"""

from __future__ import annotations

import re
import socket
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from sparq.client.arguments import parse_local
from sparq.options.declare import described, option
from sparq.options.mistakes import nearest
from sparq.options.units import MILLISECOND, SECOND, parse_duration
from sparq.protocol import SPARQ_VERSION
from sparq.wire.layer_options import LayerOptions

MINUTE: Final = 60.0
HOUR: Final = 3600.0

STRATEGIES: Final = ("exponential", "full_jitter")
TLS_OPTIONS: Final = (
    *("tls_root_ca_file", "tls_cert", "tls_key"),
    *("tls_insecure_skip_verify", "tls_min_version"),
)

ALIASES: Final = {"skip_lookupd_authorization": "lookupd_authorization"}
"""go-nsq's name says the opposite of what it does: true sends the secret."""

ELSEWHERE: Final = {
    "max_tries": "max_attempts",
    "message_handler": "handler",
    "requeue_delay": "default_requeue_delay",
    "requeue_timeout": "default_requeue_delay",
    "reconnect_interval": "max_reconnect_delay",
    "timeout": "dial_timeout",
    "lookupd_connect_timeout": "lookupd_poll_timeout",
    "lookupd_request_timeout": "lookupd_poll_timeout",
    "tls_options": "tls_config",
    "nsqd_tcp_address": "nsqd_tcp_addresses",
    "lookupd_http_address": "lookupd_http_addresses",
    "message_timeout": "msg_timeout",
}
"""Names that other Python clients use for sparq's options and arguments."""

_UPPER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}

Seconds: TypeAlias = float
"""A duration. As text it has a unit, or is milliseconds, as in go-nsq."""


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LayerOptions):
    """Options of a consumer or producer.

    The options for TLS, compression and AUTH are documented in ``LayerOptions``.
    """

    dial_timeout: Seconds = option(
        1.0, "timeout in seconds for connecting to nsqd.", least=0.001, most=5 * MINUTE
    )
    read_timeout: Seconds = option(
        MINUTE,
        "seconds without any received data after which a connection is closed.",
        least=0.1,
        most=5 * MINUTE,
    )
    write_timeout: Seconds = option(
        10.0,
        "seconds without progress in sending after which a connection is closed. 10 s, where"
        " go-nsq has 1: nsqd may stop reading for longer than that while its disk stalls, and"
        " each pending publish would then be sent twice. With several nsqds, the"
        " connection to one that does not answer for that long is closed, too, and its publishes"
        " are sent to another.",
        least=0.1,
        most=5 * MINUTE,
    )
    local_addr: str = option(
        "", 'local address of connections to nsqds: ``host`` or ``host:port``; "": any.'
    )
    lookupd_poll_interval: Seconds = option(
        MINUTE, "seconds between two queries to each nsqlookupd.", least=0.01, most=5 * MINUTE
    )
    lookupd_poll_jitter: float = option(
        0.3,
        "largest random delay of the second query, as a fraction of the interval.",
        least=0,
        most=1,
    )
    lookupd_poll_timeout: Seconds = option(
        MINUTE, "timeout in seconds for one nsqlookupd's answer.", least=0.01, most=5 * MINUTE
    )
    max_reconnect_delay: Seconds = option(
        15.0,
        "upper limit in seconds of the exponential delay between two attempts to connect to an"
        " nsqd (not in go-nsq, where the delay is fixed).",
        least=0.01,
        most=5 * MINUTE,
    )
    max_requeue_delay: Seconds = option(
        15 * MINUTE, "upper limit in seconds of the default requeue delay.", least=0, most=HOUR
    )
    default_requeue_delay: Seconds = option(
        90.0,
        "seconds; a requeue without a delay uses this times the message's attempts.",
        least=0,
        most=HOUR,
    )
    backoff_strategy: str = option("exponential", '"exponential" or "full_jitter".')
    max_backoff_duration: Seconds = option(
        2 * MINUTE,
        "upper limit in seconds of one backoff block; 0: no backoff.",
        least=0,
        most=HOUR,
    )
    backoff_multiplier: Seconds = option(
        1.0, "seconds; a block at backoff level n lasts this times 2^n.", least=0, most=HOUR
    )
    max_attempts: int = option(
        5,
        "a message delivered more often than this is finished without being handled, unless"
        " ``on_giving_up`` or ``dead_letter`` is set; 0: no limit.",
        least=0,
        most=65_535,
    )
    low_rdy_idle_timeout: Seconds = option(
        10.0,
        "when ``max_in_flight`` is below the number of connections, a connection that has"
        " received no message for this many seconds passes its RDY to another.",
        least=1,
        most=5 * MINUTE,
    )
    low_rdy_timeout: Seconds = option(
        30.0,
        "the same for a connection that has had RDY for this many seconds.",
        least=1,
        most=5 * MINUTE,
    )
    rdy_redistribute_interval: Seconds = option(
        5.0, "seconds between two checks of how RDY is distributed.", least=0.001, most=5
    )
    client_id: str = option("", "shown by nsqd; default: the short host name.")
    hostname: str = option("", "shown by nsqd; default: the host name.")
    user_agent: str = option("", "shown by nsqd; default: sparq and its version.")
    topology_region: str = option(
        "", "this client's region; a topology-aware nsqd serves its own region first."
    )
    topology_zone: str = option("", "the same for the zone.")
    heartbeat_interval: Seconds = option(
        30.0,
        "seconds between nsqd's heartbeats, at most ``read_timeout``.",
        least=1,
        most=5 * MINUTE,
    )
    sample_rate: int = option(0, "percentage of the messages to receive; 0: all.", least=0, most=99)
    output_buffer_size: int = option(
        16_384,
        "bytes that nsqd buffers for this connection; -1: no buffer; 0: nsqd's default.",
        least=-1,
        most=2**31 - 1,
    )
    output_buffer_timeout: Seconds = option(
        0.25,
        "seconds after which nsqd sends a buffer that is not full; -1: no timer; 0: nsqd's"
        " default.",
        least=-1,
        most=HOUR,
    )
    max_in_flight: int = option(
        1,
        "maximum number of messages in flight, over all connections of a consumer.",
        least=0,
        most=2**31 - 1,
    )
    msg_timeout: Seconds = option(
        0.0,
        "seconds after which nsqd redelivers a message without a response; 0: nsqd's default.",
        least=0,
        most=HOUR,
    )
    max_msg_size: int = option(
        0,
        "maximum frame size in bytes; a larger frame ends the connection; 0: 64 MiB (go-nsq: no"
        " limit).",
        least=0,
        most=2**31 - 1,
    )
    stop_timeout: Seconds = option(
        30.0,
        "seconds that ``stop`` and ``close`` wait for messages in flight and pending publishes"
        " (go-nsq: 30).",
        least=0,
        most=HOUR,
    )
    publish_timeout: Seconds = option(
        30.0,
        "seconds that one publish may take, including all attempts and the wait for a"
        " connection (not in go-nsq).",
        least=0.001,
        most=HOUR,
    )
    publish_attempts: int = option(
        5,
        "maximum number of sends of one publish. A send that nsqd did not execute, because"
        " another command failed or because it is draining, does not count (not in go-nsq).",
        least=1,
        most=1000,
    )
    max_pending_bytes: int = option(
        16 * 1024 * 1024,
        "maximum number of bytes per nsqd sent and not yet acknowledged; further publishes wait"
        " (not in go-nsq).",
        least=1,
        most=2**40,
    )
    tls_config: ssl.SSLContext | None = option(
        None, "SSL context to use in place of the ``tls_`` options; implies ``tls_v1``."
    )

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
        if unknown := sorted(options.keys() - _FIELDS.keys()):
            raise TypeError("; ".join(f"no such option: {each}{_near(each)}" for each in unknown))
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
        try:
            return cls.of(base, _read_options(options, _read_value, "no such option:"))
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
        try:
            found: Any = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: not TOML: {error}") from None
        for part in table.split(".") if table else ():
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, dict):
            raise ValueError(f"{path}: there is no table [{table}]")
        try:
            return cls.from_mapping(found, base)
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
        return cls.of(base, _read_options(options, _read_text, "invalid option"))

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
        for name in TLS_OPTIONS:
            if getattr(self, name) != _FIELDS[name].default:
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


# Options as text


_FIELDS: Final[Mapping[str, Field[Any]]] = {field.name: field for field in fields(Config)}


def _name(given: str) -> str:
    """Return the canonical name of an option: with ``_``, and with aliases resolved."""
    name = given.replace("-", "_")
    return ALIASES.get(name, name)


def _near(given: str) -> str:
    """Return the closest option, as `` (did you mean name?)``; empty if none is close."""
    name = _name(_UPPER.sub("_", given).lower())
    near = ELSEWHERE.get(name) or nearest(name, _FIELDS)
    return f" (did you mean {near}?)" if near else ""


def _seconds(text: str) -> float:
    return (int(text) * MILLISECOND if _is_bare(text) else parse_duration(text)) / SECOND


def _is_bare(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()


_READ: Final[Mapping[object, tuple[str, Callable[[str], Any]]]] = {
    "bool": ("bool", lambda text: _TRUTHS[text.lower()]),
    "int": ("int", int),
    "float": ("float", float),
    "Seconds": ("duration", _seconds),
    "str": ("str", str),
}
"""How text is read, by the annotation of the option."""


def _read_options(
    options: Mapping[str, Any], read: Callable[[Field[Any], Any], Any], unknown: str
) -> dict[str, Any]:
    """Return the values by their canonical names; ``unknown`` begins the error about a name."""
    values = {}
    for given, value in options.items():
        if (name := _name(given)) not in _FIELDS:
            raise ValueError(f"{unknown} {given}{_near(given)}")
        if name in values:
            raise ValueError(f"option {name} is given twice")
        values[name] = read(_FIELDS[name], value)
    return values


def _read_text(field: Field[Any], text: str) -> Any:
    """Read a value as go-nsq's ``Set`` does. Raises ValueError: the text cannot be read."""
    if field.type not in _READ:
        raise ValueError(f"option {field.name} cannot be given as text")
    kind, read = _READ[field.type]
    try:
        return read(text)
    except (KeyError, ValueError):
        raise ValueError(f"invalid {kind} {text!r} for option {field.name}") from None


def _read_value(field: Field[Any], value: object) -> Any:
    """Read a value from TOML, JSON or a dict: a duration is seconds, or text with a unit.

    Raises:
        ValueError: text cannot be read, or the text of a duration has no unit.
    """
    if not isinstance(value, str) or field.type == "str":
        return value
    if field.type == "Seconds" and _is_bare(value) and int(value):
        raise ValueError(
            f"duration {value!r} of option {field.name} has no unit: write '{value}s' or"
            f" '{value}ms', or seconds as a number"
        )
    return _read_text(field, value)
