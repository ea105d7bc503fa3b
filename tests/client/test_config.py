"""client.config: every option is checked, from code, mappings, TOML and text; errors name it."""

from __future__ import annotations

import ssl
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sparq.client.config import Config, milliseconds

RANGES = {
    field.name: (field.metadata["least"], field.metadata["most"])
    for field in fields(Config)
    if field.metadata["least"] is not None
}

GO_NSQ: dict[str, Any] = {
    "dial_timeout": 1.0,
    "read_timeout": 60.0,
    "write_timeout": 1.0,
    "local_addr": "",
    "lookupd_poll_interval": 60.0,
    "lookupd_poll_jitter": 0.3,
    "lookupd_poll_timeout": 60.0,
    "max_requeue_delay": 900.0,
    "default_requeue_delay": 90.0,
    "backoff_strategy": "exponential",
    "max_backoff_duration": 120.0,
    "backoff_multiplier": 1.0,
    "max_attempts": 5,
    "low_rdy_idle_timeout": 10.0,
    "low_rdy_timeout": 30.0,
    "rdy_redistribute_interval": 5.0,
    "client_id": "",
    "hostname": "",
    "user_agent": "",
    "topology_region": "",
    "topology_zone": "",
    "heartbeat_interval": 30.0,
    "sample_rate": 0,
    "tls_v1": False,
    "tls_config": None,
    "tls_root_ca_file": "",
    "tls_cert": "",
    "tls_key": "",
    "tls_insecure_skip_verify": False,
    "tls_min_version": "tls1.2",
    "deflate": False,
    "deflate_level": 6,
    "snappy": False,
    "output_buffer_size": 16_384,
    "output_buffer_timeout": 0.25,
    "max_in_flight": 1,
    "msg_timeout": 0.0,
    "max_msg_size": 0,
    "auth_secret": "",
    "auth_without_tls": False,
    "lookupd_authorization": True,
}
"""go-nsq's options and their defaults, except for the host and client names that it fills in."""
ONLY_IN_SPARQ = {
    *("max_reconnect_delay", "stop_timeout"),
    *("publish_timeout", "publish_attempts", "max_pending_bytes"),
}


def test_names_and_defaults_equal_go_nsqs() -> None:
    """Names and defaults equal go-nsq's, plus `ONLY_IN_SPARQ`; only write_timeout is longer."""
    ours = {field.name: field.default for field in fields(Config)}

    assert {**GO_NSQ, "write_timeout": 10.0} == {
        name: default for name, default in ours.items() if name not in ONLY_IN_SPARQ
    }


@pytest.mark.parametrize("name", sorted(RANGES))
def test_limits_are_accepted_and_values_beyond_them_raise(name: str) -> None:
    """Both limits are accepted; values beyond them raise ValueError with the option's name."""
    kind = type(getattr(Config(), name))
    low, high = RANGES[name]
    free = {"read_timeout": 300.0} if name == "heartbeat_interval" else {}
    if name == "read_timeout":
        free = {"heartbeat_interval": 1.0}
        low = 1.0

    for value in (kind(low), kind(high)):
        assert getattr(Config.of(None, {**free, name: value}), name) == value
    for value in (kind(RANGES[name][0] - 1), kind(high + 1)):
        with pytest.raises(ValueError, match=name):
            Config.of(None, {**free, name: value})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_in_fligth": 3}, TypeError, "max_in_fligth"),
        ({"msg_timeout": "5s"}, TypeError, "msg_timeout takes float"),
        ({"backoff_strategy": "linear"}, ValueError, "backoff_strategy"),
        ({"heartbeat_interval": 61}, ValueError, "read_timeout"),
        ({"publish_timeout": float("nan")}, ValueError, "publish_timeout"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], error: type, text: str) -> None:
    """A misspelt option, a wrong type or a contradiction raises an error that names the option."""
    with pytest.raises(error, match=text):
        Config.of(None, options)


def test_options_replace_those_of_a_base() -> None:
    """Options that are not replaced keep the base's values; integers are accepted as seconds."""
    base = Config(max_in_flight=7, msg_timeout=3)
    changed = Config.of(base, {"max_in_flight": 8})

    assert (changed.max_in_flight, changed.msg_timeout) == (8, 3)
    assert base.max_in_flight == 7


def test_identify_has_durations_in_milliseconds() -> None:
    """IDENTIFY has the protocol's names, durations in milliseconds, and the client's identity."""
    identity = Config(msg_timeout=1.5, heartbeat_interval=2, output_buffer_timeout=-1).identify()

    assert identity["msg_timeout"] == 1500
    assert identity["heartbeat_interval"] == 2000
    assert identity["output_buffer_timeout"] == -1
    assert identity["feature_negotiation"] is True
    assert identity["client_id"]
    assert identity["user_agent"].startswith("sparq")


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (0.0001, 1), (0.25, 250), (-1, -1)])
def test_a_duration_above_0_never_becomes_0_ms(seconds: float, expected: int) -> None:
    """A duration above 0 never becomes 0 ms, which has another meaning."""
    assert milliseconds(seconds) == expected


# Options as text

SOME = {"max_in_flight": 7, "msg_timeout": 1.5, "snappy": True, "client_id": "me"}


