"""IDENTIFY: what is granted, the order of the checks, and NSQ's error texts."""

import json

import pytest

from sparq.options.limits import IdentifyLimits
from sparq.protocol.errors import RemoteError
from sparq.protocol.identify import Granted, negotiate

LIMITS = IdentifyLimits()
NOT_JSON = "IDENTIFY failed to decode JSON body"


def granted(**asked: object) -> Granted:
    return negotiate(json.dumps(asked).encode(), LIMITS, {})


def refusal(body: bytes) -> str:
    with pytest.raises(RemoteError) as refused:
        negotiate(body, LIMITS, {})
    assert refused.value.code == "E_BAD_BODY"
    assert refused.value.fatal
    return refused.value.text


def test_an_empty_object_gets_the_defaults() -> None:
    """An empty object gives the defaults and is answered with OK."""
    default = granted()

    assert default.heartbeat_interval_ms == 30_000
    assert default.output_buffer_size == 16_384
    assert default.output_buffer_timeout_ms == 250
    assert default.msg_timeout_ms == 60_000
    assert default.sample_rate == 0
    assert (default.client_id, default.hostname, default.user_agent) == ("", "", "")
    assert default.reply_data() == b"OK"


def test_zero_and_null_count_as_missing() -> None:
    """A value of 0 or null counts as missing, and so does a body of null."""
    zero = granted(heartbeat_interval=0, output_buffer_size=0, msg_timeout=0, sample_rate=None)

    assert zero == granted()
    assert negotiate(b"null", LIMITS, {}) == granted()


def test_values_within_the_limits_are_granted() -> None:
    """Values up to and including the limits are granted."""
    low = granted(
        heartbeat_interval=1000, output_buffer_size=64, output_buffer_timeout=25, msg_timeout=1000
    )
    high = granted(
        heartbeat_interval=60_000,
        output_buffer_size=65_536,
        output_buffer_timeout=30_000,
        msg_timeout=900_000,
        sample_rate=99,
    )

    assert (low.heartbeat_interval_ms, low.output_buffer_size) == (1000, 64)
    assert (low.output_buffer_timeout_ms, low.msg_timeout_ms) == (25, 1000)
    assert (high.heartbeat_interval_ms, high.output_buffer_size) == (60_000, 65_536)
    assert (high.output_buffer_timeout_ms, high.msg_timeout_ms) == (30_000, 900_000)
    assert high.sample_rate == 99


def test_minus_one_disables_a_feature() -> None:
    """-1 disables heartbeats, the output buffer or its timeout.

    Without a buffer there is no timeout either.
    """
    assert granted(heartbeat_interval=-1).heartbeat_interval_ms == 0
    assert granted(output_buffer_timeout=-1).output_buffer_timeout_ms == 0
    unbuffered = granted(output_buffer_size=-1, output_buffer_timeout=500)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout_ms) == (1, 0)


@pytest.mark.parametrize(
    ("key", "words", "values"),
    [
        ("heartbeat_interval", "heartbeat interval", [999, 60_001, -2]),
        ("output_buffer_timeout", "output buffer timeout", [24, 30_001, -2]),
        ("output_buffer_size", "output buffer size", [63, 65_537, -2]),
        ("sample_rate", "sample rate", [-1, 100]),
        ("msg_timeout", "msg timeout", [999, 900_001, -1]),
    ],
)
def test_values_out_of_range_are_refused(key: str, words: str, values: list[int]) -> None:
    """The error names the key in NSQ's words and the value as sent."""
    for value in values:
        text = refusal(json.dumps({key: value}).encode())

        assert text == f"IDENTIFY {words} ({value}) is invalid"


