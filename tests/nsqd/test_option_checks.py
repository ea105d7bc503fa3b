"""The options that nsqd refuses; tests/scenarios/starting tests the printed errors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sparq.nsqd.main import check
from sparq.nsqd.options import NsqdOptions
from sparq.program.lifecycle import StartError
from tests.support.options import changed

TLS = object()


@pytest.mark.behaviour("more.node-id-bounds")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_deflate_level": 0}, "--max-deflate-level must be [1,9]"),
        ({"max_deflate_level": 10}, "--max-deflate-level must be [1,9]"),
        ({"id": -1}, "--node-id must be [0,1024)"),
        ({"id": 1024}, "--node-id must be [0,1024)"),
        (
            {"tls_required": "true"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            {"tls_required": "tcp-https"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            {"tls_client_auth_policy": "require"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        ({"auth_http_request_method": "put"}, "--auth-http-request-method must be post or get"),
        ({"auth_http_request_method": "GET"}, "--auth-http-request-method must be post or get"),
        *(
            (
                {"e2e_processing_latency_percentiles": (1.0, value)},
                f"invalid E2E processing latency percentile: {text}",
            )
            for value, text in [(0.0, "0"), (-0.5, "-0.5"), (1.5, "1.5"), (99.0, "99")]
        ),
    ],
)
def test_invalid_values_get_nsqs_error(changes: dict[str, Any], reason: str) -> None:
    """Invalid values get NSQ's error text. (test_tls.py tests bad certificates.)"""
    with pytest.raises(StartError) as refusal:
        check(changed(NsqdOptions(), **changes), lambda _options: None)

    assert str(refusal.value) == reason


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_percentile_is_a_number_in_range(value: float) -> None:
    """NaN and infinity, which Python reads as floats, are refused."""
    with pytest.raises(StartError, match="invalid E2E processing latency percentile"):
        check(
            changed(NsqdOptions(), e2e_processing_latency_percentiles=(value,)),
            lambda _options: None,
        )


def test_options_are_checked_in_nsqs_order() -> None:
    """Options are checked in NSQ's order: fixing one error reveals the next one."""
    wrong: dict[str, Any] = {
        "max_deflate_level": 0,
        "id": -1,
        "tls_cert": "missing",
        "tls_required": "true",
        "auth_http_request_method": "put",
        "e2e_processing_latency_percentiles": (2.0,),
    }
    reasons = []

    def build(given: NsqdOptions) -> None:
        if given.tls.cert:
            raise StartError("failed to build TLS config - no such file")

    while wrong:
        with pytest.raises(StartError) as refusal:
            check(changed(NsqdOptions(), **wrong), build)
        reasons.append(str(refusal.value))
        del wrong[next(iter(wrong))]

    assert reasons == [
        "--max-deflate-level must be [1,9]",
        "--node-id must be [0,1024)",
        "failed to build TLS config - no such file",
        "cannot require TLS client connections without TLS key and cert",
        "--auth-http-request-method must be post or get",
        "invalid E2E processing latency percentile: 2",
    ]
