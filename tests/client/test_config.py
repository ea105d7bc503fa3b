"""client.config: every option is checked, and errors contain its name."""

from dataclasses import fields
from typing import Any

import pytest

from sparq.client.config import RANGES, Config, milliseconds

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


def test_every_number_has_a_range_that_holds_its_default() -> None:
    """Every numeric option has limits, and its default is within them."""
    numbers = {field.name for field in fields(Config) if type(field.default) in (int, float)}

    assert set(RANGES) == numbers
    assert Config() == Config.of(None, {})


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
        ({"max_in_flight": 2.5}, TypeError, "max_in_flight takes int"),
        ({"max_in_flight": True}, TypeError, "max_in_flight takes int"),
        ({"msg_timeout": "5s"}, TypeError, "msg_timeout takes float"),
        ({"client_id": 7}, TypeError, "client_id takes str"),
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