def test_the_first_of_several_errors_is_reported() -> None:
    """Of several errors the first is reported, in this order.

    Heartbeat, buffer timeout, buffer size, sample rate, message timeout.
    """
    keys = ["heartbeat_interval", "output_buffer_timeout", "output_buffer_size", "sample_rate"]
    keys.append("msg_timeout")
    while keys:
        text = refusal(json.dumps(dict.fromkeys(keys, 1_000_000)).encode())

        assert keys.pop(0).replace("_", " ") in text


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"1", b'"x"', b"{} {}", b"\xef\xbb\xbf{}", b'{"sample_rate":NaN}'),
        *(b'{"heartbeat_interval":"1000"}', b'{"heartbeat_interval":1000.0}'),
        *(b'{"heartbeat_interval":true}', b'{"feature_negotiation":1}', b'{"client_id":1}'),
        *(b'{"snappy":"yes"}', b'{"deflate_level":1.5}', b'{"topology_zone":[]}'),
        *(b'{"msg_timeout":9223372036854775808}', b'{"sample_rate":2147483648}'),
        *('{"client_id":"x"}'.encode("utf-16"), b"[" * 100_000),
        b'{"msg_timeout":' + b"9" * 5000 + b"}",
    ],
    ids=repr,
)
def test_invalid_json_and_wrong_types_are_refused(body: bytes) -> None:
    """Invalid JSON and wrong types get the same error."""
    assert refusal(body) == NOT_JSON


def test_types_are_checked_before_ranges() -> None:
    """A wrong type anywhere is reported before a value out of range, as in NSQ."""
    assert refusal(b'{"heartbeat_interval":1,"tls_v1":"x"}') == NOT_JSON


def test_keys_are_case_insensitive() -> None:
    """Keys are case-insensitive, as in Go.

    Of several forms of a key the last one counts; null does not change the value.
    """
    found = granted(Client_ID="a", CLIENT_ID="b", client_id=None, Feature_Negotiation=True)

    assert (found.client_id, found.reply is None) == ("b", False)
    assert granted(user_agent="c", USER_AGENT="d").user_agent == "d"
    assert granted(**{"ho\u017ftname": "long s"}).hostname == "long s"
    assert refusal(b'{"TLS_V1":"x","tls_v1":true}') == NOT_JSON


def test_unknown_keys_are_ignored() -> None:
    """Unknown keys of any type are ignored."""
    assert granted(short_id="x", long_id=[1], anything={"a": None}) == granted()
    assert negotiate(b'{"a":' + b"9" * 5000 + b"}", LIMITS, {}) == granted()


@pytest.mark.parametrize(
    ("value", "is_modest"),
    [
        *(("[" * 19 + "]" * 19, True), ("[" * 20 + "]" * 20, False)),
        *(('{"b":9223372036854775807}', True), ('{"b":9223372036854775808}', False)),
        *(("1e300", True), ("9" * 400, False), ("1e999", False)),
    ],
)
def test_strict_identify_bounds_unknown_keys(value: str, is_modest: bool) -> None:
    """With strict_identify, depth (20) and numbers (64 bits) are limited, also in unknown keys."""
    body = b'{"feature_negotiation":true,"unknown":%b}' % value.encode()
    assert negotiate(body, LIMITS, {}).reply
    if is_modest:
        assert negotiate(body, IdentifyLimits(strict_identify=True), {}).reply
    else:
        with pytest.raises(RemoteError, match=NOT_JSON):
            negotiate(body, IdentifyLimits(strict_identify=True), {})


def test_heartbeats_may_be_required() -> None:
    """With require_heartbeats a client cannot turn them off."""
    with pytest.raises(RemoteError, match=r"heartbeat interval \(-1\) is invalid"):
        negotiate(b'{"heartbeat_interval":-1}', IdentifyLimits(require_heartbeats=True), {})


def test_invalid_utf8_in_names_is_replaced() -> None:
    """Invalid UTF-8 in names becomes the replacement character."""
    odd = negotiate(b'{"client_id":"a\xff","hostname":"b\\ud800"}', LIMITS, {})

    assert (odd.client_id, odd.hostname) == ("a\ufffd", "b\ufffd")


