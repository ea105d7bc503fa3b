"""Reports of the losses that channels and topics have counted."""

from __future__ import annotations

from sparq.broker.counts import REPORT_NS, ReportedLosses


def test_a_loss_is_reported_once() -> None:
    """A report has what was lost since the previous one; there is at most one per minute."""
    losses = ReportedLosses()
    assert (0, 0) == losses.unreported(0, 0, mono_ns=0)
    assert (2, 1) == losses.unreported(2, 1, mono_ns=10)
    assert (0, 0) == losses.unreported(5, 1, mono_ns=10 + REPORT_NS - 1)
    assert (3, 3) == losses.unreported(5, 4, mono_ns=10 + REPORT_NS)
    assert (0, 0) == losses.unreported(5, 4, mono_ns=10 + 2 * REPORT_NS)


def test_a_late_loss_is_reported_at_once() -> None:
    """Reports without losses delay no report."""
    losses = ReportedLosses()
    assert (0, 0) == losses.unreported(0, 0, mono_ns=REPORT_NS)
    assert (1, 0) == losses.unreported(1, 0, mono_ns=REPORT_NS + 1)