def test_options_are_read_from_a_mapping() -> None:
    """A mapping may have text values, durations with units, names with ``-``, and go-nsq's name."""
    given = {
        "max-in-flight": "7",
        "msg_timeout": "1500ms",
        "dial_timeout": 2,
        "heartbeat_interval": "1m",
        "lookupd_poll_jitter": "0.5",
        "snappy": "TRUE",
        "client_id": "12",
        "default_requeue_delay": "0",
        "skip_lookupd_authorization": False,
    }
    config = Config.from_mapping(given)

    assert (7, 1.5, 2, 60.0) == (
        config.max_in_flight,
        config.msg_timeout,
        config.dial_timeout,
        config.heartbeat_interval,
    )
    assert (0.5, True, "12", 0, False) == (
        config.lookupd_poll_jitter,
        config.snappy,
        config.client_id,
        config.default_requeue_delay,
        config.lookupd_authorization,
    )


def test_options_are_read_from_a_file(tmp_path: Path) -> None:
    """Options are read from a whole TOML file, or from one of its tables on top of a base."""
    path = tmp_path / "nsq.toml"
    path.write_text(
        'max_in_flight = 7\nmsg_timeout = "1500ms"\nsnappy = true\nclient-id = "me"\n'
        "[tool.nsq]\nmax_attempts = 3\n",
        encoding="utf-8",
    )
    whole = path.with_name("whole.toml")
    whole.write_text(path.read_text().partition("[")[0])

    assert Config(**SOME) == Config.load(whole)
    assert Config(max_attempts=3, **SOME) == Config.load(str(path), "tool.nsq", Config(**SOME))


def test_text_is_read_as_go_nsq_reads_it() -> None:
    """``from_text`` reads a duration without unit as milliseconds, as go-nsq does."""
    given = {"max-in-flight": "7", "msg_timeout": "1500", "snappy": "1", "client_id": "me"}

    assert Config(**SOME) == Config.from_text(given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_in_fligth": 1}, r"no such option: max_in_fligth \(did you mean max_in_flight\?\)"),
        ({"zzz": 1}, "no such option: zzz$"),
        ({"max_tries": 1}, r"no such option: max_tries \(did you mean max_attempts\?\)"),
        ({"requeue_delay": 1}, r"requeue_delay \(did you mean default_requeue_delay\?\)"),
        ({"maxInFlight": 1}, r"no such option: maxInFlight \(did you mean max_in_flight\?\)"),
        ({"max_in_flight": 1.5}, "max_in_flight takes int, not float"),
        ({"max_in_flight": "many"}, "invalid int 'many' for option max_in_flight"),
        ({"max_in_flight": -1}, "max_in_flight must be from 0 to 2,147,483,647, not -1"),
        ({"max_in_flight": 1, "max-in-flight": 2}, "max_in_flight is given twice"),
        ({"msg_timeout": "15"}, "duration '15' of option msg_timeout has no unit: write '15s'"),
        ({"msg_timeout": "soon"}, "invalid duration 'soon' for option msg_timeout"),
        ({"msg_timeout": True}, "msg_timeout takes float, not bool"),
        ({"lookupd_poll_jitter": "x"}, "invalid float 'x' for option lookupd_poll_jitter"),
        ({"snappy": "yes"}, "invalid bool 'yes' for option snappy"),
        ({"client_id": None}, "client_id takes str, not NoneType"),
        ({"local_addr": "a:b:c"}, "local_addr: not an address of the form host:port: 'a:b:c'"),
        ({"tls_config": "x"}, "option tls_config cannot be given as text"),
        ({"tls_config": 7}, "tls_config must be an SSLContext, not int"),
    ],
)
def test_the_error_for_a_wrong_option_names_it(options: dict[str, Any], text: str) -> None:
    """A wrong option raises ValueError with its name and what it accepts."""
    with pytest.raises(ValueError, match=text):
        Config.from_mapping(options)


@pytest.mark.parametrize(
    ("content", "table", "text"),
    [
        ("max_in_flight = ", "", r"nsq\.toml: not TOML: "),
        ("max_in_flight = -1", "", r"nsq\.toml: max_in_flight must be from 0"),
        ("[a]\nmax_in_flight = 1", "b", r"nsq\.toml: there is no table \[b\]"),
        ("[a]\nmax_in_flight = 1", "a.max_in_flight", r"there is no table \[a\.max_in_flight\]"),
        ("[a]\nmax_in_flight = 1", "", r"no such option: a$"),
        ("\udcff", "", "nsq"),
    ],
)
def test_the_error_for_a_wrong_file_names_file_and_option(
    tmp_path: Path, content: str, table: str, text: str
) -> None:
    """A wrong file raises ValueError with the names of the file and of the option or table."""
    path = tmp_path / "nsq.toml"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=text):
        Config.load(path, table)


def test_a_missing_file_raises_file_not_found_error(tmp_path: Path) -> None:
    """A missing file raises FileNotFoundError with its name."""
    with pytest.raises(FileNotFoundError, match=r"gone\.toml"):
        Config.load(tmp_path / "gone.toml")


def test_tls_config_turns_tls_on_and_excludes_other_tls_options() -> None:
    """tls_config turns TLS on, and cannot be combined with other TLS options."""
    context = ssl.create_default_context()
    config = Config(tls_config=context)

    assert config.tls_v1
    assert context is config.tls_context()
    for other in ({"tls_insecure_skip_verify": True}, {"tls_min_version": "tls1.3"}):
        with pytest.raises(ValueError, match=f"{next(iter(other))} and tls_config cannot be"):
            Config(tls_config=context, **other)
    with pytest.raises(ValueError, match="a unix socket has none"):
        config.tls_context(check_host=False)
    context.check_hostname = False
    assert context is config.tls_context(check_host=False)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "10.0.0.1:0", "::1", "[::1]:7000", "host.example", "host:1"]
)
def test_local_addr_is_a_host_with_or_without_a_port(address: str) -> None:
    """local_addr is a host, or a host and a port; IPv4 and IPv6 are accepted."""
    assert address == Config(local_addr=address).local_addr