def test_the_reply_has_every_key_of_nsq() -> None:
    """The reply to feature negotiation has NSQ's 15 keys in NSQ's order.

    sparq's own keys follow them.
    """
    asked = {
        "feature_negotiation": True,
        **{"tls_v1": True, "deflate": True, "snappy": False, "deflate_level": 3},
        **{"sample_rate": 7, "msg_timeout": 5000, "output_buffer_size": -1},
        **{"topology_region": "mine", "topology_zone": "mine"},
    }
    server = {"sparq_version": "9.9", "topology_region": "r", "topology_zone": "z", "tls": True}

    granted = negotiate(json.dumps(asked).encode(), LIMITS, server)

    expected = {
        "max_rdy_count": 2500,
        "version": "1.3.0",
        "max_msg_timeout": 900_000,
        "msg_timeout": 5000,
        "tls_v1": True,
        "deflate": True,
        "deflate_level": 3,
        "max_deflate_level": 6,
        "snappy": False,
        "sample_rate": 7,
        "auth_required": False,
        "output_buffer_size": 1,
        "output_buffer_timeout": 0,
        "topology_region": "r",
        "topology_zone": "z",
        "sparq_version": "9.9",
        "sparq_range": 2,
    }
    assert list(json.loads(granted.reply_data()).items()) == list(expected.items())
    assert (granted.topology_region, granted.topology_zone) == ("mine", "mine")


def test_limits_are_those_of_the_servers_flags() -> None:
    """Limits and defaults are those of the server's flags."""
    limits = IdentifyLimits(msg_timeout_ms=2000, max_msg_timeout_ms=3000, max_deflate_level=2)

    assert negotiate(b"{}", limits, {}).msg_timeout_ms == 2000
    reply = negotiate(b'{"feature_negotiation":true}', limits, {}).reply
    assert reply is not None
    assert (reply["deflate_level"], reply["max_deflate_level"]) == (2, 2)
    with pytest.raises(RemoteError, match="3001"):
        negotiate(b'{"msg_timeout":3001}', limits, {})


@pytest.mark.parametrize(
    ("asked", "max_level", "level"),
    [
        *((None, 6, 6), (0, 6, 6), (1, 6, 1), (6, 6, 6), (9, 6, 6), (9, 9, 9), (100, 9, 9)),
        *((-1, 6, 6), (5, 2, 2)),
    ],
)
def test_the_level_of_deflate(asked: int | None, max_level: int, level: int) -> None:
    """The deflate level is the requested one if above 0, else 6, and at most the maximum."""
    body = json.dumps({"feature_negotiation": True, "deflate": True, "deflate_level": asked})
    granted = negotiate(body.encode(), IdentifyLimits(max_deflate_level=max_level), {})

    assert (True, level) == (granted.deflate, granted.deflate_level)


@pytest.mark.parametrize("negotiates", [True, False])
@pytest.mark.parametrize("kind", ["tls", "deflate", "snappy"])
@pytest.mark.parametrize("offered", [True, False])
def test_an_upgrade_must_be_offered_requested_and_negotiated(
    kind: str, offered: bool, negotiates: bool
) -> None:
    """An upgrade happens only if it is offered, requested and negotiated."""
    key = "tls_v1" if kind == "tls" else kind
    limits = IdentifyLimits(
        deflate=kind == "deflate" and offered, snappy=kind == "snappy" and offered
    )
    everything = {"tls_v1": True, "deflate": True, "snappy": True}

    body = json.dumps({"feature_negotiation": negotiates, **everything})
    granted = negotiate(body.encode(), limits, {"tls": kind == "tls" and offered})

    agreed = {name: getattr(granted, name) for name in everything}
    assert {name: name == key and offered and negotiates for name in everything} == agreed
    assert granted.upgrades is any(agreed.values())
    assert not negotiate(b'{"feature_negotiation":true}', IdentifyLimits(), {"tls": True}).upgrades


def test_both_compressions_are_refused() -> None:
    """A request for both compressions gets E_IDENTIFY_FAILED if both are offered.

    Ranges are checked first.
    """
    asked = b'{"feature_negotiation":true,"deflate":true,"snappy":true%s}'
    with pytest.raises(RemoteError) as refused:
        negotiate(asked % b"", LIMITS, {})
    text = b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert (text, True) == (refused.value.frame_text(), refused.value.fatal)

    assert negotiate(asked % b"", IdentifyLimits(snappy=False), {}).deflate
    assert "msg timeout (1) is invalid" in refusal(asked % b',"msg_timeout":1')
    assert b"OK" == negotiate(b'{"deflate":true,"snappy":true}', LIMITS, {}).reply_data()
