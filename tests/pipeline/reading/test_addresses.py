"""Which of several addresses is the visitor's."""

import pytest

from sparq.pipeline.reading.addresses import networks, visitor

PASSED = {
    # connection, X-Forwarded-For, trusted: the visitor
    ("9.9.9.9", None, ()): "9.9.9.9",
    ("9.9.9.9", "1.1.1.1, 2.2.2.2", ()): "9.9.9.9",
    ("10.0.0.1", "1.1.1.1, 2.2.2.2", ("10.0.0.0/8",)): "2.2.2.2",
    ("10.0.0.1", "1.1.1.1, 10.2.2.2", ("10.0.0.0/8",)): "1.1.1.1",
    ("10.0.0.1", "10.3.3.3, 10.2.2.2", ("10.0.0.0/8",)): "10.3.3.3",
    ("10.0.0.1", "-", ("private",)): "10.0.0.1",
    ("::1", "2001:db8::5", ("private",)): "2001:db8::5",
    ("9.9.9.9", "1.1.1.1", ("private",)): "9.9.9.9",
    (None, "1.1.1.1, 2.2.2.2", ()): "2.2.2.2",
    ("1.1.1.1, 2.2.2.2", None, ()): "2.2.2.2",
    ("unknown", "1.1.1.1", ("private",)): "unknown",
    (None, None, ("private",)): None,
}


@pytest.mark.parametrize(("passed", "expected"), PASSED.items())
def test_the_last_address_that_is_no_trusted_proxy_counts(passed, expected):
    """By default the connection's address counts, never one that the client chooses."""
    address, forwarded, trusted = passed

    assert expected == visitor(address, forwarded, networks(trusted))
