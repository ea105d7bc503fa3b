"""client.option_values and Config from mappings, TOML files and text: values and errors."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Config

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
