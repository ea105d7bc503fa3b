"""What a bucket may hold, and when it rewrites its state."""

from __future__ import annotations

from dataclasses import dataclass

from sparq.pipeline.visits import BURST_PAGES, BURST_S, REPEAT_CLICKS, REPEAT_S, VISIT_GAP_S

# A visitor who asked for one page so often, or for so many pages within BURST_S, is busy, and lies
# in `hot`. The others lie in `base`, which ordinary batches do not read: what they have there is no
# burst and no repetition without as many new clicks again, which are seen in `hot`.
BUSY_PAGES = 8
assert 2 * BUSY_PAGES - 1 <= REPEAT_CLICKS <= BURST_PAGES

# A window that begins with an older page click can get no more clicks: what is so late is ignored.
WINDOW_OVER_S = VISIT_GAP_S + max(BURST_S, REPEAT_S)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one bucket.

    Attributes:
        batches_max: batches between two compactions.
        hot_bytes_max: bytes of the batches since the last compaction; more lead to the next one.
        overdue_s: event time by which a visit may be over before it is judged.
        fold_pages: page clicks of a visit that are kept one by one however old they are.
        pages_max: page clicks of a visit that are kept one by one however new they are.
        state_bytes_max: bytes of all visits; beyond it, the oldest visits are dropped and counted.
        findings_max: findings; beyond it, the older half is dropped and counted.
    """

    batches_max: int = 16
    hot_bytes_max: int = 1 << 20
    overdue_s: int = 60
    fold_pages: int = 64
    pages_max: int = 2_000
    # Visits of half an hour at 5,000 clicks/s take 8 MB in each of 16 buckets.
    state_bytes_max: int = 16 << 20
    findings_max: int = 12_500


DEFAULT_LIMITS = Limits()
